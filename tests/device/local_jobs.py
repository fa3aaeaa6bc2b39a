"""Verify jobs on torch's stand-in device."""

from __future__ import annotations

from pathlib import Path

from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.local import LocalDevice
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.device.verdict import CaseVerdict, Judge
from pytest_nvfp4.problem import parse_shape

KERNELS = Path(__file__).parent / "kernels"
CASES = tuple(
    JobCase(problem=ProblemSpec.of(parse_shape(shape)), family=family)
    for shape in ("40x128x256", "7x128x256,130x128x512")
    for family in ("pow2_exact", "gpumode")
)


def verify(
    device: LocalDevice, tmp_path: Path, kernel: Path, *, seed: int = 7, arch: str = "sm_100a", deadline_s: float = 900
) -> tuple[Result, list[CaseVerdict]]:
    spec, base = KernelSpec.from_files(kernel, arch=arch)
    job = Job(id="t", action="verify", kernel=spec, cases=CASES, order_seed=seed, deadline_s=deadline_s)
    folder = tmp_path / f"job-{seed}"
    folder.mkdir()
    result = device.run(job, folder=folder, base=base)
    return result, Judge().judge(job, result, folder=folder)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "kernel.py"
    path.write_text(text)
    return path
