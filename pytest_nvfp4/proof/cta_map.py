"""CTA maps as code that runs on numbers and on symbols alike: from a CTA's number to the tile that it computes.

``counts`` are tile counts ``(M_g, N_g)`` of the groups and ``first[g] = P(g)`` the number of tiles before group g, so
that ``first[-1]`` is the number of all tiles. `small_failure` enumerates small problems, smallest first: the cases in
which a map of numbers fails are shown from it, and no solver is needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from pytest_nvfp4.proof.solver import Formula, Term

Counts: TypeAlias = "Sequence[tuple[int, int]]"
Tile: TypeAlias = "tuple[int, int, int]"
"""Group, x (tile of M), y (tile of N)."""

Choose: TypeAlias = Callable[[Formula, Callable[[], Term], Callable[[], Term]], Term]
"""``if``, of numbers or symbols."""

Search: TypeAlias = "Callable[[Sequence[Term], Term, Choose], Term]"
Raster: TypeAlias = "Callable[[int, tuple[int, int]], tuple[int, int]]"

TILE = 128
"""Rows and columns of a tile in the problems that are shown."""


def decide(condition: Formula, yes: Callable[[], Term], no: Callable[[], Term]) -> Term:
    """`Choose` for numbers."""
    return yes() if condition else no()


def prefix_sums(counts: Sequence[Term]) -> list[Term]:
    """P(0) .. P(G) of numbers of tiles."""
    return list(itertools.accumulate(counts, initial=0))


def scan(first: Sequence[Term], b: Term, choose: Choose, group: int = 0) -> Term:
    """Linear scan: ``while b >= P(g + 1): g += 1``."""
    if group + 2 == len(first):
        return group
    return choose(b >= first[group + 1], lambda: scan(first, b, choose, group + 1), lambda: group)


def binary(first: Sequence[Term], b: Term, choose: Choose, low: int = 0, high: int | None = None) -> Term:
    """Binary search: the last group with P(g) <= b."""
    high = len(first) - 1 if high is None else high
    if high - low <= 1:
        return low
    middle = (low + high) // 2
    return choose(
        first[middle] <= b,
        lambda: binary(first, b, choose, middle, high),
        lambda: binary(first, b, choose, low, middle),
    )


def m_major(place: int, counts: tuple[int, int]) -> tuple[int, int]:
    """x varies fastest."""
    y, x = divmod(place, counts[0])
    return x, y


def n_major(place: int, counts: tuple[int, int]) -> tuple[int, int]:
    """y varies fastest."""
    return divmod(place, counts[1])


def placed(counts: Counts, b: int, *, search: Search = binary, raster: Raster = m_major) -> Tile:
    """The tile of CTA b.

    Raises:
        ZeroDivisionError: a wrong map came to a group without tiles.
    """
    first = prefix_sums([m * n for m, n in counts])
    group = search(first, b, decide)
    x, y = raster(b - first[group], counts[group])
    return group, x, y


def tiles(counts: Counts) -> list[Tile]:
    """Every tile of every group."""
    return [(g, x, y) for g, (m, n) in enumerate(counts) for y in range(n) for x in range(m)]


def small_counts(*, groups: int = 3, most_m: int = 3, most_n: int = 2) -> Iterator[Counts]:
    """Every list of 1 .. ``groups`` groups with M in 0 .. ``most_m`` and N in 1 .. ``most_n``, fewest tiles first."""
    sizes = list(itertools.product(range(most_m + 1), range(1, most_n + 1)))
    lists = [found for length in range(1, groups + 1) for found in itertools.product(sizes, repeat=length)]
    return iter(sorted(lists, key=lambda found: (len(found), sum(m * n for m, n in found), found)))


Work: TypeAlias = Callable[[Counts], "list[Tile]"]
"""Every tile that a launch on these counts computes, once for each time."""


def launched(search: Search = binary, raster: Raster = m_major) -> Work:
    """One CTA a tile."""

    def work(counts: Counts) -> list[Tile]:
        return [placed(counts, b, search=search, raster=raster) for b in range(sum(m * n for m, n in counts))]

    return work


def failure(counts: Counts, done: Sequence[Tile]) -> str | None:
    """How the work done on a problem differs from each tile once, or None."""
    wanted = tiles(counts)
    if sorted(done) == wanted:
        return None
    for tile in done:
        if tile not in wanted:
            return f"tile (group, x, y) = {tile} is computed and does not exist"
    for tile in wanted:
        if (times := done.count(tile)) != 1:
            return f"tile (group, x, y) = {tile} is computed {times} times"
    return None


def small_failure(work: Work, cases: Iterator[Counts] | None = None) -> tuple[str | None, int]:
    """The first small problem on which ``work`` is wrong, as text, and how many problems were looked at."""
    looked = 0
    for counts in cases or small_counts():
        looked += 1
        try:
            wrong = failure(counts, work(counts))
        except ZeroDivisionError:
            wrong = "a CTA comes to a group without rows and divides by its 0 tiles"
        except IndexError:
            wrong = "a CTA comes to a group that does not exist"
        if wrong is not None:
            return f"problem {problem_text(counts)}: {wrong}", looked
    return None, looked


def problem_text(counts: Counts) -> str:
    """Tile counts as a problem list of m x n x k, each group as large as its tiles."""
    return ", ".join(f"{m * TILE}x{n * TILE}x256" for m, n in counts)
