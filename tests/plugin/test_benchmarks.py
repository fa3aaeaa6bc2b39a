"""Benchmark checks and their verdicts, on a stand-in device whose clock is made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "tests" / "device" / "kernels"
DEVICE = """
from pytest_nvfp4.device import select
from pytest_nvfp4.device.result import DeviceInfo
from tests.device.remote.loopback.devices import clocked


class Clocked:
    name = "clocked"

    def describe(self):
        return DeviceInfo(
            name="Test stand-in with a made-up clock", capability=(10, 0), torch="0", dsl="0", python="0"
        )

    def unsupported(self, arch):
        return None

    def run(self, job, *, folder, base=None):
        return clocked.run(job, folder)


select.known_names = lambda: ["auto", "local", "sim", "none", "clocked"]
select._third_party = lambda name: (lambda *, probe_folder: Clocked())
"""
TWO = ("--nvfp4-problem=7x128x256", "--nvfp4-problem=9x128x256")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("NVFP4_CLOCKED_LOG", str(pytester.path / "log"))
    pytester.makepyfile(clocked_device=DEVICE)
    pytester.syspathinsert()
    takes(pytester, 20.0)
    return pytester


def takes(project: pytest.Pytester, us: float) -> None:
    text = (KERNELS / "honest.py").read_text()
    project.path.joinpath("kernel.py").write_text(f"{text}\n\nTAKES_US = {us}\n")


def run(project: pytest.Pytester, *args: str) -> pytest.RunResult:
    return project.runpytest_subprocess(
        "-p", "clocked_device", "-p", "no:hypothesispytest", "-p", "no:cacheprovider", "--nvfp4-device=clocked",
        "kernel.py", "-k", "benchmark", f"--benchmark-storage={project.path / 'kept'}", *args,
    )  # fmt: skip


@pytest.mark.slow
def test_the_problems_of_a_kernel_are_judged_together(project: pytest.Pytester) -> None:
    assert run(project, *TWO, "--benchmark-autosave", "--nvfp4-html=r.html").parseoutcomes()["passed"] == 2
    told = "Measured on another device, Test stand-in with a made-up clock: "
    assert (project.path / "r.html").read_text().count(told) == 2, "no point on the roofline of a B200"
    same = run(project, *TWO, "--benchmark-compare")
    assert same.parseoutcomes()["passed"] == 2
    same.stdout.fnmatch_lines(["*kernel.py geomean: *, same *"])
    takes(project, 20.8)
    slower = run(project, *TWO, "--benchmark-compare")
    assert slower.parseoutcomes()["failed"] == 2
    slower.stdout.fnmatch_lines(["*slower than the baseline on*", "*kernel.py geomean: *, slower *"])
    takes(project, 19.2)
    faster = run(project, *TWO, "--benchmark-compare")
    assert faster.parseoutcomes()["passed"] == 2
    faster.stdout.fnmatch_lines(["*kernel.py geomean: *, faster *"])


@pytest.mark.slow
def test_a_part_of_the_problems_has_no_common_verdict(project: pytest.Pytester) -> None:
    run(project, TWO[0], "--benchmark-autosave")
    result = run(project, *TWO, "--benchmark-compare")
    assert result.parseoutcomes()["passed"] == 2
    (line,) = [line for line in result.outlines if " geomean: " in line]
    assert line.endswith("no common baseline")


@pytest.mark.slow
def test_slower_by_less_than_the_marker_of_a_problem_is_passed(project: pytest.Pytester) -> None:
    run(project, *TWO, "--benchmark-autosave")
    takes(project, 20.8)
    assert run(project, *TWO, "--benchmark-compare", "--nvfp4-threshold=10").parseoutcomes()["passed"] == 2


def processes(project: pytest.Pytester) -> list[list[str]]:
    """The problems of each process that timed some, in order."""
    return [json.loads(line)[2] for line in (project.path / "log").read_text().splitlines()]


@pytest.mark.slow
def test_the_problems_of_a_kernel_share_a_process(project: pytest.Pytester) -> None:
    """It is compiled once for each of its two measurements; and what is not asked for is not timed."""
    project.path.joinpath("other.py").write_text(project.path.joinpath("kernel.py").read_text())
    assert run(project, *TWO, "other.py").parseoutcomes()["passed"] == 4
    assert processes(project) == [["7x128x256", "9x128x256"]] * 4
    project.path.joinpath("log").unlink()
    assert run(project, *TWO, "--deselect=kernel.py::benchmark[7x128x256]").parseoutcomes()["passed"] == 1
    assert processes(project) == [["9x128x256"]] * 2


@pytest.mark.slow
def test_test_processes_side_by_side_time_nothing_and_say_so(project: pytest.Pytester) -> None:
    skipped = run(project, TWO[0], "-n2", "-rs")
    assert skipped.parseoutcomes() == {"skipped": 1}
    skipped.stdout.fnmatch_lines(["*not measured, as test processes run beside each other (-n)*"])
    required = run(project, TWO[0], "-n2", "--nvfp4-require-device")
    assert required.parseoutcomes()["failed"] == 1
    required.stdout.fnmatch_lines(["*run benchmarks without xdist (--nvfp4-require-device)*"])
    assert not (project.path / "log").exists(), "nothing was timed"
    assert run(project, TWO[0], "-n0").parseoutcomes()["passed"] == 1


HOPPER = """
from pytest_nvfp4.device import select
from pytest_nvfp4.device.result import DeviceInfo


class Hopper:
    name = "local"

    def describe(self):
        return DeviceInfo(name="Test stand-in", capability=(9, 0), torch="0", dsl="0", python="0")

    def unsupported(self, arch):
        return None if arch == "sm_90a" else f"the kernel is for {arch}, and Test stand-in is sm_90"


select.select = lambda name, **more: Hopper()
"""


@pytest.mark.slow
def test_a_kernel_for_another_gpu_is_not_timed_and_says_why(project: pytest.Pytester) -> None:
    project.makepyfile(hopper_device=HOPPER)
    result = project.runpytest_subprocess(
        "-p", "hopper_device", "-p", "no:hypothesispytest", "-p", "no:cacheprovider", "kernel.py", "-k", "benchmark",
        "--nvfp4-require-device", TWO[0],
    )  # fmt: skip
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(
        ["not run: the kernel is for sm_100a, and Test stand-in is sm_90, and the simulator has no clock*"]
    )
    assert "Benchmark fixture was not used" not in result.stdout.str(), "its failure says so already"


BROKEN = """
from pytest_nvfp4.device import select
from pytest_nvfp4.device.base import DeviceUnavailableError


class Broken:
    name = "local"

    def describe(self):
        raise DeviceUnavailableError("no local GPU can be used: there is no device behind it")

    def unsupported(self, arch):
        self.describe()


select.select = lambda name, **more: Broken()
"""


@pytest.mark.slow
def test_a_gpu_that_cannot_be_used_is_said_in_words(project: pytest.Pytester) -> None:
    project.makepyfile(broken_device=BROKEN)
    result = project.runpytest_subprocess(
        "-p", "broken_device", "-p", "no:hypothesispytest", "-p", "no:cacheprovider", "kernel.py", "-k", "benchmark",
        "--nvfp4-require-device", TWO[0],
    )  # fmt: skip
    assert result.parseoutcomes()["failed"] == 1
    assert "Traceback" not in result.stdout.str()
    assert "DeviceUnavailableError" not in result.stdout.str()
    result.stdout.fnmatch_lines(["not run: *there is no device behind it, and the simulator has no clock*"])
