"""Stand-ins that run benchmark jobs."""

from __future__ import annotations

from pathlib import Path

from pytest_nvfp4.device.batch import CompletedJob
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.result import Blob, GroupOutput, Measurement, Result, Status
from pytest_nvfp4.finding import Finding

from .remote.fakes import job


def timed(one: Job, *, status: Status = "passed") -> Result:
    """Times and outputs that say which problem they are of, by the problem's seed."""
    measurements, outputs = [], []
    for case, of in enumerate(one.cases):
        seed = of.problem.seed
        measurements.append(
            Measurement(
                case=case, device_us=(float(seed),), host_us=(1.0,), call_us=2.0, late_rounds=0, method="m", l2="cold",
                sets=3,
            )
        )  # fmt: skip
        blob = Blob.inlined(bytes([seed]))
        outputs += [
            GroupOutput(call=7, case=case, group=group, rows=1, columns=1, data=blob, late_sha256=None, returned="c")
            for group in range(2)
        ]
    found = (Finding(kind="x", message="said"),)
    return Result(
        job=one.id, status=status, measurements=tuple(measurements), outputs=tuple(outputs), findings=found, wall_s=6.0
    )


class Runs:
    """Runs jobs; those with several cases, or with the problem ``bad``, end as they are told to."""

    def __init__(self, several: Status = "passed", *, bad: int | None = None) -> None:
        self.several = several
        self.bad = bad
        self.jobs: list[list[int]] = []

    def __call__(self, one: Job) -> CompletedJob:
        seeds = [case.problem.seed for case in one.cases]
        self.jobs.append(seeds)
        if self.bad in seeds:
            return CompletedJob(timed(one, status="crashed"), Path(str(seeds)))
        return CompletedJob(timed(one, status=self.several if len(seeds) > 1 else "passed"), Path(str(seeds)))


def benchmarks(count: int) -> list[Job]:
    return [job(number, action="benchmark").model_copy(update={"row_key": 5}) for number in range(count)]
