"""A profile job: the harness below a tool, the next best tool where one cannot run, kernels that are wrong or end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec, Profiling
from pytest_nvfp4.device.local import LocalDevice
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.verdict import CaseVerdict, Judge
from pytest_nvfp4.problem import parse_shape
from tests.device.local_jobs import KERNELS
from tests.device.profiling.fake_tools import Step, install

CASE = JobCase(problem=ProblemSpec.of(parse_shape("4x128x128")), family="gpumode")
FORBIDDEN = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"


def profile(
    tmp_path: Path, profiling: Profiling, *, kernel: Path | None = None, deadline_s: float = 300
) -> tuple[Result, CaseVerdict]:
    device = LocalDevice(probe_folder=tmp_path, backend="host")
    spec, base = KernelSpec.from_files(kernel or KERNELS / "honest.py", arch="sm_100a")
    job = Job(id="p", action="profile", kernel=spec, cases=(CASE,), profiling=profiling, deadline_s=deadline_s)
    folder = tmp_path / "job"
    folder.mkdir()
    result = device.run(job, folder=folder, base=base)
    return result, Judge().judge(job, result, folder=folder)[0]


def attempts(result: Result) -> list[tuple[str, str]]:
    assert result.profile is not None
    return [(run.tool, run.state) for run in result.profile.attempts]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH, in front."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.mark.slow
def test_ncu_runs_the_harness_and_its_files_return(programs: Path, tmp_path: Path) -> None:
    calls = install(programs, "ncu", full=Step(), version="9999.1", pages={"raw": "raw page", "details": "details"})
    metrics = ("sm__inst_executed.sum",)
    result, verdict = profile(tmp_path, Profiling(mode="ncu", rounds=2, metrics=metrics, launch_skip=1, launch_count=2))
    assert (result.status, verdict.status) == ("passed", "passed"), result
    assert attempts(result) == [("ncu", "ran")]
    assert result.profile is not None
    (run,) = result.profile.attempts
    assert run.version == "9999.1"
    assert not any(str(tmp_path) in option for option in run.options)
    contents = {
        file.name: file.data.read(tmp_path / "job", source="it", most=100, exact=False) for file in result.profile.files
    }
    assert contents == {"ncu.ncu-rep": b"report", "ncu.raw.csv": b"raw page", "ncu.details.csv": b"details"}
    (case,) = result.profile.cases
    assert len(case.region_us) == 2
    command = json.loads(calls.read_text().splitlines()[1])
    for option, value in {
        "--set": "basic",
        "--nvtx-include": "profile_region/",
        "--launch-skip": "1",
        "--launch-count": "2",
        "--clock-control": "none",
    }.items():
        assert command[command.index(option) + 1] == value
    assert "sm__inst_executed.sum" in command[command.index("--metrics") + 1]


@pytest.mark.slow
def test_without_permission_for_counters_ncu_names_the_launches(programs: Path, tmp_path: Path) -> None:
    install(programs, "ncu", full=Step(report=None, log=FORBIDDEN), few=Step(), version="9999.1")
    result, verdict = profile(tmp_path, Profiling(mode="ncu", warmup=0))
    assert verdict.status == "passed"
    assert attempts(result) == [("ncu", "unavailable"), ("ncu", "ran")]
    assert result.profile is not None
    assert "NVreg_RestrictProfilingToAdminUsers=0" in result.profile.attempts[0].because


@pytest.mark.slow
def test_an_older_ncu_takes_the_place_of_one_whose_counters_are_nan(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tmp_path / "older"
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{older}{os.pathsep}{os.environ['PATH']}")
    install(programs, "ncu", full=Step(), version="9999.2", pages={"raw": '"ID","a"\n"0","nan"\n"1","-nan(ind)"\n'})
    install(older, "ncu", full=Step(), version="9999.1", pages={"raw": '"ID","a"\n"0","1.5"\n'})
    result, _ = profile(tmp_path, Profiling(mode="ncu", warmup=0))
    assert result.profile is not None
    assert [(run.version, run.state) for run in result.profile.attempts] == [
        ("9999.2", "unavailable"),
        ("9999.1", "ran"),
    ]
    assert "2 of 4 counters are NaN" in result.profile.attempts[0].because


@pytest.mark.slow
def test_the_tools_of_a_timeline_are_tried_down_to_torch(programs: Path, tmp_path: Path) -> None:
    unknown = Step(runs=False, report=None, log="Unrecognized GPU UUID", status=1)
    install(programs, "nsys", full=unknown, nvtx=Step(runs=False, report=None, log="no", status=1), version="9999.1")
    result, verdict = profile(tmp_path, Profiling(mode="nsys", warmup=0))
    assert verdict.status == "passed", "torch's profiler has no GPU here, but the kernel ran below it"
    assert attempts(result) == [("nsys", "unavailable"), ("nvtx", "failed"), ("torch", "unavailable")]
    assert result.profile is not None
    assert "Unrecognized GPU UUID" in result.profile.attempts[0].because


@pytest.mark.slow
def test_a_sanitizer_without_a_summary_is_unavailable(programs: Path, tmp_path: Path) -> None:
    install(programs, "compute-sanitizer", full=Step(report=None), version="9999.1")
    result, _ = profile(tmp_path, Profiling(mode="sanitizer", warmup=0))
    assert attempts(result) == [("sanitizer", "unavailable")]
    assert result.profile is not None
    assert "did not finish its report" in result.profile.attempts[0].because


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "status", "state"),
    [
        ("import os; os._exit(3)", "crashed", "failed"),
        ("while True: pass", "timeout", "timeout"),
    ],
)
def test_a_kernel_that_ends_or_hangs_is_said(
    programs: Path, tmp_path: Path, body: str, status: str, state: str
) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text(f"def custom_kernel(data):\n    {body}\n")
    install(programs, "ncu", full=Step(), version="9999.1")
    result, verdict = profile(
        tmp_path, Profiling(mode="ncu", fallback=False), kernel=kernel, deadline_s=5 if state == "timeout" else 100
    )
    assert attempts(result) == [("ncu", state)]
    assert verdict.status == status


@pytest.mark.slow
def test_a_kernel_that_its_defects_end_is_checked_all_the_same(programs: Path, tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text("def custom_kernel(data):\n    raise RuntimeError('CUDA error 719')\n")
    install(
        programs, "compute-sanitizer", full=Step(report=None, log="========= ERROR SUMMARY: 9 errors"), version="9999.1"
    )
    result, verdict = profile(tmp_path, Profiling(mode="sanitizer", warmup=0), kernel=kernel)
    assert attempts(result) == [("sanitizer", "ran")]
    assert verdict.status == "error"
    assert result.profile is not None
    assert [file.name for file in result.profile.files] == ["sanitizer.log"], "without XML, too"


def test_the_simulator_has_no_profiler(tmp_path: Path) -> None:
    spec, base = KernelSpec.from_files(KERNELS / "honest.py", arch="sm_100a")
    job = Job(id="p", action="profile", kernel=spec, cases=(CASE,), profiling=Profiling(mode="ncu"))
    result = SimDevice().run(job, folder=tmp_path, base=base)
    assert result.status == "unavailable"
    assert "nvfp4 model" in result.reason
