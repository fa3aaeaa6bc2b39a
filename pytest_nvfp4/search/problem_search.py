"""Search for a problem that a kernel gets wrong: examples of Hypothesis, run in batches, the first failure made small.

What failed before is kept in an example database and tried first. A search that finds nothing has *searched*; it proves
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
    """Which problems are drawn.

    Attributes:
        steps: What sizes of groups go by.
        tile_n: Columns of the kernel's tile.
        most_groups: Most groups of a list.
        most_work: Most tiles times steps of k of a list.
    """

    steps: Steps = field(default_factory=Steps)
    tile_n: int = 128
    most_groups: int = 6
    most_work: int = 16


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search came to.

    Attributes:
        drawn: Examples that were drawn, all different.
        replayed: Examples of the database that were tried first.
        tried: Problems that were run, with those of making a failure smaller.
        first: The problem that failed first; None if none did.
        reduced: The same made small.
    """

    drawn: int
    replayed: int
    tried: int
    first: Problem | None
    reduced: Reduced | None


def draw(bounds: Bounds, *, examples: int, repeatable: bool) -> list[Problem]:
    """Different problems, drawn by Hypothesis; a quarter of them climb to uneven ones (``hypothesis.target``).

    Args:
        bounds: Which problems.
        examples: How many are drawn; equal ones count once.
        repeatable: The same on every run.
    """
    uneven = examples // 4
    plain = _draw(bounds, examples=examples - uneven, repeatable=repeatable, target=False)
    # Half of a targeted run draws as any other does; what it comes to in the end is what it is for.
    climbed = (
        list(_draw(bounds, examples=2 * uneven, repeatable=repeatable, target=True).items())[-uneven:] if uneven else []
    )
    return list({**plain, **dict(climbed)}.values())


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
        )
    )
    def collect(problem: Problem) -> None:
        if target:
            target_imbalance(problem, tile_m=steps.tile_m, tile_n=bounds.tile_n)
        if any(group.m for group in problem.groups):
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
    """Try what failed before, then fresh problems, batch by batch; make the first failure small and keep it.

    Args:
        fresh: Problems to try.
        failing: Which of several problems fail; each call is one job.
        steps: What sizes of groups go by.
        database: Where failing problems are kept.
        key: Under which key: that of the kernel.
        batch: Problems of one job.
    """
    tried = 0

    def count(problems: Sequence[Problem]) -> list[bool]:
        nonlocal tried
        answers: list[bool] = []
        for at in range(0, len(problems), batch):
            some = problems[at : at + batch]
            tried += len(some)
            answers += failing(some)
        return answers

    known = kept(database, key)
    for some in [known, *(fresh[at : at + batch] for at in range(0, len(fresh), batch))]:
        answers = count(some)
        for problem, fails in zip(some, answers, strict=True):
            if some is known and not fails:
                database.delete(key, _text(problem))
        bad = [problem for problem, fails in zip(some, answers, strict=True) if fails]
        if bad:
            first = min(bad, key=size_of)
            reduced = reduce_problem(first, count, steps=steps)
            database.save(key, _text(reduced.problem))
            return Searched(len(fresh), len(known), tried, first, reduced)
    return Searched(len(fresh), len(known), tried, None, None)


def kept(database: ExampleDatabase, key: bytes) -> list[Problem]:
    """The problems of a database, smallest first; what cannot be read is passed over and removed."""
    found = []
    for data in list(database.fetch(key)):
        try:
            found.append(parse_shape(data.decode("ascii")))
        except (ProblemError, UnicodeDecodeError):
            database.delete(key, data)
    return sorted(found, key=size_of)


def _text(problem: Problem) -> bytes:
    return ",".join(map(str, problem.groups)).encode("ascii")
