"""A job that is run and judged, with the inputs that it needs."""

from __future__ import annotations

from pathlib import Path

from pytest_nvfp4.contracts.own.run import ContractError
from pytest_nvfp4.device.base import Device
from pytest_nvfp4.device.given import with_given
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.device.verdict import CaseVerdict, Judge
from pytest_nvfp4.finding import Finding


def run_and_judge(
    device: Device, job: Job, judge: Judge | None, *, folder: Path, base: Path | None
) -> tuple[Job, Result, list[CaseVerdict]]:
    """Run a job with the inputs that it needs, and return it, its result and the verdicts of its cases.

    What a contract of the user's own does wrong is the one finding of each case. Without a ``judge`` there are no
    verdicts else.
    """
    result: Result | None = None
    try:
        job = with_given(job)
        result = device.run(job, folder=folder, base=base)
        return job, result, [] if judge is None else judge.judge(job, result, folder=folder)
    except ContractError as error:
        finding = Finding("contract", error.message, file=error.file, line=error.line)
        device_info = None if result is None else result.device
        failed = Result(job=job.id, status="error", findings=(finding,), device=device_info)
        return job, failed, [CaseVerdict(case, "error", [finding]) for case in job.cases]
