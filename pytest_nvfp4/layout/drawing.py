"""Drawings of small layouts: inline SVG for pages.

A drawing shows at most ``max_rows`` x ``max_cols`` cells, moves that window to the first changed cell, and states
which cells are hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pytest_nvfp4.layout.grid import (
    CellGrid,
    Window,
    broadcast_leaves,
    first_changed,
    grid_of,
    text_of,
    weight_of,
    window_of,
)
from pytest_nvfp4.layout.irtypes import TypeInfo
from pytest_nvfp4.layout.notation import AnyLayout
from pytest_nvfp4.layout.svg import SHADES, Panel, document
from pytest_nvfp4.layout.tree import Tree

Colour = Literal["stride", "bank"]
Target = TypeInfo | AnyLayout

MAX_ROWS = 64
MAX_COLS = 64

Paint: TypeAlias = "Callable[[Tree | None], str]"


def draw_svg(
    target: Target, *, title: str, colour: Colour = "stride", max_rows: int = MAX_ROWS, max_cols: int = MAX_COLS
) -> str:
    """Return one layout as SVG: offsets in a grid.

    Args:
        target: a type (its pointer's swizzle then acts on byte addresses) or a layout alone.
        title: the accessible name.
        colour: ``stride`` shades by offset, so that the shade moves along the larger stride; ``bank`` colours by
            the 16-byte part of the 128-byte line of shared-memory banks (only types with a known element size).
        max_rows: largest number of rows.
        max_cols: largest number of columns.

    Raises:
        UndrawableLayout: the layout is dynamic.
    """
    once = broadcast_leaves(target)
    grid = grid_of(target, once=once)
    window = window_of(grid, max_rows=max_rows, max_cols=max_cols)
    panel = _panel(grid, window, _painter(colour, [grid], [window]), heading=str(_layout_text(target)), changed=set())
    notes = [_colour_note(colour, grid), *_once_note(once), *_notes(window.statement(grid))]
    return document([panel], title=title, desc=f"{_describe(grid)} {' '.join(notes)}", notes=notes)


def draw_pair_svg(
    old: Target,
    new: Target,
    *,
    title: str,
    colour: Colour = "stride",
    max_rows: int = MAX_ROWS,
    max_cols: int = MAX_COLS,
) -> str:
    """Return two layouts side by side as SVG, with moved cells marked in both (see :func:`draw_svg`).

    Cells are compared where both grids have them.
    """
    pair = _pair(old, new, max_rows=max_rows, max_cols=max_cols)
    paint = _painter(colour, pair.grids, pair.windows)
    panels = [
        _panel(grid, window, paint, heading=f"{label} {_layout_text(target)}", changed=pair.changed)
        for label, grid, window, target in zip(("old", "new"), pair.grids, pair.windows, (old, new), strict=True)
    ]
    notes = [*_change_notes(pair), _colour_note(colour, pair.grids[0]), *_once_note(pair.once)]
    for label, grid, window in zip(("old", "new"), pair.grids, pair.windows, strict=True):
        notes += [f"{label}: {text}" for text in _notes(window.statement(grid))]
    return document(panels, title=title, desc=" ".join([*map(_describe, pair.grids), *notes]), notes=notes)


def _panel(grid: CellGrid, window: Window, paint: Paint, *, heading: str, changed: set[tuple[int, int]]) -> Panel:
    offsets = {cell: grid.at(*cell) for cell in window.cells()}
    return Panel(
        heading=heading,
        window=window,
        texts={cell: text_of(offset) for cell, offset in offsets.items()},
        paints={cell: paint(offset) for cell, offset in offsets.items()},
        changed=changed,
    )


@dataclass(frozen=True)
class _Pair:
    """Old and new layout of one drawing.

    Attributes:
        once: Broadcast modes with one cell for all their members.
        grids, windows: Grid and visible window of each.
        changed: Cells in both windows whose offsets differ.
    """

    once: frozenset[int]
    grids: tuple[CellGrid, CellGrid]
    windows: tuple[Window, Window]
    changed: set[tuple[int, int]]


def _pair(old: Target, new: Target, *, max_rows: int, max_cols: int) -> _Pair:
    """Return both layouts with the window at the first changed cell."""
    once = _once_in_both(old, new)
    grids = (grid_of(old, once=once), grid_of(new, once=once))
    focus = first_changed(*grids)
    windows = (
        window_of(grids[0], max_rows=max_rows, max_cols=max_cols, focus=focus),
        window_of(grids[1], max_rows=max_rows, max_cols=max_cols, focus=focus),
    )
    shared = set(windows[0].cells()) & set(windows[1].cells())
    changed = {cell for cell in shared if grids[0].at(*cell) != grids[1].at(*cell)}
    return _Pair(once, grids, windows, changed)


def _once_in_both(old: Target, new: Target) -> frozenset[int]:
    """Return the broadcast modes if both layouts share them; otherwise equal cells would mean different indices."""
    places = broadcast_leaves(old)
    return places if places == broadcast_leaves(new) else frozenset()


def _once_note(once: frozenset[int]) -> list[str]:
    return ["Modes of stride 0 have one cell for all their members."] if once else []


def _change_notes(pair: _Pair) -> list[str]:
    old, new = pair.grids
    shared = len(set(pair.windows[0].cells()) & set(pair.windows[1].cells()))
    notes = [f"{len(pair.changed)} of the {shared} cells shown of both have another offset (outlined)."]
    if (old.rows, old.cols) != (new.rows, new.cols):
        notes.append(
            f"The grids are {old.rows} x {old.cols} and {new.rows} x {new.cols}; cells of one only are unmarked."
        )
    return notes


def _colour_note(colour: Colour, grid: CellGrid) -> str:
    if colour == "bank" and grid.bits:
        return "Colour = 16-byte part of the 128-byte line of banks."
    return "Shade = offset."


def _painter(colour: Colour, grids: Iterable[CellGrid], windows: Iterable[Window]) -> Paint:
    shown = [(grid, window) for grid, window in zip(grids, windows, strict=True)]
    bits = shown[0][0].bits
    if colour == "bank" and bits:
        return lambda offset: "none" if offset is None else f"k{int(weight_of(offset)) * bits // 8 // 16 % SHADES}"
    top = max((weight_of(grid.at(*cell)) for grid, window in shown for cell in window.cells()), default=0.0)
    return lambda offset: "none" if offset is None else f"r{_shade(weight_of(offset), top)}"


def _shade(weight: float, top: float) -> int:
    return min(SHADES - 1, max(0, int(weight * SHADES / (top + 1))))


def _layout_text(target: Target) -> str:
    if not isinstance(target, TypeInfo):
        return str(target)
    head = "" if target.pointer_swizzle is None else f"{target.pointer_swizzle} on bytes, "
    return f"{head}{target.layout}"


def _describe(grid: CellGrid) -> str:
    return f"{grid.rows} rows ({grid.row_label}) x {grid.cols} columns ({grid.col_label})."


def _notes(statement: str | None) -> list[str]:
    return [] if statement is None else [statement + "."]
