"""A curve over numbered things as lines of text, for terminals, Markdown and pages alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_LEAST_WIDTH = 8
_LEAST_HEIGHT = 3
_MOST_STEP = 4
"""Most columns from one index to the next."""
_LEAST_SPAN = 0.2
"""Least share of the best value that counts as its range; half of the range above it is shown."""


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one kind.

    Attributes:
        mark: Character of a value.
        points: Index and value of each; indices need not follow each other.
    """

    mark: str
    points: Sequence[tuple[int, float]]


def curve(
    series: Sequence[Series], best: Sequence[tuple[int, float]], *, last: int, width: int, height: int
) -> list[str]:
    """Return a curve with an axis of values, in per cent, at its left.

    Several indices share a column where there are more of them than columns; a later series is drawn over an earlier
    one. Values far above those of ``best`` would flatten the curve: they are drawn as ``^`` in the first line. Values
    that are not finite are left out.

    Args:
        series: Values, 1 for 100 %.
        best: Steps of the best value so far, drawn as a line up to ``last``.
        last: Last index of the axis.
        width: Width in columns, the axis included.
        height: Number of lines, the axis of indices included.
    """
    series = [Series(each.mark, [point for point in each.points if math.isfinite(point[1])]) for each in series]
    best = [point for point in best if math.isfinite(point[1])]
    points = [point for each in series for point in each.points] + list(best)
    if not points:
        return []
    height, last = max(height, _LEAST_HEIGHT) - 1, max(last, *(at for at, _ in points))
    low = min(value for _, value in points)
    high = max(value for _, value in points)
    if best:
        steps = [value for _, value in best]
        span = max(max(steps) - min(steps), _LEAST_SPAN * max(steps))
        high = min(high, max(steps) + span / 2)
    if high - low < 0.002 * abs(high):
        low, high = low - 0.005 * abs(high), high + 0.005 * abs(high)
    labels = {0: f"{100 * high:.1f} %", height - 1: f"{100 * low:.1f} %"}
    margin = max(map(len, labels.values())) + 1
    columns = max(width - margin - 1, _LEAST_WIDTH)
    grid = [[" "] * columns for _ in range(height)]

    def column(at: int) -> int:
        if last >= columns:
            return round(at * (columns - 1) / last)
        return at * min(_MOST_STEP, (columns - 1) // max(last, 1))

    def row(value: float) -> int:
        return min(height - 1, max(0, round((high - value) / (high - low) * (height - 1))))

    for (at, value), (until, _) in zip(best, [*best[1:], (last, 0.0)], strict=True):
        for x in range(column(at), column(until) + 1):
            grid[row(value)][x] = "-"
    for each in series:
        for at, value in each.points:
            above = value > high * (1 + 1e-9)
            grid[0 if above else row(value)][column(at)] = "^" if above else each.mark
    lines = [f"{labels.get(at, ''):>{margin - 1}} |{''.join(cells)}".rstrip() for at, cells in enumerate(grid)]
    axis = "0" if last == 0 else f"0{last:>{max(column(last), len(str(last)) + 1)}}"
    return [*lines, f"{'':>{margin - 1}}  {axis}"]
