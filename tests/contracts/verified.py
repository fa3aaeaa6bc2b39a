"""Verify kernels of GPU MODE's tasks in the simulator."""

from __future__ import annotations

import shutil
from pathlib import Path

from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.verdict import CaseVerdict, Judge
from pytest_nvfp4.problem import Group, Problem

KERNELS = Path(__file__).parent / "kernels"
SMALL = {
    "gemm": Group(256, 128, 512, 2),
    "dual_gemm": Group(128, 128, 512, 2),
    "gemv": Group(128, 1, 256, 2),
}
"""A small problem of each task, with two batches."""


def small(task: str) -> Problem:
    """Return a small problem of a task."""
    return Problem("small", (SMALL[task],), contract=f"nvfp4_{task}")


def verified(
    kernel: Path, problem: Problem, folder: Path, *families: str, torch_operators: bool = False
) -> list[CaseVerdict]:
    """Verify a kernel that may import the ones of ``KERNELS``, on some input families."""
    sources = folder / "kernel"
    shutil.copytree(KERNELS, sources, ignore=shutil.ignore_patterns("__pycache__"))
    main = shutil.copy(kernel, sources / f"submitted_{kernel.name}")
    spec, base = KernelSpec.from_files(
        main, others=sources.glob("*.py"), arch="sm_100a", torch_operators=torch_operators
    )
    cases = tuple(JobCase(problem=ProblemSpec.of(problem), family=family) for family in families)
    job = Job(id="t", action="verify", kernel=spec, cases=cases, order_seed=7, row_key=23, deadline_s=300)
    place = folder / "job"
    place.mkdir()
    result = SimDevice().run(job, folder=place, base=base)
    return Judge().judge(job, result, folder=place)
