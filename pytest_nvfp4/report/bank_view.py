"""Swizzles of shared memory by bank: one cell for each 16 bytes, coloured by their place in the line of banks.

The 32 banks of shared memory are 128 bytes wide, so that 16-byte parts of equal colour are in the same banks.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from pytest_nvfp4.layout.grid import CellGrid, grid_of
from pytest_nvfp4.layout.irtypes import TypeInfo
from pytest_nvfp4.report.chart import Chart
from pytest_nvfp4.text import plural

_PART_BITS = 128
_PARTS = 8
_ROWS, _COLS = 16, 16
_SIDE, _CELL, _HIGH, _TOP = 34.0, 30.0, 18.0, 20.0


def bank_chart(info: TypeInfo, *, title: str) -> tuple[Markup, str] | None:
    """Return the drawing of a static layout and what a cell is; None if 16 bytes are no run of elements of a row.

    The axis along which elements follow each other is drawn from left to right.
    """
    grid = grid_of(info)
    if not grid.bits or _PART_BITS % grid.bits:
        return None
    step = _PART_BITS // grid.bits
    across = _follows(grid, step, along_row=True)
    if not across and not _follows(grid, step, along_row=False):
        return None
    lines, places = (grid.rows, grid.cols) if across else (grid.cols, grid.rows)
    parts = [
        [_part(grid, row, col * step, along_row=across) for col in range(min(places // step, _COLS))]
        for row in range(min(lines, _ROWS))
    ]
    rows, cols = _period(parts), _period(list(zip(*parts, strict=True)))
    chart = Chart(width=_SIDE + cols * _CELL + 4, height=_TOP + rows * _HIGH + 4, title=title)
    for col in range(cols):
        chart.text(_SIDE + (col + 0.5) * _CELL, _TOP - 6, str(col * step), "muted", anchor="middle")
    for row in range(rows):
        y = _TOP + row * _HIGH
        chart.text(_SIDE - 5, y + 13, str(row), "muted", anchor="end")
        for col in range(cols):
            part, x = parts[row][col], _SIDE + col * _CELL
            chart.rect(x, y, _CELL - 1, _HIGH - 1, f"k{part} tint")
            chart.text(x + _CELL / 2, y + 13, str(part), anchor="middle")
    side = "row" if across else "column"
    note = f"A cell is {plural(step, 'element')} of a {side}, 16 bytes; its number is their place in the 128 bytes of "
    note += f"all banks. {rows} of {lines} {side}s, {cols} of {places // step} cells."
    return chart.svg(), note + (" What follows repeats them." if rows < len(parts) else "")


def _part(grid: CellGrid, line: int, place: int, *, along_row: bool) -> int:
    """Return the place of an element in the line of banks, in parts of 16 bytes."""
    offset = _offset(grid, line, place, along_row=along_row)
    assert offset is not None  # `_follows` has seen that offsets are numbers
    assert grid.bits is not None
    return offset * grid.bits // _PART_BITS % _PARTS


def _period(lines: Sequence[Sequence[int]]) -> int:
    """Return the number of lines after which they repeat; that of all of them if they do not."""
    periods = (1, 2, 4, 8)
    alike = (each for each in periods if all(line == lines[at % each] for at, line in enumerate(lines)))
    return min(next(alike, len(lines)), len(lines))


def _follows(grid: CellGrid, step: int, *, along_row: bool) -> bool:
    """Return whether the first 16 bytes of the first lines are elements that follow each other."""
    lines, places = (grid.rows, grid.cols) if along_row else (grid.cols, grid.rows)
    if places < step:
        return False
    for line in range(min(lines, _ROWS)):
        first = _offset(grid, line, 0, along_row=along_row)
        if first is None or [_offset(grid, line, at, along_row=along_row) for at in range(step)] != list(
            range(first, first + step)
        ):
            return False
    return True


def _offset(grid: CellGrid, line: int, place: int, *, along_row: bool) -> int | None:
    found = grid.at(line, place) if along_row else grid.at(place, line)
    return found if isinstance(found, int) else None
