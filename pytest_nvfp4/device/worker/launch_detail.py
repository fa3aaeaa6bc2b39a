"""The fields of a ``device.detail.LaunchDetail`` and of its tiles, from the simulator's record of a launch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.device.detail import MOST
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.detail import LaunchDetail
from pytest_nvfp4.sim.run.grid import Grid


def detail_fields(detail: LaunchDetail, grid: Grid, *, below: str) -> dict[str, Any]:
    """Return the fields of the detail of a launch; files are named relative to the folder ``below``."""
    instructions = grid.kernel.instructions

    def source(at: int) -> str:
        return _source(instructions[at], below) if 0 <= at < len(instructions) else ""

    lines: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (at, name), count in detail.settle().items():
        if count > 0 and (place := source(at)):
            lines[place][name] += count
    ranges: Counter[tuple[str, int, int, str]] = Counter()
    for (what, at, index, size), times in detail.ranges.items():
        ranges[what, index, size, source(at)] += times
    for index, made, phases in detail.barriers:
        ranges["barrier", index, 8, source(made)] += phases
    return {
        "lines": [{"source": place, "counters": dict(counters)} for place, counters in list(lines.items())[:MOST]],
        "columns": [
            {
                "what": span.what,
                "column": span.column,
                "columns": span.count,
                "first": span.first,
                "last": span.last,
                "source": source(span.at),
            }
            for span in detail.spans
        ],
        "columns_left_out": detail.left_out,
        "shared": [
            {"what": what, "offset": index, "bytes": size, "source": place, "times": times}
            for (what, index, size, place), times in sorted(ranges.items())[:MOST]
        ],
    }


def written_tiles(owner: NDArray[np.int32], bases: Sequence[int], *, most: int) -> list[dict[str, int]]:
    """Return the first rectangles of C that one CTA wrote each, in the order of their corners.

    Args:
        owner: Owner of each element, (m, n); see ``sim.memory.coverage``.
        bases: The owner number of the first CTA of each launch.
        most: Largest number of rectangles.
    """
    tiles = []
    rows, columns = np.nonzero(corners(owner))
    for row, column in list(zip(rows.tolist(), columns.tolist(), strict=True))[:most]:
        number = int(owner[row, column])
        launch = int(np.searchsorted(bases, number, side="right")) - 1
        size = {"rows": _run(owner[row:, column], number), "columns": _run(owner[row, column:], number)}
        tiles.append({"launch": launch, "cta": number - bases[launch], "row": row, "column": column, **size})
    return tiles


def corners(owner: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which elements are the upper left ones of a rectangle of one owner.

    A rectangle of one owner has exactly one element whose upper and left neighbours belong to another owner.
    """
    corner: NDArray[np.bool_] = owner >= 0
    corner[1:] &= owner[1:] != owner[:-1]
    corner[:, 1:] &= owner[:, 1:] != owner[:, :-1]
    return corner


def _run(line: NDArray[np.int32], number: int) -> int:
    """Return how many of the first elements are the number."""
    others = np.flatnonzero(line != number)
    return int(others[0]) if others.size else int(line.size)


def _source(instruction: Instruction, below: str) -> str:
    where = instruction.location
    return "" if where is None else f"{where.file.removeprefix(f'{below}/')}:{where.line}"
