"""Records of a profiler, which is made up here; what CUPTI records is seen on a GPU only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_nvfp4.device.worker.clock import GATE_NAME
from pytest_nvfp4.device.worker.launch_counter import LaunchCounter, NotCountedError

GATE = ("kernel", GATE_NAME)
GEMM = ("kernel", "gemm")
FILL = ("gpu_memset", "Memset (Device)")


def before_2_12(kind: str) -> dict[str, Any]:
    """What the events of torch before 2.12 tell of their kind: where it was, and whether it is an annotation."""
    return {
        "device_type": lambda: "DeviceType.CPU" if kind == "cuda_runtime" else "DeviceType.CUDA",
        "is_user_annotation": lambda: kind == "gpu_user_annotation",
    }


class Counter(LaunchCounter):
    """Records given activities, in order, 1 us apart."""

    def __init__(self, *activities: tuple[str, str], old: bool = False) -> None:
        self.running = False
        self._missing = None
        self._config = self._cuda = None
        self._events = [
            SimpleNamespace(
                **(before_2_12(kind) if old else {"activity_type": lambda kind=kind: kind}),
                name=lambda name=name: name,
                start_ns=lambda at=at: 10**18 + 1000 * at,
                duration_ns=lambda: 900,
            )
            for at, (kind, name) in enumerate(activities)
        ]
        self._prepare = lambda *_: None
        self._enable = lambda *_: self._switch(on=True)
        self._disable = self._end

    def _switch(self, *, on: bool) -> None:
        assert self.running != on
        self.running = on

    def _end(self) -> Any:
        self._switch(on=False)
        return SimpleNamespace(events=lambda: reversed(self._events))


def names(counter: LaunchCounter, *, flushed: bool = True) -> list[str]:
    returned, works = counter.record(lambda: 7, flushed=flushed)
    assert returned == 7
    assert not works or works[0]["start_ns"] == 0
    return [work["name"] for work in works]


@pytest.mark.parametrize("old", [False, True])
def test_only_the_clocks_own_work_is_left_out(old: bool) -> None:
    assert names(Counter(FILL, GATE, GEMM, old=old)) == ["gemm"]
    assert names(Counter(FILL, GATE, GEMM, FILL, GATE, old=old)) == ["gemm", FILL[1], GATE_NAME], "the kernel's own"
    assert names(Counter(FILL, GATE, old=old), flushed=False) == [FILL[1]]
    assert names(Counter(GATE, old=old)) == []


@pytest.mark.parametrize("old", [False, True])
def test_what_is_no_work_is_left_out(old: bool) -> None:
    none = [("gpu_user_annotation", "x"), ("cuda_sync", "Context Sync"), ("cuda_runtime", "cudaLaunchKernel")]
    assert names(Counter(FILL, none[0], GATE, *none[1:], GEMM, old=old)) == ["gemm"]


@pytest.mark.parametrize("old", [False, True])
def test_copies_and_fills_are_told_from_kernels(old: bool) -> None:
    copy = ("gpu_memcpy", "Memcpy DtoD (Device -> Device)")
    _, works = Counter(GATE, copy, FILL, ("kernel", "Memset"), old=old).record(lambda: None, flushed=False)
    assert [work["kind"] for work in works] == ["memcpy", "memset", "kernel"]


@pytest.mark.parametrize("seen", [(), (GEMM,), (FILL, GEMM)])
def test_a_record_without_the_gate_is_no_record(seen: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(NotCountedError, match="did not record the clock's own launch"):
        names(Counter(*seen))


def test_a_kernel_that_raises_stops_the_profiler() -> None:
    counter = Counter(GATE)
    with pytest.raises(ZeroDivisionError):
        counter.record(lambda: 1 // 0, flushed=False)
    assert not counter.running


def test_a_profiler_that_fails_is_a_reason() -> None:
    counter = Counter(GATE)
    counter._switch(on=True)
    with pytest.raises(NotCountedError, match="does not start"):
        names(counter)


def test_too_many_launches_are_a_reason() -> None:
    with pytest.raises(NotCountedError, match="2001 kernels"):
        names(Counter(GATE, *[GEMM] * 2001), flushed=False)


def test_torch_without_cupti_is_a_reason_and_its_functions_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    autograd = pytest.importorskip("torch.autograd")
    activities = {autograd.ProfilerActivity.CPU}
    monkeypatch.setattr(autograd, "_supported_activities", lambda: activities)
    with pytest.raises(NotCountedError, match="without CUPTI"):
        names(LaunchCounter())
    activities.add(autograd.ProfilerActivity.CUDA)
    counter = LaunchCounter()
    counter._cuda = autograd.ProfilerActivity.CPU  # the real profiler, which sees no GPU here
    with pytest.raises(NotCountedError, match="did not record the clock's own launch"):
        names(counter)
