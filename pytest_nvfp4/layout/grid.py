"""Grid of cells of a static layout: the coordinate and offset of each cell.

A drawing shows a window of such a grid. Rows and columns follow from the modes:

* two modes: rows x columns;
* one mode, or all other modes of size 1: the 1-D index, wrapped every 32 cells;
* more modes: rows are the first mode (the first part of it when it has two parts, as MMA modes do), columns all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from pytest_nvfp4.layout.algebra import concat, modes
from pytest_nvfp4.layout.coordinates import Vector, add_vectors, as_tree, tree_vector
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.irtypes import TypeInfo, dtype_bits
from pytest_nvfp4.layout.notation import AnyLayout, ComposedLayout, Layout, Swizzle
from pytest_nvfp4.layout.roles import plain
from pytest_nvfp4.layout.tree import ScaledBasis, Tree, leaves, map_leaves, render_tree

WRAP = 32
MAX_SCAN = 1 << 18


class UndrawableLayout(LayoutError):
    """Layout that has no fixed cells: it is dynamic, or the type has no layout."""


@dataclass(frozen=True)
class CellGrid:
    """All cells of a static layout.

    Attributes:
        rows: number of rows.
        cols: number of columns.
        row_label: modes of the rows, as ``shape:stride``.
        col_label: modes of the columns.
        at: the offset in a cell, in elements, in CuTe's notation: a number, or a coordinate; ``None`` past the end of
            a wrapped index.
        bits: bits of an element, ``None`` if unknown.
        size: the number of cells, fewer than ``rows * cols`` for a wrapped index.
    """

    rows: int
    cols: int
    row_label: str
    col_label: str
    at: Callable[[int, int], Tree | None]
    bits: int | None
    size: int


@dataclass(frozen=True, slots=True)
class Window:
    """Visible part of a grid: ``rows`` x ``cols`` cells from (``row``, ``col``) on."""

    row: int
    col: int
    rows: int
    cols: int

    def cells(self) -> Iterator[tuple[int, int]]:
        """Return every cell of the window, row by row."""
        for row in range(self.row, self.row + self.rows):
            for col in range(self.col, self.col + self.cols):
                yield row, col

    def shown(self, grid: CellGrid) -> int:
        """Return the number of cells of the grid in the window."""
        return sum(grid.at(*cell) is not None for cell in self.cells())

    def statement(self, grid: CellGrid) -> str | None:
        """Describe the hidden part of the grid; ``None`` if there is none."""
        if (self.rows, self.cols) == (grid.rows, grid.cols):
            return None
        return (
            f"rows {self.row}-{self.row + self.rows - 1} of {grid.rows}, "
            f"columns {self.col}-{self.col + self.cols - 1} of {grid.cols}: "
            f"{grid.size - self.shown(grid)} of {grid.size} cells are not shown"
        )


def why_not(target: TypeInfo | AnyLayout) -> str | None:
    """Return the reason why a type or layout cannot be drawn, or ``None``."""
    layout = target.layout if isinstance(target, TypeInfo) else target
    if layout is None:
        return "the type holds no layout"
    for part in _parts(layout):
        for leaf in leaves(part):
            value = leaf.value if isinstance(leaf, ScaledBasis) else leaf
            if not isinstance(value, int | Fraction):
                return f"{render_tree(part)} is known only at run time"
    return None


def broadcast_leaves(target: TypeInfo | AnyLayout) -> frozenset[int]:
    """Return the positions, among the flattened modes, of those with stride 0 and more than one member."""
    layout = target.layout if isinstance(target, TypeInfo) else target
    if layout is None:
        return frozenset()
    pairs = zip(leaves(plain(layout).shape), leaves(plain(layout).stride), strict=True)
    return frozenset(at for at, (shape, stride) in enumerate(pairs) if stride == 0 and shape != 1)


def grid_of(target: TypeInfo | AnyLayout, *, once: frozenset[int] = frozenset()) -> CellGrid:
    """Return the grid of a type's layout (with the pointer's swizzle, on byte addresses) or of a layout alone.

    Args:
        target: the type or layout.
        once: positions of flattened modes of which only the first member gets cells; see `broadcast_leaves`.

    Raises:
        UndrawableLayout: a part is known only at run time, or there is no layout.
    """
    if reason := why_not(target):
        raise UndrawableLayout(f"cannot draw {target}: {reason}; draw a layout whose shape and strides are numbers")
    layout = target.layout if isinstance(target, TypeInfo) else target
    assert layout is not None
    bits = dtype_bits(target.dtype) if isinstance(target, TypeInfo) else None
    swizzle = target.pointer_swizzle if isinstance(target, TypeInfo) else None
    rows, cols = _axes(_reduced(plain(layout), once))
    finish = _finish(layout, swizzle, bits)
    row_at, col_at = _axis(rows), _axis(cols)
    count_rows, count_cols = _count(rows), _count(cols)
    size = count_rows * count_cols
    if min(count_rows, count_cols) > 1:
        return CellGrid(
            count_rows,
            count_cols,
            _label(rows),
            _label(cols),
            lambda row, col: finish(add_vectors(row_at(row), col_at(col))),
            bits,
            size,
        )
    line_at = _axis([*rows, *cols])
    if size <= WRAP:
        return CellGrid(1, size, "one row", _label([*rows, *cols]), lambda _row, col: finish(line_at(col)), bits, size)

    def wrapped(row: int, col: int) -> Tree | None:
        index = row * WRAP + col
        return finish(line_at(index)) if index < size else None

    label = f"index of {_label([*rows, *cols])}, {WRAP} a row"
    return CellGrid(math.ceil(size / WRAP), WRAP, label, "index in the row", wrapped, bits, size)


def window_of(grid: CellGrid, *, max_rows: int, max_cols: int, focus: tuple[int, int] | None = None) -> Window:
    """Return the window of at most ``max_rows`` x ``max_cols`` cells; it contains ``focus``."""
    rows, cols = min(grid.rows, max_rows), min(grid.cols, max_cols)
    row, col = focus or (0, 0)
    return Window(_start(row, rows, grid.rows), _start(col, cols, grid.cols), rows, cols)


def _start(focus: int, shown: int, total: int) -> int:
    return 0 if focus < shown else min(focus, total - shown)


def first_changed(old: CellGrid, new: CellGrid) -> tuple[int, int] | None:
    """Return the first common cell, row by row, whose offsets differ; ``None`` if none of the first 262,144 does."""
    cols = min(old.cols, new.cols)
    for index in range(min(min(old.rows, new.rows) * cols, MAX_SCAN)):
        row, col = divmod(index, cols)
        if old.at(row, col) != new.at(row, col):
            return row, col
    return None


def text_of(offset: Tree | None) -> str:
    """Return a cell's text: ``64``, ``1/2``, ``(3,0)`` for a coordinate, empty for no cell."""
    return "" if offset is None else render_tree(offset)


def weight_of(offset: Tree | None) -> float:
    """Return a number to shade a cell by: the offset, or the sum of a coordinate's parts."""
    if offset is None:
        return 0.0
    return float(sum(leaf for leaf in leaves(offset) if isinstance(leaf, int | Fraction)))


def _parts(layout: AnyLayout) -> Iterator[Tree]:
    while isinstance(layout, ComposedLayout):
        if isinstance(layout.inner, Layout):
            yield from (layout.inner.shape, layout.inner.stride)
        yield layout.offset
        layout = layout.outer
    yield from (layout.shape, layout.stride)


def _reduced(layout: Layout, once: frozenset[int]) -> Layout:
    """Return the layout with size 1 in the leaves at these positions."""
    places = iter(range(len(leaves(layout.shape))))
    return Layout(map_leaves(lambda leaf: 1 if next(places) in once else leaf, layout.shape), layout.stride)


def _axes(layout: Layout) -> tuple[list[Layout], list[Layout]]:
    top = list(modes(layout))
    if len(top) != 2 and top and len(parts := modes(top[0])) == 2:
        return [parts[0]], [parts[1], *top[1:]]
    return top[:1], top[1:]


def _count(axis: list[Layout]) -> int:
    sizes = [leaf for mode in axis for leaf in leaves(mode.shape)]
    return math.prod(size for size in sizes if isinstance(size, int))


def _label(axis: list[Layout]) -> str:
    return ", ".join(map(str, axis)) or "one"


def _axis(axis: list[Layout]) -> Callable[[int], Vector]:
    """Return the value at the i-th coordinate of these modes, the first fastest; values are cached."""
    joint = concat(axis)
    known: dict[int, Vector] = {}

    def at(index: int) -> Vector:
        if index not in known:
            known[index] = joint.vector(index) if axis else {}
        return known[index]

    return at


def _finish(layout: AnyLayout, pointer: Swizzle | None, bits: int | None) -> Callable[[Vector], Tree]:
    """Return the function from outer values to offsets: coordinate offsets, inner functions, the pointer's swizzle."""
    steps: list[Callable[[Vector], Vector]] = []
    if pointer is not None:
        steps.append(_on_bytes(pointer, bits))
    while isinstance(layout, ComposedLayout):
        steps.append(_composed(layout))
        layout = layout.outer
    steps.reverse()

    def finish(value: Vector) -> Tree:
        for step in steps:
            value = step(value)
        return as_tree(value)

    return finish


def _composed(layout: ComposedLayout) -> Callable[[Vector], Vector]:
    shift, inner = tree_vector(layout.offset), layout.inner
    if inner is None:
        return lambda value: add_vectors(shift, value)
    if isinstance(inner, Swizzle):
        return lambda value: {(): inner(_whole(add_vectors(shift, value)))}
    return lambda value: inner.vector(as_tree(add_vectors(shift, value)))


def _on_bytes(swizzle: Swizzle, bits: int | None) -> Callable[[Vector], Vector]:
    width = bits or 8

    def step(value: Vector) -> Vector:
        byte, rest = divmod(_whole(value) * width, 8)
        return {(): (swizzle(byte) * 8 + rest) // width}

    return step


def _whole(value: Vector) -> int:
    offset = as_tree(value)
    if isinstance(offset, int):
        return offset
    raise UndrawableLayout(f"offset {render_tree(offset)} is not a whole number, so no swizzle can follow it")
