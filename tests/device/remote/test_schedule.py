"""Blocks in turn, and their times put together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.base import Batch
from pytest_nvfp4.device.remote.schedule import group_steps, merge_results, steps
from pytest_nvfp4.device.result import Measurement, Result

from .fakes import job


def timed(times: list[float], *, outside: bool | None = None, status: str = "passed") -> Result:
    measurement = Measurement(
        case=0, device_us=tuple(times), host_us=(1.0,), call_us=2.0, late_rounds=1, outside_stream=outside,
        method="m", l2="cold", sets=3, clocks_mhz=(1000,),
    )  # fmt: skip
    return Result(job="j", status=status, measurements=(measurement,))  # type: ignore[arg-type]


def test_blocks_run_in_turn_and_the_order_turns_round() -> None:
    jobs = (job(1, action="benchmark"), job(2, action="benchmark"))
    order = [(step.index, step.block) for step in steps(Batch(jobs=jobs, blocks=3))]
    assert order == [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2)]


def test_other_jobs_run_once_and_first() -> None:
    jobs = (job(1, action="benchmark"), job(2), job(3, action="benchmark"))
    order = [(step.index, step.block) for step in steps(Batch(jobs=jobs, blocks=2))]
    assert order == [(1, 0), (0, 0), (2, 0), (2, 1), (0, 1)]


@given(rounds=st.integers(1, 200), blocks=st.integers(1, 64))
def test_no_round_is_lost_and_no_block_is_too_small(rounds: int, blocks: int) -> None:
    one = job(1, action="benchmark", rounds=rounds)
    made = [step.job.timing.rounds for step in steps(Batch(jobs=(one,), blocks=blocks))]
    assert sum(made) == rounds
    assert len(made) <= blocks
    assert len(made) == 1 or min(made) >= 3


def test_a_turn_of_a_kernel_is_one_process_and_blocks_are_not() -> None:
    def of(text: str, number: int) -> Job:
        return job(number, action="benchmark", text=text).model_copy(update={"row_key": 5})

    jobs = (of("a", 1), of("a", 2), of("b", 1), of("b", 2))
    order = [[step.index for step in several] for several in group_steps(steps(Batch(jobs=jobs, blocks=3)))]
    assert order == [[0, 1], [2, 3], [3, 2], [1, 0], [0, 1], [2, 3]]
    apart = tuple(one.model_copy(update={"row_key": number}) for number, one in enumerate(jobs))
    assert all(len(several) == 1 for several in group_steps(steps(Batch(jobs=apart, blocks=3))))
    assert [len(several) for several in group_steps(steps(Batch(jobs=(job(1), job(2)))))] == [1, 1]


def test_blocks_draw_other_inputs() -> None:
    one = job(1, action="benchmark", seed=5)
    seeds = [step.job.order_seed for step in steps(Batch(jobs=(one,), blocks=4))]
    assert len(set(seeds)) == 4


def test_times_are_put_together_in_order() -> None:
    (measurement,) = merge_results([timed([1, 2]), timed([3]), timed([4, 5])]).measurements
    assert measurement.device_us == (1, 2, 3, 4, 5)
    assert measurement.late_rounds == 3
    assert measurement.clocks_mhz == (1000, 1000, 1000)


@pytest.mark.parametrize(
    ("seen", "together"), [((None, None), None), ((False, None), False), ((False, True), True), ((None, True), True)]
)
def test_one_block_outside_the_stream_is_enough(seen: tuple[bool | None, ...], together: bool | None) -> None:
    (measurement,) = merge_results([timed([1], outside=one) for one in seen]).measurements
    assert measurement.outside_stream is together


def test_a_block_that_failed_is_the_result() -> None:
    assert merge_results([timed([1]), timed([], status="error"), timed([2])]).status == "error"
