"""Make a failing problem smaller while it fails, many candidates at a time: a job costs more than a small problem.

Hypothesis shrinks one example after another, which for a kernel would be one process after another. Here each round
tries every single step at once, and goes on from the smallest that fails, until none does. The result is minimal in the
sense that no single step makes it smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_nvfp4.problem import Group, Problem

MOST_ROUNDS = 24


@dataclass(frozen=True, slots=True)
class Steps:
    """What sizes of groups go by.

    Attributes:
        tile_m: Rows of the kernel's tile, around which a number of rows matters.
        n_step, k_step: What n and k are multiples of.
        least_m: The fewest rows.
    """

    tile_m: int = 128
    n_step: int = 128
    k_step: int = 256
    least_m: int = 0


@dataclass(frozen=True, slots=True)
class Reduced:
    """The end of it.

    Attributes:
        problem: The smallest problem that failed.
        minimal: No single step makes it smaller and still fail; False where the rounds were used up.
        tried: How many problems were tried on the way.
        rounds: How many rounds.
    """

    problem: Problem
    minimal: bool
    tried: int
    rounds: int


def size_of(problem: Problem) -> tuple[int, int, int]:
    """What smaller means: fewer groups, then less n and k, then fewer rows."""
    groups = problem.groups
    return len(groups), sum(group.n + group.k for group in groups), sum(group.m for group in groups)


def reduce_problem(
    problem: Problem,
    failing: Callable[[Sequence[Problem]], Sequence[bool]],
    *,
    steps: Steps,
    rounds: int = MOST_ROUNDS,
) -> Reduced:
    """The smallest problem that fails, from one that does.

    Args:
        problem: A problem that fails.
        failing: Which of several problems fail; asked once a round.
        steps: What sizes go by.
        rounds: The most rounds.
    """
    tried = 0
    for done in range(rounds):
        candidates = reductions(problem, steps)
        if not candidates:
            return Reduced(problem, True, tried, done)
        tried += len(candidates)
        bad = [each for each, fails in zip(candidates, failing(candidates), strict=True) if fails]
        if not bad:
            return Reduced(problem, True, tried, done + 1)
        problem = min(bad, key=size_of)
    return Reduced(problem, False, tried, rounds)


def reductions(problem: Problem, steps: Steps) -> list[Problem]:
    """Every problem that is one step smaller, each once."""
    groups = problem.groups
    made: dict[tuple[Group, ...], Problem] = {}
    for each in (*_fewer(groups), *_all_smaller(groups, steps), *_one_smaller(groups, steps)):
        smaller = replace(problem, name="+".join(map(str, each)), groups=each)
        if size_of(smaller) < size_of(problem):
            made.setdefault(each, smaller)
    return list(made.values())


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
    # Between what is known to fail and nothing: quarters and eighths bring the end near in few rounds.
    rows = {*rows, *(group.m - (group.m >> shift) for shift in range(2, 6)), group.m - tile}
    yield from (replace(group, m=m) for m in sorted(rows) if steps.least_m <= m < group.m)
    for field, step in (("n", steps.n_step), ("k", steps.k_step)):
        size: int = getattr(group, field)
        for smaller in sorted({step, size // 2 // step * step, size - step}):
            if step <= smaller < size:
                yield replace(group, **{field: smaller})
