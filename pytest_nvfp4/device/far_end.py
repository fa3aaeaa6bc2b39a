"""Check that a kernel's offsets in a C of more than 2^32 bytes do not overflow, in the simulator."""

from __future__ import annotations

from pathlib import Path

from pytest_nvfp4.device.base import Device
from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec, Simulating
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.temporary import folder_in

DEADLINE_S = 30.0
CASE = JobCase(problem=ProblemSpec(name="57345x57344x256", sizes=((57_345, 57_344, 256, 1),), seed=0), family="zeros")
"""Stands for the check in caches; the worker makes the tensors (``worker.far_end``)."""


def overflows(device: Device, kernel: KernelSpec, *, folder: Path, base: Path | None) -> list[Finding] | None:
    """Return the overflow of an offset, if there is one; None if the check did not run to its end.

    Args:
        folder: Folder for the files of the job, which are removed.
        base: The folder that the kernel's files are relative to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with folder_in(folder, "job-") as place:
        job = Job(
            id=place.name,
            action="simulate",
            kernel=kernel,
            cases=(CASE,),
            simulating=Simulating(outputs=False, far_end=True),
            deadline_s=DEADLINE_S,
        )
        result = device.run(job, folder=place, base=base)
    if result.status != "passed":
        return None
    return [finding for report in result.cases for finding in report.findings]
