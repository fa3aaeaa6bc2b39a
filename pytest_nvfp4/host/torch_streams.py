"""``torch.cuda.Stream`` and ``torch.cuda.Event`` of a device that executes work when it is issued."""

from __future__ import annotations

import itertools
import math
import threading
import warnings
from typing import Any, Final, Self

import torch

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.driver.streams import Streams

_FIRST_STREAM: Final = 0x5C0000000001
_PRIORITIES: Final = (0, -5)
"""The least and the greatest priority of a stream (``cudaDeviceGetStreamPriorityRange``)."""


class _Stream:
    """``torch.cuda.Stream``: work runs when it is issued. ``cuda_stream`` is 0 for the default stream.

    Like torch's, a new stream waits for no other. The public classes are subclasses with the attribute ``_work``.
    """

    _work: TorchStreams

    def __init__(self, _device: Any = None, priority: int = 0, *, stream_ptr: int | None = None, **_: Any) -> None:
        handle = self._work.new_stream() if stream_ptr is None else stream_ptr
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

    def is_capturing(self) -> bool:
        return self._work.capturing and self == self._work.current

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return _PRIORITIES

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
    """``torch.cuda.Event``: always complete, and without a time."""

    _work: TorchStreams

    def __init__(self, *_: Any, interprocess: bool = False, **__: Any) -> None:
        if interprocess:
            raise HostSideError("torch.cuda.Event(interprocess=True) has no stand-in without a GPU")
        self.cuda_event = self._work.streams.new_event()

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
        for event in (self, end_event):  # a device raises if one is incomplete, so both are complete behind it
            event.synchronize()
        return no_time("torch.cuda.Event.elapsed_time")


def no_time(what: str) -> float:
    """Return NaN as a measured time, with a warning."""
    warnings.warn(f"{what} is NaN: nothing has a time without a GPU", RuntimeWarning, stacklevel=3)
    return math.nan


class _StreamContext:
    """``torch.cuda.StreamContext``: makes a stream the current one inside the ``with`` block."""

    _work: TorchStreams

    def __init__(self, stream: _Stream | None) -> None:
        self.stream = stream
        self._before: list[_Stream] = []

    def __enter__(self) -> None:
        self._before.append(self._work.current)
        self._work.set(self.stream)

    def __exit__(self, *_: object) -> None:
        self._work.set(self._before.pop())


class _PerThread(threading.local):
    """The current stream of a thread, and those before the ``with`` blocks that it is in."""

    def __init__(self) -> None:
        self.current: _Stream | None = None
        self.entered: list[_Stream] = []


class TorchStreams:
    """torch's streams and their current stream per thread. ``streams`` receives reports of their order.

    The classes are made per instance, because torch's classes take no argument that could carry it.
    """

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self._handles = itertools.count(_FIRST_STREAM)
        self._thread = _PerThread()
        self.stream_class: type[_Stream] = type("Stream", (_Stream,), {"_work": self})
        self.event_class: type[_Event] = type("Event", (_Event,), {"_work": self})
        self.context_class: type[_StreamContext] = type("StreamContext", (_StreamContext,), {"_work": self})
        self.default = self.stream_class(stream_ptr=0)

    def new_stream(self) -> int:
        """Add a stream and return its handle."""
        return self.streams.add(next(self._handles), blocking=False)

    @property
    def capturing(self) -> bool:
        """Whether work is captured into a graph. The capture is of one stream, the current one."""
        return self.streams.captured is not None

    @property
    def current(self) -> _Stream:
        """``torch.cuda.current_stream`` of this thread."""
        return self._thread.current or self.default

    @property
    def entered(self) -> list[_Stream]:
        """The streams that were current before the ``with`` blocks that this thread is in."""
        return self._thread.entered

    def set(self, stream: _Stream | None) -> None:
        """Set the current stream, as ``torch.cuda.set_stream``."""
        if stream is not None:
            self._thread.current = stream
            self.streams.current = stream.cuda_stream

    def table(self) -> dict[str, Any]:
        """Return ``torch.cuda``'s functions for streams, by name."""
        return {
            "Stream": self.stream_class,
            "ExternalStream": lambda stream_ptr, *_, **__: self.stream_class(stream_ptr=int(stream_ptr)),
            "Event": self.event_class,
            "current_stream": lambda *_: self.current,
            "default_stream": lambda *_: self.default,
            "stream": self.context_class,
            "StreamContext": self.context_class,
            "set_stream": self.set,
            "is_current_stream_capturing": lambda: self.capturing,
            "synchronize": lambda *_, **__: self.streams.synchronize_device(),
        }
