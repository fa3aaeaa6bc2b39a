"""Packings by exhaustive search."""

from __future__ import annotations

import itertools


def shortest_by_hand(sizes: list[tuple[int, int]], limit: int) -> int | None:
    """The fewest columns of segments (columns, alignment) side by side: every start of each is tried."""
    best: int | None = None
    for starts in itertools.product(*(range(0, limit, align) for _, align in sizes)):
        ends = [start + size for start, (size, _) in zip(starts, sizes, strict=True)]
        spans = sorted(zip(starts, ends, strict=True))
        if all(one[1] <= other[0] for one, other in itertools.pairwise(spans)):
            best = min(max(ends), best or limit * 9)
    return best
