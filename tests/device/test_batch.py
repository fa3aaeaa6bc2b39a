"""Benchmarks of a kernel in one process: each gets the result of a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.device.batch import CompletedJob, can_batch, run_batch
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.result import Result, Status

from .batches import Runs, benchmarks, timed
from .remote.fakes import job


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
        assert {output.data.read(None, source="C", most=1) for output in result.outputs} == {bytes([number])}
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
