"""Search for a problem on which a kernel fails: examples of Hypothesis in batches, and reduction of the first failure.

An example database stores failures, which are tried first. A search without a failure has *searched*; it proves
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_nvfp4.problem import Problem, ProblemError
from pytest_nvfp4.search.reduce import Reduced, reduce_problem
from pytest_nvfp4.search.space import Space

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase

BATCH = 20
"""Problems of one job: enough that starting a process is a small part of it."""


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


def search(
    fresh: Sequence[Problem],
    failing: Callable[[Sequence[Problem]], Sequence[bool]],
    *,
    space: Space,
    database: ExampleDatabase,
    key: bytes,
    batch: int = BATCH,
) -> Searched:
    """Try stored failures, then fresh problems in batches; reduce and store the first failure.

    Args:
        fresh: Problems to try.
        failing: Returns for each of several problems whether it fails; each call is one job.
        space: The problems that they are of.
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

    known = stored_problems(database, key, space)
    for problems in [known, *(fresh[at : at + batch] for at in range(0, len(fresh), batch))]:
        results = list(zip(problems, run(problems), strict=True))
        if problems is known:
            for problem in (problem for problem, fails in results if not fails):
                database.delete(key, space.text(problem).encode())
        if failures := [problem for problem, fails in results if fails]:
            first = min(failures, key=space.size)
            reduced = reduce_problem(first, run, space=space)
            database.save(key, space.text(reduced.problem).encode())
            return Searched(len(fresh), len(known), tried, first, reduced)
    return Searched(len(fresh), len(known), tried, None, None)


def stored_problems(database: ExampleDatabase, key: bytes, space: Space) -> list[Problem]:
    """Return the problems of a database, smallest first; entries that cannot be read are deleted."""
    problems = []
    for data in list(database.fetch(key)):
        try:
            problems.append(space.read(data.decode()))
        except (ProblemError, UnicodeDecodeError):
            database.delete(key, data)
    return sorted(problems, key=space.size)
