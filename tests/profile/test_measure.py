"""A profile of a kernel on a device: what ncu wrote is read, and a wrong kernel is said."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec, Profiling
from pytest_nvfp4.device.local import LocalDevice
from pytest_nvfp4.device.remote.base import Batch, Place
from pytest_nvfp4.device.remote.executor import execute_batch, job_runner
from pytest_nvfp4.device.remote.serialization import pack_result, unpack_result
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.problem import parse_shape
from pytest_nvfp4.profile.chip_metrics import chip_metrics
from pytest_nvfp4.profile.measure import Request, lacking, profile_kernel
from pytest_nvfp4.profile.metrics import METRICS
from tests.device.local_jobs import KERNELS
from tests.device.profiling.fake_tools import Step, install
from tests.profile.reports import raw_page

CASE = JobCase(problem=ProblemSpec.of(parse_shape("4x128x128")), family="gpumode")
UNITS = {"gpu__time_duration.sum": "ns", "dram__bytes_read.sum": "byte"}


class Elsewhere:
    """The far side of a remote, with everything that it sends as text."""

    name = "elsewhere"

    def run(self, job: Job, *, folder: Path, base: Path | None = None) -> Result:  # noqa: ARG002
        sent = execute_batch(Batch(jobs=(job,)), run=job_runner("host"), place=Place())
        return unpack_result(pack_result(sent)).results[0]


@pytest.mark.slow
@pytest.mark.parametrize("right", [True, False])
def test_ncu_s_pages_are_read_and_the_kernel_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, right: bool
) -> None:
    page = raw_page([{"gpu__time_duration.sum": "2,000", "dram__bytes_read.sum": "nan"}], UNITS)
    install(tmp_path / "bin", "ncu", full=Step(), version="9999.1", pages={"raw": page, "details": page})
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    kernel = KERNELS / "honest.py"
    if not right:
        kernel = tmp_path / "kernel.py"
        kernel.write_text("def custom_kernel(data):\n    return [c for _, _, c in data[0]]\n")
    spec, base = KernelSpec.from_files(kernel, arch="sm_100a")
    asked = Profiling(mode="ncu", metrics=("sm__pipe_tensor_op_hmma_cycles_active.avg",))
    folder, out = tmp_path / "job", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    device: Any = LocalDevice(probe_folder=tmp_path, backend="host") if right else Elsewhere()
    request = Request("kernel.py", spec, base, CASE, asked, 300)
    profile = profile_kernel(request, device, folder=folder, out=out)
    assert profile.verdict is not None
    assert profile.verdict.status == ("passed" if right else "failed"), profile.verdict
    assert [run.state for run in profile.attempts] == ["ran"]
    (launch,) = profile.launches
    assert launch.value("duration") == 2
    assert launch.value("dram_read") is None
    assert "GB100 has no metric" in launch.counter("sm__pipe_tensor_op_hmma_cycles_active.avg").because
    assert {artifact.name for artifact in profile.artifacts} == {"ncu.ncu-rep", "ncu.raw.csv", "ncu.details.csv"}
    assert (out / "ncu.raw.csv").read_text() == page


def test_every_shared_metric_has_a_name_that_hopper_or_blackwell_knows() -> None:
    """The list is NVIDIA's own, of the libnvperf_host that torch installs; a name that both lack is misspelled."""
    hopper, blackwell = chip_metrics("GH100"), chip_metrics("GB100")
    unknown = [name for known in METRICS for name in known.counters if hopper.lacks(name) and blackwell.lacks(name)]
    assert unknown == []


def test_a_name_that_a_chip_lacks_is_said() -> None:
    fallback = "sm__pipe_tensor_op_hmma_cycles_active.avg"
    assert not lacking([fallback], "sm_90a")
    assert "GB100 has no metric" in lacking([fallback], "sm_100a")[fallback]
    wrong = "dram__bytes_read.total"
    assert "no rollup 'total'" in lacking([wrong], "sm_90a")[wrong]
    assert not lacking(["launch__registers_per_thread", "gpu__time_duration.sum"], "sm_100a")
