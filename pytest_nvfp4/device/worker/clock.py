"""Measure device time below torch: events, an L2 flush and a gate, through a separate libcuda handle.

A kernel below about 20 us takes less time than its launch, so a pair of events around a call would time the launch.
Therefore a gate (a kernel that spins on ``%globaltimer``) holds the stream while the host enqueues the start event, the
call's work and the end event; when the gate opens, all of it runs back to back. Sources: CUDA Driver API, "Event
Management", "Stream Management", "Context Management" (cuCtxResetPersistingL2Cache); PTX ISA, "Special Registers:
%globaltimer".

Some rounds take 0.8 to 1 us longer than others: every second or every fourth, if all rounds issue the same commands
(measured on an H200 with kernels of 20 to 32 us; the cause is unknown). A random number of event records before each
round breaks the pattern if a call is one launch (the correlation of a round with the fourth after it fell from 0.45 to
0.02), but not if it has several launches. There, verdicts use means of four rounds (``bench.regression``).
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pytest_nvfp4.device.worker.memory import CudaMemory

GATE_NAME = "nvfp4_gate"
GATE = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry nvfp4_gate(.param .u64 nanoseconds)
{
    .reg .u64 %t<4>;
    .reg .pred %p1;
    ld.param.u64 %t1, [nanoseconds];
    mov.u64 %t2, %globaltimer;
    add.u64 %t2, %t2, %t1;
wait_here:
    mov.u64 %t3, %globaltimer;
    setp.lt.u64 %p1, %t3, %t2;
    @%p1 bra wait_here;
    ret;
}
\0"""
"""A kernel that holds its stream for a number of nanoseconds."""

_FLUSH_FACTOR = 3
"""Size of the write that flushes L2, in L2 caches; the margin allows for its undocumented replacement policy."""
_LEAST_L2_BYTES = 32 << 20
_GATE_MARGIN = 2.0
_LEAST_GATE_US = 60.0
_LONGEST_GATE_US = 20_000.0
_STREAM_NON_BLOCKING = 1
"""``CU_STREAM_NON_BLOCKING``: the stream does not synchronise with the legacy default stream."""
_PEEK_BYTES = 1 << 16
_MOST_SCATTER_RECORDS = 64
_PEEK_GATE_US = 50_000.0
_PEEK_POLL_S = 0.0005


@dataclass(frozen=True, slots=True)
class Round:
    """One timed call.

    Attributes:
        device_us: Microseconds from the start event to the end event on the legacy default stream.
        late: Whether the gate opened before the host had enqueued all work, so that ``device_us`` includes host time.
    """

    device_us: float
    late: bool


class DeviceClock:
    """Times calls on the current device.

    Args:
        memory: The device's memory, whose libcuda handle and context are used.
        l2_bytes: Size of the L2 cache in bytes.
    """

    fixed: ClassVar = True  # see `isolation.seal.inventory`

    def __init__(self, memory: CudaMemory, *, l2_bytes: int) -> None:
        self._memory = memory
        self._call = memory.driver_call
        self._now = time.perf_counter  # bound before a kernel can replace it
        module, self._gate = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), GATE)
        self._call("cuModuleGetFunction", ctypes.byref(self._gate), module, GATE_NAME.encode())
        self._draw = random.Random()
        self._start, self._end, self._between = (self._event() for _ in range(3))
        self._flush_bytes = _FLUSH_FACTOR * max(l2_bytes, _LEAST_L2_BYTES)
        self._scratch = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(self._scratch), ctypes.c_size_t(self._flush_bytes))
        self._aside = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(self._aside), ctypes.c_uint(_STREAM_NON_BLOCKING))
        self._pinned = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(self._pinned), ctypes.c_size_t(_PEEK_BYTES), ctypes.c_uint(0))

    def _event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
        return event

    def _record(self, event: ctypes.c_void_p) -> None:
        self._call("cuEventRecord", event, None)

    def _elapsed_us(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        value = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(value), start, end)
        return value.value * 1e3

    def flush(self) -> None:
        """Enqueue a write of three times the L2 cache, which replaces its content.

        Lines that a kernel has marked as persisting (an access policy window) survive such a write, so they are reset
        to normal first. Measured on an H200: a copy whose input such a window held in L2 took 18.2 us after the write
        alone, and 24.8 us with the reset. A driver without persisting lines returns an error, which is ignored.
        """
        self._memory.driver_status("cuCtxResetPersistingL2Cache")
        self._call(
            "cuMemsetD32Async", self._scratch, ctypes.c_uint(0x5A5A5A5A), ctypes.c_size_t(self._flush_bytes // 4), None
        )

    def fill16(self, address: int, value: int, count: int) -> None:
        """Enqueue a fill of ``count`` 16-bit elements."""
        if count:
            self._call(
                "cuMemsetD16Async", ctypes.c_uint64(address), ctypes.c_ushort(value), ctypes.c_size_t(count), None
            )

    def _hold(self, microseconds: float) -> None:
        """Enqueue the gate."""
        nanoseconds = ctypes.c_uint64(int(microseconds * 1e3))
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(nanoseconds))
        one = ctypes.c_uint(1)
        self._call("cuLaunchKernel", self._gate, one, one, one, one, one, one, ctypes.c_uint(0), None, arguments, None)

    def device_round(self, call: Callable[[], Any], *, cold: bool, expected_call_us: float) -> Round:
        """Time one call on the device.

        Args:
            cold: Whether to flush L2 first.
            expected_call_us: Microseconds that the call takes on the host while nothing holds the device; the gate
                stays closed twice as long. It must not be the time of the last gated call: a call that waits for the
                device also waits for the gate, which would then grow without bound.
        """
        self._memory.synchronize()
        for _ in range(self._draw.randrange(_MOST_SCATTER_RECORDS)):
            self._record(self._between)
        if cold:
            self.flush()
        self._hold(min(max(_LEAST_GATE_US, _GATE_MARGIN * expected_call_us), _LONGEST_GATE_US))
        self._record(self._start)
        call()
        self._record(self._end)
        late = self._passed(self._start)
        self._memory.synchronize()
        return Round(self._elapsed_us(self._start, self._end), late)

    def _passed(self, event: ctypes.c_void_p) -> bool:
        return self._memory.driver_status("cuEventQuery", event) == 0

    def host_round(self, call: Callable[[], Any], *, cold: bool) -> tuple[float, float]:
        """Return the microseconds on the host until all work had ended, and until the call returned; idle before."""
        if cold:
            self.flush()
        self._memory.synchronize()
        before = self._now()
        call()
        returned = self._now()
        self._memory.synchronize()
        return (self._now() - before) * 1e6, (returned - before) * 1e6

    def plain_call(self, call: Callable[[], Any]) -> Any:
        """Make one call on an idle device that has just run the gate, wait for its work, and return its result."""
        self._memory.synchronize()
        self._hold(_LEAST_GATE_US)
        self._memory.synchronize()
        returned = call()
        self._memory.synchronize()
        return returned

    def ran_outside(self, call: Callable[[], Any], *, watched: list[tuple[int, bytes]], host_us: float) -> bool | None:
        """Return whether a call's work reached memory while the timed stream, the legacy default stream, was held.

        Args:
            watched: Addresses of outputs with the bytes that they hold before the call; a part of each is compared.
            host_us: Microseconds that a call takes until all of its work has ended.

        Returns:
            True if events on that stream do not measure the work. None if the gate opened too early to know, because
            the call itself waits for the stream.
        """
        self._memory.synchronize()
        self._hold(_PEEK_GATE_US + 4 * host_us)
        self._record(self._start)
        call()
        until = self._now() + max(2 * host_us, 2000.0) * 1e-6
        while self._now() < until and not self._passed(self._start):
            time.sleep(_PEEK_POLL_S)
        seen = any(self._peek(address, len(before)) != before[:_PEEK_BYTES] for address, before in watched)
        opened = self._passed(self._start)
        self._memory.synchronize()
        return None if opened else seen

    def ran_after(self, call: Callable[[], Any], *, outputs: list[tuple[int, int]], host_us: float) -> bool:
        """Return whether a call's work wrote outputs after the last of its work on the legacy default stream.

        Such work runs on a stream that waits for the timed one without the reverse, so it neither starts while the
        timed stream is held nor delays the end event. A separate stream copies the outputs after the end event, and the
        copies are compared with the outputs once the whole device is idle.

        Args:
            call: The call, whose outputs hold poison.
            outputs: Address and size in bytes of each output.
            host_us: Microseconds that a call takes until all of its work has ended.
        """
        self._memory.synchronize()
        self._hold(min(max(_LEAST_GATE_US, _GATE_MARGIN * host_us), _LONGEST_GATE_US))
        call()
        self._record(self._end)
        self._call("cuStreamWaitEvent", self._aside, self._end, ctypes.c_uint(0))
        copied, place = [], 0
        for address, size in outputs:
            if place + size > self._flush_bytes:
                break
            target = (self._scratch.value or 0) + place
            self._call(
                "cuMemcpyDtoDAsync_v2",
                ctypes.c_uint64(target),
                ctypes.c_uint64(address),
                ctypes.c_size_t(size),
                self._aside,
            )
            copied.append((target, address, size))
            place += size
        self._memory.synchronize()
        return any(
            self._memory.read(target, size) != self._memory.read(address, size) for target, address, size in copied
        )

    def _peek(self, address: int, size: int) -> bytes:
        """Read memory on a stream that waits for no other one."""
        size = min(size, _PEEK_BYTES)
        self._call("cuMemcpyDtoHAsync_v2", self._pinned, ctypes.c_uint64(address), ctypes.c_size_t(size), self._aside)
        self._call("cuStreamSynchronize", self._aside)
        return ctypes.string_at(self._pinned.value or 0, size)
