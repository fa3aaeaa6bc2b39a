"""Reduction of a failing problem, with many candidates at a time: a job costs more than a small problem.

Hypothesis shrinks one example after another, which for a kernel would be one process after another. Here each round
tries every single step at once, and continues from the smallest candidate that fails, until none does. The result is
minimal: no single step makes it smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_nvfp4.problem import Group, Problem

MOST_ROUNDS = 24


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of the sizes of groups.

    Attributes:
        tile_m: Rows of the kernel's tile; numbers of rows near its multiples are tried.
        n_step: Divisor of n.
        k_step: Divisor of k.
        least_m: Minimum number of rows.
    """

    tile_m: int = 128
    n_step: int = 128
    k_step: int = 256
    least_m: int = 0


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


def size_of(problem: Problem) -> tuple[int, int, int]:
    """Return the order of problems by size: by groups, then n and k, then rows."""
    groups = problem.groups
    return len(groups), sum(group.n + group.k for group in groups), sum(group.m for group in groups)


def reduce_problem(
    problem: Problem,
    failing: Callable[[Sequence[Problem]], Sequence[bool]],
    *,
    steps: Steps,
    rounds: int = MOST_ROUNDS,
) -> Reduced:
    """Reduce a failing problem.

    Args:
        problem: A problem that fails.
        failing: Returns for each of several problems whether it fails; called once a round.
        steps: Steps of the sizes of groups.
        rounds: Maximum number of rounds.
    """
    tried = 0
    for done in range(rounds):
        candidates = reductions(problem, steps)
        if not candidates:
            return Reduced(problem, True, tried, done)
        tried += len(candidates)
        failures = [candidate for candidate, fails in zip(candidates, failing(candidates), strict=True) if fails]
        if not failures:
            return Reduced(problem, True, tried, done + 1)
        problem = min(failures, key=size_of)
    return Reduced(problem, False, tried, rounds)


def reductions(problem: Problem, steps: Steps) -> list[Problem]:
    """Return the distinct problems that are one step smaller."""
    groups = problem.groups
    distinct = dict.fromkeys([*_fewer(groups), *_all_smaller(groups, steps), *_one_smaller(groups, steps)])
    candidates = [replace(problem, name="+".join(map(str, smaller)), groups=smaller) for smaller in distinct]
    return [candidate for candidate in candidates if size_of(candidate) < size_of(problem)]


def _fewer(groups: tuple[Group, ...]) -> Iterator[tuple[Group, ...]]:
    if len(groups) == 1:
        return
    yield from ((group,) for group in groups)
    half = len(groups) // 2
    yield from (groups[:half], groups[half:])
    yield from (groups[:at] + groups[at + 1 :] for at in range(len(groups)))


def _all_smaller(groups: tuple[Group, ...], steps: Steps) -> Iterator[tuple[Group, ...]]:
    yield tuple(replace(group, n=steps.n_step) for group in groups)
    yield tuple(replace(group, k=steps.k_step) for group in groups)
    yield tuple(replace(group, n=steps.n_step, k=steps.k_step) for group in groups)
    for rows in (steps.least_m, 1, steps.tile_m):
        yield tuple(replace(group, m=min(group.m, max(rows, steps.least_m))) for group in groups)


def _one_smaller(groups: tuple[Group, ...], steps: Steps) -> Iterator[tuple[Group, ...]]:
    for at, group in enumerate(groups):
        for smaller in _smaller(group, steps):
            yield (*groups[:at], smaller, *groups[at + 1 :])


def _smaller(group: Group, steps: Steps) -> Iterator[Group]:
    tile = steps.tile_m
    whole = group.m // tile * tile
    rows: Iterable[int] = {0, 1, 2, tile - 1, tile, tile + 1, whole - 1, whole, whole + 1, group.m // 2, group.m - 1}
    # Powers of two between the failing size and 0: a bisection with all its steps in one round.
    rows = {*rows, *(group.m - (group.m >> shift) for shift in range(2, 6)), group.m - tile}
    yield from (replace(group, m=m) for m in sorted(rows) if steps.least_m <= m < group.m)
    for field, step in (("n", steps.n_step), ("k", steps.k_step)):
        size: int = getattr(group, field)
        for smaller in sorted({step, size // 2 // step * step, size - step}):
            if step <= smaller < size:
                yield replace(group, **{field: smaller})
