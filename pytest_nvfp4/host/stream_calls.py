"""Streams, events, copies and allocations of the CUDA driver and runtime: executed at once, in the order of issue.

Their streams and events are for race detection only (``driver.streams``), because the simulated device completes all
work when it is issued.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.driver.streams import LEGACY, Streams
from pytest_nvfp4.host.device_side import DeviceWork

_NON_BLOCKING: Final = 1
"""``CU_STREAM_NON_BLOCKING``, ``cudaStreamNonBlocking``."""

_Answer = Callable[..., tuple[Any, ...]]
"""Makes the result of a call: its status and values."""


def then(answer: _Answer, act: Callable[..., None]) -> Callable[..., Any]:
    """Return a function that calls ``act`` and returns an answer without values."""

    def call(*args: Any) -> Any:
        act(*args)
        return answer()

    return call


def address_of(pointer: Any) -> int:
    """Return the address of a pointer as the bindings accept it: an int, a CUdeviceptr, or an object with a buffer."""
    with contextlib.suppress(TypeError, ValueError):
        return int(pointer)
    with contextlib.suppress(TypeError, BufferError):
        return ctypes.addressof(ctypes.c_char.from_buffer(pointer))
    raise HostSideError(f"a memory copy got {type(pointer).__name__}: pass an address or a writable buffer")


class StreamCalls:
    """Operations on streams and memory that both bindings offer. ``handles`` numbers new streams and events."""

    def __init__(self, work: DeviceWork, streams: Streams, handles: Iterator[int]) -> None:
        self._work = work
        self._streams = streams
        self._handles = handles

    # ---- operations ----------------------------------------------------------------------------------------------

    def allocate(self, size: int, stream: Any = None) -> int:
        """Allocate memory, in the order of a stream if one is given, and return its address."""
        return self._work.allocate(size, None if stream is None else int(stream))

    def free(self, pointer: Any, stream: Any = None) -> None:
        """Free memory, in the order of a stream if one is given."""
        self._work.free(int(pointer), None if stream is None else int(stream))

    def copy(self, to: Any, source: Any, size: int, *, what: str, stream: Any = LEGACY, waits: bool = True) -> None:
        """Copy memory between device and host in any direction."""
        buffer = ctypes.create_string_buffer(source, len(source)) if isinstance(source, bytes) else None
        start = ctypes.addressof(buffer) if buffer is not None else address_of(source)
        self._work.copy(address_of(to), start, size, what=what, stream=int(stream), waits=waits)

    def fill(self, to: Any, pattern: bytes, count: int, *, what: str, stream: Any = LEGACY) -> None:
        """Fill device memory with ``count`` repetitions of a pattern."""
        self._work.fill(address_of(to), pattern, count, what=what, stream=int(stream))

    def _stream(self, flags: int = 0, _priority: int = 0) -> int:
        return self._streams.add(next(self._handles), blocking=not int(flags) & _NON_BLOCKING)

    def _elapsed(self, start: Any, end: Any) -> float:
        for event in (start, end):  # a device returns an error if one is incomplete, so both are complete behind it
            self._streams.synchronize_event(int(event))
        return math.nan

    def _calls(self, answer: _Answer) -> dict[str, Callable[..., Any]]:
        """Return the functions that both bindings have, by name without prefix."""
        streams = self._streams

        def done(act: Callable[..., None]) -> Callable[..., Any]:
            return then(answer, lambda *args: act(*map(int, args)))

        return {
            "StreamDestroy": lambda _stream: answer(),
            "StreamSynchronize": done(streams.synchronize),
            "StreamQuery": done(streams.synchronize),  # it reports everything as complete
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
        """Return the driver's functions, by name; ``answer`` makes the result of a call."""
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
        """Return the runtime's functions, by name."""
        table = {f"cuda{name}": call for name, call in self._calls(answer).items()}
        table["cudaStreamCreate"] = lambda: answer(r.cudaStream_t(self._stream()))
        table["cudaStreamCreateWithFlags"] = lambda flags: answer(r.cudaStream_t(self._stream(flags)))
        table["cudaStreamCreateWithPriority"] = lambda flags, _priority: answer(r.cudaStream_t(self._stream(flags)))
        table["cudaEventCreate"] = lambda: answer(r.cudaEvent_t(next(self._handles)))
        table["cudaEventCreateWithFlags"] = lambda _flags: answer(r.cudaEvent_t(next(self._handles)))
        copy = self._memcpy("cudaMemcpy", answer, waits=True)
        copy_async = self._memcpy("cudaMemcpyAsync", answer, waits=False)
        table["cudaMemcpy"] = lambda to, source, size, _kind: copy(to, source, size)
        table["cudaMemcpyAsync"] = lambda to, source, size, _kind, stream: copy_async(to, source, size, stream)
        for name in ("cudaMemset", "cudaMemsetAsync"):
            table[name] = self._memset(name, ctypes.c_uint8, answer)
        return table

    def _memcpy(self, what: str, answer: _Answer, *, waits: bool) -> Callable[..., Any]:
        def call(to: Any, source: Any, size: int, stream: Any = LEGACY) -> Any:
            self.copy(to, source, size, what=what, stream=stream, waits=waits)
            return answer()

        return call

    def _memset(self, what: str, kind: type[Any], answer: _Answer) -> Callable[..., Any]:
        def call(to: Any, value: int, count: int, stream: Any = LEGACY) -> Any:
            self.fill(to, bytes(kind(value)), count, what=what, stream=stream)
            return answer()

        return call
