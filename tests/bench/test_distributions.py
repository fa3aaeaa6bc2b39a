"""Quantiles against printed tables and against their definitions."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.bench.distributions import binomial_interval, student_t_quantile


@pytest.mark.parametrize(
    ("freedom", "probability", "printed"),
    [(1, 0.995, 63.657), (2, 0.995, 9.925), (3, 0.975, 3.182), (5, 0.995, 4.032), (7, 0.995, 3.499), (10, 0.95, 1.812),
     (29, 0.995, 2.756), (60, 0.975, 2.000)],
)  # fmt: skip
def test_student_t_against_the_printed_table(freedom, probability, printed):
    assert student_t_quantile(probability, freedom) == pytest.approx(printed, abs=6e-4)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # Clopper and Pearson's limits as statistical tables print them.
    [
        (0, 10, 0.0, 0.3085),
        (1, 10, 0.0025, 0.4450),
        (5, 10, 0.1871, 0.8129),
        (10, 10, 0.6915, 1.0),
        (3, 20, 0.0321, 0.3789),
    ],
)
def test_binomial_interval_against_tables(successes, trials, low, high):
    assert binomial_interval(successes, trials) == pytest.approx((low, high), abs=6e-5)


def test_rule_of_three():
    assert binomial_interval(0, 300, confidence=0.90)[1] == pytest.approx(1 - 0.05 ** (1 / 300), rel=1e-6)


@given(st.integers(0, 40), st.integers(0, 40))
def test_binomial_interval_is_its_definition(successes, more):
    trials = successes + more
    low, high = binomial_interval(successes, trials)
    assert 0 <= low <= high <= 1

    def at_least(p):
        return math.fsum(math.comb(trials, i) * p**i * (1 - p) ** (trials - i) for i in range(successes, trials + 1))

    if successes:
        assert at_least(low) == pytest.approx(0.025, abs=1e-6)
    if more:
        assert 1 - at_least(high) + math.comb(trials, successes) * high**successes * (
            1 - high
        ) ** more == pytest.approx(0.025, abs=1e-6)


def test_impossible_counts():
    with pytest.raises(ValueError, match="3 successes of 2 trials"):
        binomial_interval(3, 2)
    assert binomial_interval(0, 0) == (0.0, 1.0)
