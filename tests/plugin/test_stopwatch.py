"""What times kernels for benchmark checks: which problems share a process, and what is measured again."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from pytest_nvfp4.device.job import KernelSpec
from pytest_nvfp4.device.verdict import CaseVerdict
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.plugin.checks.stopwatch import Stopwatch, Timing, checked
from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.problem import Group, Problem
from tests.device.remote.fakes import source

from .timed_devices import RecordingDevice, SendingDevice

KERNEL = KernelSpec(files=(source(),), main="kernel.py", arch="sm_100a")
OTHER = KernelSpec(files=(source("y = 2\n"),), main="kernel.py", arch="sm_100a")
A, B, C = (Problem(name, (Group(7, 128, 256, 1),), 1) for name in "abc")


@pytest.fixture
def watch(tmp_path: Path) -> Stopwatch:
    return Stopwatch(folder=tmp_path / "jobs", rounds=3, timeout_s=5.0)


def test_what_will_be_asked_for_is_timed_with_the_first(watch: Stopwatch, tmp_path: Path) -> None:
    device = RecordingDevice()
    walls = [watch.time(device, KERNEL, one, others=[A, B, C], base=tmp_path).result.wall_s for one in (A, B, C)]
    assert device.asked == ["abc"] * 2, "a second process times the same"
    assert walls == [pytest.approx(1 / 3, abs=1e-3)] * 3


def test_who_asks_again_is_measured_again_alone(watch: Stopwatch, tmp_path: Path) -> None:
    device = RecordingDevice()
    for one in (A, B, A, A, B, C):
        watch.time(device, KERNEL, one, others=[A, B], base=tmp_path)
    assert device.asked == ["ab", "ab", "a", "a", "a", "a", "b", "b", "c", "c"]


def test_another_kernel_is_another_process(watch: Stopwatch, tmp_path: Path) -> None:
    device = RecordingDevice()
    for kernel in (KERNEL, OTHER):
        watch.time(device, kernel, B, others=[A, B], base=tmp_path)
    assert device.asked == ["ba"] * 4


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SendingDevice:
    monkeypatch.setenv("NVFP4_CLOCKED_LOG", str(tmp_path / "log"))
    return SendingDevice()


def test_a_remote_is_asked_for_what_it_was_sent_in_two_processes(
    watch: Stopwatch, remote: SendingDevice, tmp_path: Path
) -> None:
    kernel = KernelSpec(files=(source("TAKES_US = 20\n"),), main="kernel.py", arch="sm_100a")
    for one in (A, B):
        timing = watch.time(remote, kernel, one, others=[A, B], base=tmp_path)
        assert (
            len(
                checked(
                    timing, one, device=remote, file=tmp_path / "kernel.py", not_run=pytest.skip
                ).measurement.device_us
            )
            == 3
        )
    assert remote.asked == ["a", "a", "b", "b"]
    assert remote.rounds == [(3, 0), (9, 3)] * 2, "launches are counted in the second process"


def test_another_time_in_the_second_process_of_a_remote_fails(
    watch: Stopwatch, remote: SendingDevice, tmp_path: Path
) -> None:
    kernel = KernelSpec(files=(source("TAKES_US = 20\nCOUNTED_US = 40\n"),), main="kernel.py", arch="sm_100a")
    timing = watch.time(remote, kernel, A, others=[A], base=tmp_path)
    with pytest.raises(CheckFailure, match=r"a: suspicious time: a median of .* us in a second one"):
        checked(timing, A, device=remote, file=tmp_path / "kernel.py", not_run=pytest.skip)


@pytest.mark.parametrize(
    ("left_out", "said"), [("device_us", "8 times and 9 samples"), ("samples", "9 times and 8 samples")]
)
def test_a_second_process_that_leaves_rounds_out_fails(
    watch: Stopwatch, remote: SendingDevice, tmp_path: Path, left_out: str, said: str
) -> None:
    """Without times there is no median to compare; without samples no round is judged."""
    remote.left_out = left_out
    kernel = KernelSpec(files=(source("TAKES_US = 20\n"),), main="kernel.py", arch="sm_100a")
    timing = watch.time(remote, kernel, A, others=[A], base=tmp_path)
    with pytest.raises(CheckFailure, match=f"{said} of outputs of 9 timed rounds"):
        checked(timing, A, device=remote, file=tmp_path / "kernel.py", not_run=pytest.skip)


def test_only_a_device_that_never_timed_is_a_reason_to_skip(watch: Stopwatch, tmp_path: Path) -> None:
    timing = watch.time(RecordingDevice(), KERNEL, A, others=[], base=tmp_path)
    absent = timing.result.model_copy(update={"findings": (Finding(kind="device", message="no clock"),)})
    case = timing.verdict.case
    none = absent, CaseVerdict(case, "unavailable")
    reasons: list[str] = []

    def not_run(reason: str) -> NoReturn:
        reasons.append(reason)
        pytest.skip(reason)

    with pytest.raises(pytest.skip.Exception):
        checked(Timing(*none), A, device=RecordingDevice(), file=tmp_path / "kernel.py", not_run=not_run)
    assert reasons == ["no clock"]


def test_what_failed_on_a_remote_is_not_measured_again(watch: Stopwatch, remote: SendingDevice, tmp_path: Path) -> None:
    kernel = KernelSpec(files=(source("TAKES_US = 20\nWRONG = True\n"),), main="kernel.py", arch="sm_100a")
    timing = watch.time(remote, kernel, A, others=[A], base=tmp_path)
    with pytest.raises(CheckFailure, match="outputs wrong"):
        checked(timing, A, device=remote, file=tmp_path / "kernel.py", not_run=pytest.skip)
    assert (remote.asked, timing.second) == (["a"], None)


def test_nothing_is_left_behind(watch: Stopwatch, tmp_path: Path) -> None:
    timing = watch.time(RecordingDevice(), KERNEL, A, others=[A, B], base=tmp_path)
    result, verdict = timing.result, timing.verdict
    assert (result.outputs, verdict.case.problem.name) == ((), "a")
    assert list((tmp_path / "jobs").iterdir()) == []


def test_what_is_wrong_comes_first_and_where_after_it(watch: Stopwatch, tmp_path: Path) -> None:
    """Pytest's short summary has one line of it."""
    timing = watch.time(RecordingDevice(), KERNEL, A, others=[], base=tmp_path)
    wrong = CaseVerdict(
        timing.verdict.case, "failed", [Finding(kind="mismatch", message="group 0: 3 of 9 outputs wrong")]
    )
    with pytest.raises(CheckFailure) as raised:
        checked(
            Timing(timing.result, wrong), A, device=RecordingDevice(), file=tmp_path / "kernel.py", not_run=pytest.skip
        )
    first, last = str(raised.value).splitlines()
    assert "3 of 9 outputs wrong" in first
    assert last == "failed while it was timed on a"
