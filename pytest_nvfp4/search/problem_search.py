"""Search for a problem on which a kernel fails: examples of Hypothesis in batches, and reduction of the first failure.

An example database stores failures, which are tried first. A search without a failure has *searched*; it proves
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_nvfp4.problem import Problem, ProblemError, parse_shape
from pytest_nvfp4.search.reduce import Reduced, Steps, reduce_problem, size_of

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase

BATCH = 20
"""Problems of one job: enough that starting a process is a small part of it."""


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
class Searched:
    """Result of a search.

    Attributes:
        drawn: Number of distinct examples that were drawn.
        replayed: Number of stored failures that were tried first.
        tried: Number of problems that were run, including those of the reduction.
        first: The problem that failed first; None if none did.
        reduced: Reduction of that problem.
    """

    drawn: int
    replayed: int
    tried: int
    first: Problem | None
    reduced: Reduced | None


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


def search(
    fresh: Sequence[Problem],
    failing: Callable[[Sequence[Problem]], Sequence[bool]],
    *,
    steps: Steps,
    database: ExampleDatabase,
    key: bytes,
    batch: int = BATCH,
) -> Searched:
    """Try stored failures, then fresh problems in batches; reduce and store the first failure.

    Args:
        fresh: Problems to try.
        failing: Returns for each of several problems whether it fails; each call is one job.
        steps: Steps of the sizes of groups.
        database: Database of failing problems.
        key: Key of the kernel in the database.
        batch: Number of problems of one job.
    """
    tried = 0

    def run(problems: Sequence[Problem]) -> list[bool]:
        nonlocal tried
        failures: list[bool] = []
        for at in range(0, len(problems), batch):
            part = problems[at : at + batch]
            tried += len(part)
            failures += failing(part)
        return failures

    known = stored_problems(database, key)
    for problems in [known, *(fresh[at : at + batch] for at in range(0, len(fresh), batch))]:
        results = list(zip(problems, run(problems), strict=True))
        if problems is known:
            for problem in (problem for problem, fails in results if not fails):
                database.delete(key, _text(problem))
        if failures := [problem for problem, fails in results if fails]:
            first = min(failures, key=size_of)
            reduced = reduce_problem(first, run, steps=steps)
            database.save(key, _text(reduced.problem))
            return Searched(len(fresh), len(known), tried, first, reduced)
    return Searched(len(fresh), len(known), tried, None, None)


def stored_problems(database: ExampleDatabase, key: bytes) -> list[Problem]:
    """Return the problems of a database, smallest first; entries that cannot be read are deleted."""
    problems = []
    for data in list(database.fetch(key)):
        try:
            problems.append(parse_shape(data.decode("ascii")))
        except (ProblemError, UnicodeDecodeError):
            database.delete(key, data)
    return sorted(problems, key=size_of)


def _text(problem: Problem) -> bytes:
    return ",".join(map(str, problem.groups)).encode("ascii")
