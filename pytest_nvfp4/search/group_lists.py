"""Lists of groups as problems of a search: drawn by Hypothesis within bounds, and reduced group by group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from pytest_nvfp4.problem import Group, Problem, parse_shape


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
class Bounds:
    """Bounds of the problems that are drawn.

    Attributes:
        steps: Steps of the sizes of groups.
        tile_n: Columns of the kernel's tile.
        most_groups: Maximum number of groups of a problem.
        most_work: Maximum number of tiles times steps of k of a problem.
    """

    steps: Steps = field(default_factory=Steps)
    tile_n: int = 128
    most_groups: int = 6
    most_work: int = 16


@dataclass(frozen=True, slots=True)
class GroupLists:
    """The space (``search.space``) of lists of groups."""

    steps: Steps = field(default_factory=Steps)

    def size(self, problem: Problem) -> tuple[int, ...]:
        """See ``Space``."""
        return size_of(problem)

    def smaller(self, problem: Problem) -> list[Problem]:
        """See ``Space``."""
        return reductions(problem, self.steps)

    def text(self, problem: Problem) -> str:
        """See ``Space``."""
        return ",".join(map(str, problem.groups))

    def read(self, text: str) -> Problem:
        """See ``Space``."""
        return parse_shape(text)


def draw(bounds: Bounds, *, examples: int, repeatable: bool) -> list[Problem]:
    """Return distinct problems drawn by Hypothesis; a quarter of them maximise imbalance (``hypothesis.target``).

    Args:
        bounds: Bounds of the problems.
        examples: Number of draws; equal problems count once.
        repeatable: Whether every run draws the same problems.
    """
    uneven = examples // 4
    drawn = _draw(bounds, examples=examples - uneven, repeatable=repeatable, target=False)
    if uneven:
        # The first half of a targeted run draws like any other; only its later examples have a large imbalance.
        targeted = _draw(bounds, examples=2 * uneven, repeatable=repeatable, target=True)
        drawn |= dict(list(targeted.items())[-uneven:])
    return list(drawn.values())


def _draw(bounds: Bounds, *, examples: int, repeatable: bool, target: bool) -> dict[str, Problem]:
    import hypothesis
    from hypothesis import HealthCheck, Phase

    from pytest_nvfp4.strategies.problems import problems, target_imbalance

    steps = bounds.steps
    found: dict[str, Problem] = {}

    @hypothesis.settings(
        max_examples=examples,
        derandomize=repeatable,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.target) if target else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(
        problems(
            tile_m=steps.tile_m,
            n_step=steps.n_step,
            k_step=steps.k_step,
            least_m=steps.least_m,
            most_m=3 * steps.tile_m,
            most_groups=bounds.most_groups,
            most_work=bounds.most_work,
        ).filter(lambda problem: any(group.m for group in problem.groups))  # a rejected one is drawn again
    )
    def collect(problem: Problem) -> None:
        if target:
            target_imbalance(problem, tile_m=steps.tile_m, tile_n=bounds.tile_n)
        found.setdefault(problem.key, problem)

    collect()
    return found


def size_of(problem: Problem) -> tuple[int, int, int]:
    """Return the order of problems by size: by groups, then n and k, then rows."""
    groups = problem.groups
    return len(groups), sum(group.n + group.k for group in groups), sum(group.m for group in groups)


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
    for name, step in (("n", steps.n_step), ("k", steps.k_step)):
        size: int = getattr(group, name)
        for smaller in sorted({step, size // 2 // step * step, size - step}):
            if step <= smaller < size:
                yield replace(group, **{name: smaller})
