"""Fragments of ``tcgen05.ld``: the element of a tile that each lane and register holds, by shape of the load.

Source: PTX ISA, "Data Movement Shape" (the table of `pytest_nvfp4.sim.tcgen05.loadstore`; tests compare the two).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_nvfp4.layout.notation import Layout
from pytest_nvfp4.layout.tree import Tree
from pytest_nvfp4.layout.warp import WARP

LANES = 128
_MOST_REPEAT = {"32x32b": 128, "16x256b": 32, "16x128b": 64, "16x64b": 128}


@dataclass(frozen=True, slots=True)
class Fragment:
    """Registers of a warp after one load of its 32 lanes.

    Attributes:
        load: Shape and repetition.
        lanes: Modes of the lanes: (size, rows of a step, columns of a step).
        values: Modes of a lane's values in the same form, contiguous values first.
        contiguous: Number of values of a thread that are contiguous in a row.
        registers: fp32 registers of one instruction.
    """

    load: str
    lanes: tuple[tuple[int, int, int], ...]
    values: tuple[tuple[int, int, int], ...]
    contiguous: int
    registers: int

    def thread_value(self, parts: int, columns: int) -> Layout:
        """Return the layout (thread, value) -> index in a column-major tile of 128 rows."""
        threads = [*self.lanes, (4, WARP, 0)] + ([(parts, 0, columns)] if parts > 1 else [])
        return _layout(threads, self.values)

    def elements(self, lane: int) -> list[tuple[int, int]]:
        """Return (row, column) of each value of a lane of warp 0, in the order of the values."""
        row, column = _walk(self.lanes, lane)
        size = math.prod(size for size, _, _ in self.values)
        return [(row + r, column + c) for r, c in (_walk(self.values, at) for at in range(size))]


def _walk(modes: Sequence[tuple[int, int, int]], index: int) -> tuple[int, int]:
    row = column = 0
    for size, rows, columns in modes:
        index, at = divmod(index, size)
        row, column = row + at * rows, column + at * columns
    return row, column


def _layout(threads: Sequence[tuple[int, int, int]], values: Sequence[tuple[int, int, int]]) -> Layout:
    def tree(modes: Sequence[tuple[int, int, int]]) -> tuple[Tree, Tree]:
        real = [mode for mode in modes if mode[0] > 1] or [(1, 0, 0)]
        shape, stride = tuple(size for size, _, _ in real), tuple(rows + LANES * columns for _, rows, columns in real)
        return (shape, stride) if len(shape) > 1 else (shape[0], stride[0])

    (thread_shape, thread_stride), (value_shape, value_stride) = tree(threads), tree(values)
    return Layout((thread_shape, value_shape), (thread_stride, value_stride))


def fragments(columns: int) -> Iterator[Fragment]:
    """Yield every load of 32 lanes by this number of columns: the shapes with a repetition (power of two) for it."""

    def repeat(shape: str, width: int) -> int | None:
        count, left = divmod(columns, width)
        return count if not left and count & (count - 1) == 0 and 1 <= count <= _MOST_REPEAT[shape] else None

    if (count := repeat("32x32b", 1)) is not None:
        yield Fragment(f"32x32b.x{count}", ((32, 1, 0),), ((columns, 0, 1),), columns, columns)
    # Shapes of 16 lanes need two loads, for the lower and the upper half of the warp's 32 lanes.
    if (count := repeat("16x256b", 8)) is not None:
        pairs = ((2, 0, 1), (2, 8, 0), (count, 0, 8), (2, 16, 0))
        yield Fragment(f"16x256b.x{count}", ((4, 0, 2), (8, 1, 0)), pairs, 2, 4 * count)
    if (count := repeat("16x128b", 4)) is not None:
        halves = ((2, 8, 0), (count, 0, 4), (2, 16, 0))
        yield Fragment(f"16x128b.x{count}", ((4, 0, 1), (8, 1, 0)), halves, 1, 2 * count)
    if (count := repeat("16x64b", 2)) is not None:
        lanes = ((2, 8, 0), (2, 0, 1), (8, 1, 0))
        yield Fragment(f"16x64b.x{count}", lanes, ((count, 0, 2), (2, 16, 0)), 1, count)
