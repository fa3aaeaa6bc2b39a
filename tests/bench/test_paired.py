"""Two kernels timed in turns: the interval of their ratio."""

from __future__ import annotations

import math
import random

import pytest

from pytest_nvfp4.bench.paired import Interval, in_turns, ratio_interval
from pytest_nvfp4.bench.regression import Policy
from pytest_nvfp4.device.result import Measurement
from pytest_nvfp4.problem import parse_shape

PROBLEM = parse_shape("128x128x256")
ROUNDS, TURNS = 60, 4
POLICY = Policy(tail_draws=2)


def measured(times: list[float]) -> Measurement:
    return Measurement(
        case=0, device_us=tuple(times), host_us=(), call_us=1.0, late_rounds=0, method="m", l2="cold", sets=3
    )


def interval(ratio: float, draw: random.Random, *, process: float = 0.0, drift: float = 1.0) -> Interval:
    """The interval of two kernels in turns A B, B A, ...; ``process`` is the spread of processes."""
    times: tuple[list[float], list[float]] = ([], [])
    ran = 0
    for turn in range(TURNS):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            us = 20.0 * (ratio if side else 1.0) * drift**ran * (1 + process * draw.gauss(0, 1))
            ran += 1
            times[side].extend(us * (1 + 0.001 * draw.gauss(0, 1)) for _ in range(ROUNDS // TURNS))
    one, other = map(measured, times)
    return ratio_interval([one], [other], [PROBLEM], turns=TURNS, policy=POLICY)


def test_a_gain_shows_also_under_a_drift_that_both_share() -> None:
    for drift in (1.0, 1.002):
        found = interval(0.98, random.Random(1), drift=drift)
        assert found.low < 0.98 < found.high < 0.985, found


def test_rounds_of_one_process_are_no_independent_evidence() -> None:
    draw = random.Random(2)
    wrong = sum(not found.low <= 1 <= found.high for found in (interval(1.0, draw, process=0.01) for _ in range(200)))
    assert wrong <= 20, "95 % of the intervals hold the true ratio"


def test_with_few_turns_nothing_is_known_of_processes() -> None:
    one, other = measured([20.0 + 0.01 * n for n in range(12)]), measured([10.0 + 0.01 * n for n in range(12)])
    found = ratio_interval([one], [other], [PROBLEM], turns=1, policy=POLICY)
    assert found.ratio == pytest.approx(0.5, rel=0.01)
    assert (found.low, found.high) == (0.0, math.inf)


def test_turns_are_cut_as_the_batch_is() -> None:
    assert [len(part) for part in in_turns(list(map(float, range(62))), 4)] == [16, 16, 15, 15]
