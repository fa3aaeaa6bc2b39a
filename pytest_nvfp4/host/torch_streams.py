"""``torch.cuda.Stream`` and ``torch.cuda.Event`` of a device whose work is done when it is issued."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, Final, Self

import torch

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.driver.streams import Streams

__all__ = ["TorchStreams"]

_FIRST_STREAM: Final = 0x5C0000000001


class _Stream:
    """``torch.cuda.Stream``: work runs when it is issued. ``cuda_stream`` is 0 for the default stream."""

    def __init__(self, work: TorchStreams, handle: int, priority: int) -> None:
        self._work = work
        self.cuda_stream = handle
        self.stream_id = handle
        self.priority = priority
        self.device = torch.device("cuda", 0)
        self.device_index = 0
        self.device_type = 1

    def synchronize(self) -> None:
        self._work.streams.synchronize(self.cuda_stream)

    def wait_stream(self, stream: Any) -> None:
        self.wait_event(stream.record_event())

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def record_event(self, event: Any = None) -> Any:
        event = self._work.event_class() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        self.synchronize()
        return True

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)

    def __enter__(self) -> Self:
        self._work.entered.append(self._work.current)
        self._work.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._work.set(self._work.entered.pop())


class _Event:
    """``torch.cuda.Event``: every event has happened, none knows when."""

    def __init__(self, work: TorchStreams) -> None:
        self._work = work
        self.cuda_event = work.streams.new_event()

    def record(self, stream: Any = None) -> None:
        self._work.streams.record(self.cuda_event, None if stream is None else stream.cuda_stream)

    def wait(self, stream: Any = None) -> None:
        self._work.streams.wait(self.cuda_event, None if stream is None else stream.cuda_stream)

    def synchronize(self) -> None:
        self._work.streams.synchronize_event(self.cuda_event)

    def query(self) -> bool:
        self.synchronize()
        return True

    def elapsed_time(self, end_event: Any) -> float:
        for event in (self, end_event):  # an error if one had not happened yet
            event.synchronize()
        return math.nan


class _StreamContext:
    """``torch.cuda.StreamContext``: a stream is the current one inside the ``with`` block."""

    def __init__(self, work: TorchStreams, stream: _Stream | None) -> None:
        self._work = work
        self.stream = stream
        self._before: list[_Stream] = []

    def __enter__(self) -> None:
        self._before.append(self._work.current)
        self._work.set(self.stream)

    def __exit__(self, *_: object) -> None:
        self._work.set(self._before.pop())


class _OfThread(threading.local):
    """The current stream of a thread, and those to come back to."""

    def __init__(self) -> None:
        self.current: _Stream | None = None
        self.entered: list[_Stream] = []


class TorchStreams:
    """The streams of torch. ``streams`` hears what they order."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self._handles = iter(range(_FIRST_STREAM, 1 << 62))
        self._thread = _OfThread()
        self.stream_class = self._make_stream_class()
        self.event_class = self._make_event_class()
        self.context_class = self._make_context_class()
        self.default = self.stream_class(stream_ptr=0)

    @property
    def current(self) -> _Stream:
        """``torch.cuda.current_stream``, of this thread."""
        return self._thread.current or self.default

    @property
    def entered(self) -> list[_Stream]:
        """The streams that were current before those whose ``with`` blocks this thread is in."""
        return self._thread.entered

    def set(self, stream: _Stream | None) -> None:
        """``torch.cuda.set_stream``."""
        if stream is not None:
            self._thread.current = stream
            self.streams.current = stream.cuda_stream

    def within(self, stream: _Stream | None) -> _StreamContext:
        """``torch.cuda.stream``."""
        return self.context_class(stream)

    def table(self) -> dict[str, Any]:
        """What ``torch.cuda`` offers for streams, by name."""
        return {
            "Stream": self.stream_class,
            "ExternalStream": lambda stream_ptr, *_, **__: self.stream_class(stream_ptr=int(stream_ptr)),
            "Event": self.event_class,
            "current_stream": lambda *_: self.current,
            "default_stream": lambda *_: self.default,
            "stream": self.within,
            "StreamContext": self.context_class,
            "set_stream": self.set,
            "synchronize": lambda *_, **__: self.streams.synchronize_device(),
        }

    def _make_stream_class(self) -> Callable[..., _Stream]:
        work = self

        class Stream(_Stream):
            """A new stream: torch's wait for no other."""

            def __init__(
                self, _device: Any = None, priority: int = 0, *, stream_ptr: int | None = None, **_: Any
            ) -> None:
                handle = stream_ptr
                if handle is None:
                    handle = work.streams.made(next(work._handles), blocking=False)
                super().__init__(work, handle, priority)

        return Stream

    def _make_context_class(self) -> Callable[..., _StreamContext]:
        work = self

        class StreamContext(_StreamContext):
            """A context of these streams."""

            def __init__(self, stream: _Stream | None) -> None:
                super().__init__(work, stream)

        return StreamContext

    def _make_event_class(self) -> Callable[..., _Event]:
        work = self

        class Event(_Event):
            """A new event."""

            def __init__(self, *_: Any, interprocess: bool = False, **__: Any) -> None:
                if interprocess:
                    raise HostSideError("torch.cuda.Event(interprocess=True) has no stand-in without a GPU")
                super().__init__(work)

        return Event
