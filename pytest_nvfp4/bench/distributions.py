"""Quantiles that verdicts need: Student's t and the exact interval of a rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal


def _student_t_cdf(t: float, freedom: int) -> float:
    """Return the distribution function for whole degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    theta = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(theta), math.cos(theta)
    if freedom == 1:
        return 0.5 + theta / math.pi
    term = cosine if freedom % 2 else 1.0
    total = term
    for step in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= cosine**2 * (step - 1) / step
        total += term
    inside = (theta + sine * total) * 2 / math.pi if freedom % 2 else sine * total
    return 0.5 + inside / 2


@lru_cache(maxsize=256)
def student_t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution, for a probability above one half."""
    return _bisect(lambda t: _student_t_cdf(t, freedom) - probability, 0.0, 1e6)


def _bisect(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the zero of an increasing function; 200 halvings exhaust the precision of a double."""
    for _ in range(200):
        middle = (low + high) / 2
        if function(middle) > 0:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def _binomial_tail(successes: int, trials: int, probability: float, *, side: Literal["most", "least"]) -> float:
    """Return the probability of at most, or at least, so many successes."""
    if probability <= 0:
        return 1.0 if side == "most" or successes == 0 else 0.0
    if probability >= 1:
        return 1.0 if side == "least" or successes == trials else 0.0
    counts = range(successes + 1) if side == "most" else range(successes, trials + 1)
    return math.fsum(
        math.exp(
            math.lgamma(trials + 1)
            - math.lgamma(count + 1)
            - math.lgamma(trials - count + 1)
            + count * math.log(probability)
            + (trials - count) * math.log1p(-probability)
        )
        for count in counts
    )


def binomial_interval(successes: int, trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a rate (Clopper & Pearson 1934); ``(0, 1)`` for no trials.

    Raises:
        ValueError: The successes are negative or more than the trials.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials")
    tail = (1 - confidence) / 2
    low, high = 0.0, 1.0
    if successes > 0:
        low = _bisect(lambda p: _binomial_tail(successes, trials, p, side="least") - tail, 0.0, 1.0)
    if successes < trials:
        high = _bisect(lambda p: tail - _binomial_tail(successes, trials, p, side="most"), 0.0, 1.0)
    return low, high
