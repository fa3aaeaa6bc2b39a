"""Streams, events, copies and allocations of the CUDA driver and runtime: done at once, and told to ``Streams``."""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.driver.memory import DeviceMemory
from pytest_nvfp4.driver.streams import LEGACY, Extent, Streams

__all__ = ["WorkCalls", "address_of"]

_NON_BLOCKING: Final = 1
"""``CU_STREAM_NON_BLOCKING``, ``cudaStreamNonBlocking``."""

_Answer = Callable[..., tuple[Any, ...]]


def address_of(pointer: Any) -> int:
    """Address of what the bindings accept as a pointer: an int, a CUdeviceptr, or an object with a buffer."""
    with contextlib.suppress(TypeError, ValueError):
        return int(pointer)
    with contextlib.suppress(TypeError, BufferError):
        return ctypes.addressof(ctypes.c_char.from_buffer(pointer))
    raise HostSideError(f"a memory copy got {type(pointer).__name__}: pass an address or a writable buffer")


class WorkCalls:
    """What both bindings do with streams and memory. ``handles`` gives numbers to new streams and events."""

    def __init__(self, memory: DeviceMemory, streams: Streams, handles: Iterator[int]) -> None:
        self._memory = memory
        self._streams = streams
        self._handles = handles

    # ---- what is done --------------------------------------------------------------------------------------------

    def allocate(self, size: int, stream: Any = None) -> int:
        """Reserve memory, in the order of a stream if one is named; its address."""
        address = self._memory.allocate(size)
        self._streams.allocated(address, size, stream=None if stream is None else int(stream))
        return address

    def free(self, pointer: Any, stream: Any = None) -> tuple[()]:
        """Release memory."""
        self._streams.freed(int(pointer), stream=None if stream is None else int(stream))
        self._memory.free(int(pointer))
        return ()

    def copy(
        self, to: Any, source: Any, size: int, *, what: str, stream: Any = LEGACY, waits: bool = True
    ) -> tuple[()]:
        """Copy memory of either side."""
        kept = ctypes.create_string_buffer(source, len(source)) if isinstance(source, bytes) else None
        start = ctypes.addressof(kept) if kept is not None else address_of(source)
        target = address_of(to)
        self._streams.copied(what, target, start, size, stream=int(stream), waits=waits)
        ctypes.memmove(target, start, size)
        return ()

    def fill(self, to: Any, pattern: bytes, count: int, *, what: str, stream: Any = LEGACY) -> tuple[()]:
        """Repeat a pattern in device memory."""
        target, size = address_of(to), len(pattern) * count
        self._streams.work(what, stream=int(stream), writes=[Extent(target, size)])
        if len(pattern) == 1:
            ctypes.memset(target, pattern[0], size)
        else:
            ctypes.memmove(target, pattern * count, size)
        return ()

    def synchronize_device(self) -> tuple[()]:
        """The host waits for everything."""
        self._streams.synchronize_device()
        return ()

    def _stream(self, flags: int = 0, _priority: int = 0) -> int:
        return self._streams.made(next(self._handles), blocking=not int(flags) & _NON_BLOCKING)

    def _elapsed(self, start: Any, end: Any) -> float:
        for event in (start, end):  # an error if one had not happened yet
            self._streams.synchronize_event(int(event))
        return math.nan

    def _calls(self, answer: _Answer) -> dict[str, Callable[..., Any]]:
        """What both have under the same names."""
        streams = self._streams

        def done(act: Callable[..., None]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                act(*map(int, args))
                return answer()

            return call

        return {
            "StreamDestroy": lambda _stream: answer(),
            "StreamSynchronize": done(streams.synchronize),
            "StreamQuery": done(streams.synchronize),  # it says that all is complete
            "StreamWaitEvent": done(lambda stream, event, _flags=0: streams.wait(event, stream)),
            "EventDestroy": lambda _event: answer(),
            "EventRecord": done(lambda event, stream=LEGACY: streams.record(event, stream)),
            "EventRecordWithFlags": done(lambda event, stream=LEGACY, _flags=0: streams.record(event, stream)),
            "EventQuery": done(streams.synchronize_event),
            "EventSynchronize": done(streams.synchronize_event),
            "EventElapsedTime": lambda start, end: answer(self._elapsed(start, end)),
        }

    # ---- tables --------------------------------------------------------------------------------------------------

    def driver(self, d: Any, answer: _Answer) -> dict[str, Callable[..., Any]]:
        """The driver's, by name; ``answer`` makes the result of a call."""
        table = {f"cu{name}": call for name, call in self._calls(answer).items()}
        table["cuStreamCreate"] = lambda flags: answer(d.CUstream(self._stream(flags)))
        table["cuStreamCreateWithPriority"] = lambda flags, _priority: answer(d.CUstream(self._stream(flags)))
        table["cuEventCreate"] = lambda _flags: answer(d.CUevent(next(self._handles)))
        for bits, kind in ((8, ctypes.c_uint8), (16, ctypes.c_uint16), (32, ctypes.c_uint32)):
            for name in (f"cuMemsetD{bits}", f"cuMemsetD{bits}Async"):
                table[name] = self._memset(name, kind, answer)
        for suffix in ("", "HtoD", "DtoH", "DtoD"):
            table[f"cuMemcpy{suffix}"] = self._memcpy(f"cuMemcpy{suffix}", answer, waits=True)
            table[f"cuMemcpy{suffix}Async"] = self._memcpy(f"cuMemcpy{suffix}Async", answer, waits=False)
        return table

    def runtime(self, r: Any, answer: _Answer) -> dict[str, Callable[..., Any]]:
        """The runtime's, by name."""
        table = {f"cuda{name}": call for name, call in self._calls(answer).items()}
        table["cudaStreamCreate"] = lambda: answer(r.cudaStream_t(self._stream()))
        table["cudaStreamCreateWithFlags"] = lambda flags: answer(r.cudaStream_t(self._stream(flags)))
        table["cudaStreamCreateWithPriority"] = lambda flags, _priority: answer(r.cudaStream_t(self._stream(flags)))
        table["cudaEventCreate"] = lambda: answer(r.cudaEvent_t(next(self._handles)))
        table["cudaEventCreateWithFlags"] = lambda _flags: answer(r.cudaEvent_t(next(self._handles)))
        copy = self._memcpy("cudaMemcpy", answer, waits=True)
        later = self._memcpy("cudaMemcpyAsync", answer, waits=False)
        table["cudaMemcpy"] = lambda to, source, size, _kind: copy(to, source, size)
        table["cudaMemcpyAsync"] = lambda to, source, size, _kind, stream: later(to, source, size, stream)
        for name in ("cudaMemset", "cudaMemsetAsync"):
            table[name] = self._memset(name, ctypes.c_uint8, answer)
        return table

    def _memcpy(self, what: str, answer: _Answer, *, waits: bool) -> Callable[..., Any]:
        def call(to: Any, source: Any, size: int, stream: Any = LEGACY) -> Any:
            return answer(*self.copy(to, source, size, what=what, stream=stream, waits=waits))

        return call

    def _memset(self, what: str, kind: type[Any], answer: _Answer) -> Callable[..., Any]:
        def call(to: Any, value: int, count: int, stream: Any = LEGACY) -> Any:
            return answer(*self.fill(to, bytes(kind(value)), count, what=what, stream=stream))

        return call
