"""Reduction of a failing problem, with many candidates at a time: a job costs more than a small problem.

Hypothesis shrinks one example after another, which for a kernel would be one process after another. Here each round
tries every single step at once, and continues from the smallest candidate that fails, until none does. The result is
minimal: no single step makes it smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_nvfp4.problem import Problem
from pytest_nvfp4.search.space import Space

MOST_ROUNDS = 24


@dataclass(frozen=True, slots=True)
class Reduced:
    """Result of a reduction.

    Attributes:
        problem: The smallest problem that failed.
        minimal: Whether no smaller problem one step away fails; False if the rounds were exhausted.
        tried: Number of problems that were tried.
        rounds: Number of rounds.
    """

    problem: Problem
    minimal: bool
    tried: int
    rounds: int


def reduce_problem(
    problem: Problem,
    failing: Callable[[Sequence[Problem]], Sequence[bool]],
    *,
    space: Space,
    rounds: int = MOST_ROUNDS,
) -> Reduced:
    """Reduce a failing problem.

    Args:
        problem: A problem that fails.
        failing: Returns for each of several problems whether it fails; called once a round.
        space: The problems that it is one of.
        rounds: Maximum number of rounds.
    """
    tried = 0
    for done in range(rounds):
        candidates = space.smaller(problem)
        if not candidates:
            return Reduced(problem, True, tried, done)
        tried += len(candidates)
        failures = [candidate for candidate, fails in zip(candidates, failing(candidates), strict=True) if fails]
        if not failures:
            return Reduced(problem, True, tried, done + 1)
        problem = min(failures, key=space.size)
    return Reduced(problem, False, tried, rounds)
