"""The order in which the clock asks the driver; what the driver does is measured on a GPU (test_gpu.py)."""

from __future__ import annotations

import ctypes

import pytest

from pytest_nvfp4.device.worker.clock import DeviceClock

from .recording_memory import RecordingMemory


@pytest.fixture
def memory() -> RecordingMemory:
    return RecordingMemory()


@pytest.fixture
def clock(memory: RecordingMemory) -> DeviceClock:
    made = DeviceClock(memory, l2_bytes=1 << 20)  # type: ignore[arg-type]
    memory.asked.clear()
    return made


def test_lines_that_a_kernel_made_persistent_are_made_ordinary_before_they_are_pushed_out(
    clock: DeviceClock, memory: RecordingMemory
) -> None:
    clock.flush()
    assert memory.asked == ["cuCtxResetPersistingL2Cache", "cuMemsetD32Async"]


def test_a_round_is_cold_and_held_before_it_is_timed(clock: DeviceClock, memory: RecordingMemory) -> None:
    clock.device_round(lambda: memory.asked.append("the call"), cold=True, expected_call_us=5.0)
    asked = [name for name in memory.asked if name != "cuEventElapsedTime"]
    first = asked.index("cuCtxResetPersistingL2Cache")
    assert asked[0] == "synchronize"
    assert set(asked[1:first]) <= {"cuEventRecord"}
    assert asked[first:] == [
        "cuCtxResetPersistingL2Cache", "cuMemsetD32Async", "cuLaunchKernel", "cuEventRecord", "the call",
        "cuEventRecord", "cuEventQuery", "synchronize",
    ]  # fmt: skip


def test_a_warm_round_leaves_the_cache_alone(clock: DeviceClock, memory: RecordingMemory) -> None:
    clock.device_round(lambda: None, cold=False, expected_call_us=5.0)
    assert not {"cuCtxResetPersistingL2Cache", "cuMemsetD32Async"} & set(memory.asked)


def test_nothing_is_stored_for_nothing(clock: DeviceClock, memory: RecordingMemory) -> None:
    clock.fill16(ctypes.c_uint64(0).value, 7, 0)
    assert memory.asked == []
