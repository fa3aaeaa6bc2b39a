"""CTA maps from a CTA's number to its output tile, executable on integers and on z3 terms alike.

``counts`` are the tile counts ``(M_g, N_g)`` of the groups, and ``first[g] = P(g)`` is the number of tiles before group
g, so that ``first[-1]`` is the total. `small_failure` enumerates small problems, smallest first, and shows the first on
which a wrong map of numbers fails, without a solver.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from pytest_nvfp4.proof.solver import Formula, Term
from pytest_nvfp4.proof.statement import CaseResult

Counts: TypeAlias = "Sequence[tuple[int, int]]"


class OutputTile(NamedTuple):
    """One output tile: x counts tiles along M, y along N."""

    group: int
    x: int
    y: int

    def __str__(self) -> str:
        return f"({self.group}, {self.x}, {self.y})"


Choose: TypeAlias = Callable[[Formula, Callable[[], Term], Callable[[], Term]], Term]
"""``if`` on numbers or terms."""

Search: TypeAlias = "Callable[[Sequence[Term], Term, Choose], Term]"
Raster: TypeAlias = "Callable[[int, tuple[int, int]], tuple[int, int]]"

TILE = 128
"""Rows and columns of a tile in the problems that are printed."""


def decide(condition: Formula, yes: Callable[[], Term], no: Callable[[], Term]) -> Term:
    """`Choose` on numbers."""
    return yes() if condition else no()


def prefix_sums(counts: Sequence[Term]) -> list[Term]:
    """Return P(0) .. P(G) of numbers of tiles."""
    return list(itertools.accumulate(counts, initial=0))


def scan(first: Sequence[Term], b: Term, choose: Choose, group: int = 0, *, strict: bool = False) -> Term:
    """Scan linearly: ``while b >= P(g + 1): g += 1``; with ``strict``, wrongly, ``b > P(g + 1)``."""
    if group + 2 == len(first):
        return group
    further = b > first[group + 1] if strict else b >= first[group + 1]
    return choose(further, lambda: scan(first, b, choose, group + 1, strict=strict), lambda: group)


def binary(
    first: Sequence[Term],
    b: Term,
    choose: Choose,
    low: int = 0,
    high: int | None = None,
    *,
    strict: bool = False,
    stop_at: int = 1,
) -> Term:
    """Search for the last group with P(g) <= b by bisection.

    Wrong with ``strict`` (``P(g) < b``) or ``stop_at`` 2 (``while high - low > 2``).
    """
    high = len(first) - 1 if high is None else high
    if high - low <= stop_at:
        return low
    middle = (low + high) // 2

    def search(low: int, high: int) -> Term:
        return binary(first, b, choose, low, high, strict=strict, stop_at=stop_at)

    left = first[middle] < b if strict else first[middle] <= b
    return choose(left, lambda: search(middle, high), lambda: search(low, middle))


def m_major(place: int, counts: tuple[int, int]) -> tuple[int, int]:
    """Raster in which x varies fastest."""
    y, x = divmod(place, counts[0])
    return x, y


def n_major(place: int, counts: tuple[int, int]) -> tuple[int, int]:
    """Raster in which y varies fastest."""
    return divmod(place, counts[1])


def divided_by_m(place: int, counts: tuple[int, int]) -> tuple[int, int]:
    """Return the tile of a wrong raster: x and y of `m_major` exchanged."""
    return divmod(place, counts[0])


def placed(counts: Counts, b: int, *, search: Search = binary, raster: Raster = m_major) -> OutputTile:
    """Return the tile of CTA b. Raises ZeroDivisionError if a wrong map reached a group without tiles."""
    first = prefix_sums([m * n for m, n in counts])
    group = search(first, b, decide)
    return OutputTile(group, *raster(b - first[group], counts[group]))


def tiles(counts: Counts) -> list[OutputTile]:
    """Return every tile of every group."""
    return [OutputTile(g, x, y) for g, (m, n) in enumerate(counts) for y in range(n) for x in range(m)]


def small_counts(*, groups: int = 3, most_m: int = 3, most_n: int = 2) -> Iterator[Counts]:
    """Iterate over all lists of 1 .. ``groups`` groups, fewest tiles first.

    A group has M in 0 .. ``most_m`` and N in 1 .. ``most_n``.
    """
    sizes = list(itertools.product(range(most_m + 1), range(1, most_n + 1)))
    lists = [each for length in range(1, groups + 1) for each in itertools.product(sizes, repeat=length)]
    return iter(sorted(lists, key=lambda counts: (len(counts), sum(m * n for m, n in counts), counts)))


Work: TypeAlias = Callable[[Counts], "list[OutputTile]"]
"""Return every tile that a launch on these counts computes, once per time it is computed."""


def launched(search: Search = binary, raster: Raster = m_major) -> Work:
    """Return the work of a launch with one CTA per tile."""

    def work(counts: Counts) -> list[OutputTile]:
        return [placed(counts, b, search=search, raster=raster) for b in range(sum(m * n for m, n in counts))]

    return work


def failure(counts: Counts, done: Sequence[OutputTile]) -> str | None:
    """Return how the computed tiles differ from every tile once, or None."""
    expected = tiles(counts)
    if sorted(done) == expected:
        return None
    for tile in done:
        if tile not in expected:
            return f"tile (group, x, y) = {tile} is computed and does not exist"
    for tile in expected:
        if (times := done.count(tile)) != 1:
            return f"tile (group, x, y) = {tile} is computed {times} times"
    return None


def small_failure(work: Work, cases: Iterator[Counts] | None = None) -> CaseResult:
    """Return the first small problem on which ``work`` is wrong, and the number of problems checked."""
    checked = 0
    for counts in cases or small_counts():
        checked += 1
        try:
            wrong = failure(counts, work(counts))
        except ZeroDivisionError:
            wrong = "a CTA reaches a group without rows and divides by its 0 tiles"
        except IndexError:
            wrong = "a CTA reaches a group that does not exist"
        if wrong is not None:
            return CaseResult(f"problem {problem_text(counts)}: {wrong}", checked)
    return CaseResult(None, checked)


def example(work: Work) -> Callable[[], str]:
    """Return a function that prints the smallest problem on which ``work`` fails."""
    return lambda: small_failure(work).counterexample or ""


def problem_text(counts: Counts) -> str:
    """Format tile counts as a problem list m x n x k, each group as large as its tiles."""
    return ", ".join(f"{m * TILE}x{n * TILE}x256" for m, n in counts)
