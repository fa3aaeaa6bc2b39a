"""Benchmarks of a kernel in one process: each gets the result of a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.device.batch import CompletedJob, can_batch, run_batch
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


def test_one_process_does_all_and_each_gets_its_own() -> None:
    runs = Runs()
    found = run_batch(benchmarks(3), runs)
    assert runs.jobs == [[0, 1, 2]]
    for number, (result, folder) in enumerate(found):
        assert result.job == f"job-{number}"
        assert folder == Path("[0, 1, 2]")
        (measurement,) = result.measurements
        assert (measurement.case, measurement.device_us) == (0, (float(number),))
        assert [(output.case, output.group) for output in result.outputs] == [(0, 0), (0, 1)]
        assert {output.data.read(None) for output in result.outputs} == {bytes([number])}
        assert result.wall_s == 2.0


def test_a_single_job_runs_as_it_is() -> None:
    (one,) = benchmarks(1)
    runs = Runs()
    ((result, _),) = run_batch([one], runs)
    assert result == timed(one)


@pytest.mark.parametrize("ended", ["error", "timeout", "crashed"])
def test_a_process_that_did_not_end_well_blames_nobody(ended: Status) -> None:
    runs = Runs(ended)
    found = run_batch(benchmarks(3), runs)
    assert runs.jobs == [[0, 1, 2], [0], [1], [2]]
    assert [result.status for result, _ in found] == ["passed"] * 3
    assert [result.measurements[0].device_us for result, _ in found] == [(0.0,), (1.0,), (2.0,)]


def test_the_one_that_crashes_is_the_only_one_that_has() -> None:
    runs = Runs(bad=1)
    assert [result.status for result, _ in run_batch(benchmarks(3), runs)] == ["passed", "crashed", "passed"]


@pytest.mark.parametrize("ended", ["cheated", "unsupported", "unavailable"])
def test_what_would_end_all_alike_is_not_tried_again(ended: Status) -> None:
    runs = Runs(ended)
    found = run_batch(benchmarks(3), runs)
    assert runs.jobs == [[0, 1, 2]]
    assert [(result.job, result.status) for result, _ in found] == [(f"job-{number}", ended) for number in range(3)]


def test_all_together_get_the_time_of_the_longest() -> None:
    asked: list[float] = []
    jobs = [one.model_copy(update={"deadline_s": s}) for one, s in zip(benchmarks(2), (5.0, 9.0), strict=True)]

    def run(one: Job) -> CompletedJob:
        asked.append(one.deadline_s)
        return CompletedJob(Result(job=one.id, status="timeout"), Path())

    run_batch(jobs, run)
    assert asked == [9.0, 5.0, 9.0]


def test_who_fits_together() -> None:
    one, other = benchmarks(2)
    assert can_batch(one, other)
    assert can_batch(one, other.model_copy(update={"order_seed": 9, "deadline_s": 1.0}))
    assert not can_batch(job(0), job(1)), "only benchmarks"
    assert not can_batch(one, other.model_copy(update={"row_key": 6})), "a judge could not tell what is due"
    for changed in (job(1, action="benchmark", text="x = 2\n"), job(1, action="benchmark", rounds=7)):
        assert not can_batch(one, changed.model_copy(update={"row_key": 5}))
