"""Operands whose values are small integers in steps of a power of two, for products of 8-bit integers.

E2M1 values are multiples of 1/2 of up to 6, so integers of up to 12. Where the scale factors of each row are multiples
of one power of two, of at most ten times that, the row is a vector of 8-bit integers. The scale factors 1 and 2 of GPU
MODE's inputs are of this kind, and 2^-3 to 1. A CPU multiplies such operands several times as fast as float32, exactly,
and they take a quarter of the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.tcgen05.operand import Chunks
from pytest_nvfp4.sim.tcgen05.operand_tiles import (
    HIGHEST_GRID,
    LOWEST_GRID,
    NO_GRID,
    OperandEncoding,
    code_table,
    element_rows,
    scale_codes,
)

Product = Callable[[NDArray[np.int8], NDArray[np.int8]], NDArray[np.int32]]
"""Returns ``a [m, k] @ b [n, k].T``."""
_LARGEST_ELEMENT = 12
"""Of E2M1, in steps of 1/2."""
_LARGEST_FACTOR = 10
"""Largest scale factor of a row in steps of the row: 10 * 12 fits 8 bits."""
_EXACT = 1 << 24
"""Integers below it are float32, and so are all sums whose terms' magnitudes stay below it together."""
_ROWS_AT_ONCE = 16
"""Rows that are decoded together, which stay in the CPU's cache."""


@dataclass(eq=False)
class StepTile:
    """A decoded operand.

    Attributes:
        values: ``[row][k]`` in steps of ``2**grids``.
        grids: ``[row]``: exponent of the step.
        height: Number of rows up to the last that is not zero.
        bound: Upper bound of the norms of the rows in steps, from their scale factors.
    """

    values: NDArray[np.int8]
    grids: NDArray[np.int64]
    height: int
    bound: float

    @property
    def nbytes(self) -> int:
        """Size of the decoded values."""
        return self.values.nbytes

    @cached_property
    def norm(self) -> float:
        """Largest norm of a row in steps. Squares of up to 2**14 values below 2**7 fit 32 bits."""
        return float(np.sqrt(np.einsum("rk,rk->r", self.values, self.values, dtype=np.int32).max()))


def is_exact(a: StepTile, b: StepTile) -> bool:
    """Return whether no partial sum of a row of ``a`` and one of ``b`` can be rounded to float32, in any order.

    By Cauchy-Schwarz the magnitudes of the products have at most the sum of the product of the norms.
    """
    if a.grids.min() + b.grids.min() < LOWEST_GRID or a.grids.max() + b.grids.max() > HIGHEST_GRID:
        return False
    return a.bound * b.bound < _EXACT or a.norm * b.norm < _EXACT


def multiply(a: StepTile, b: StepTile, product: Product, out: NDArray[np.float32]) -> None:
    """Write the product of the rows of ``a`` and ``b`` that are not zero, which is exact, as float32."""
    if not (a.height and b.height):
        return
    ints = product(a.values[: a.height], b.values[: b.height])
    rows, columns = a.grids[: a.height], b.grids[: b.height]
    if (rows == rows[0]).all() and (columns == columns[0]).all():
        np.multiply(ints, np.float32(2.0 ** int(rows[0] + columns[0])), out=out, dtype=np.float32, casting="unsafe")
        return
    steps = np.ldexp(1.0, rows)[:, None] * np.ldexp(1.0, columns)[None, :]
    np.multiply(ints, steps, out=out, casting="unsafe")


def decode_steps(
    operand: OperandEncoding, parts: Sequence[Chunks], count: int, words: bytes, ids: tuple[int, ...], *,
    out: NDArray[np.int8] | None = None,
) -> StepTile | None:  # fmt: skip
    """Decode an operand of ``count`` instructions; None if it has other values. ``out`` is reusable memory."""
    rows = operand.rows * len(parts)
    codes = scale_codes(operand, words, count, rows, ids)
    table = code_table(operand.scale)
    lowest = table.grids.take(codes).min(axis=1).astype(np.int64)
    grids = np.where(lowest == NO_GRID, 0, lowest)  # a row of zeros, or of NaN
    steps = table.values.take(codes)
    steps *= np.ldexp(1.0, -grids)[:, None]
    if not steps.max() <= _LARGEST_FACTOR:  # or a NaN
        return None
    factors = steps.astype(np.uint8)
    scaled = bool((factors != 1).any())
    values = np.empty((rows, count * operand.k), np.int8) if out is None else out
    data = element_rows(operand, parts, count)
    four, block = _four(operand.negate), values.shape[1] // factors.shape[1]
    repeated = np.repeat(np.arange(_LARGEST_FACTOR + 1, dtype=np.int8)[:, None], block, axis=1)
    here = np.empty((min(rows, _ROWS_AT_ONCE), *factors.shape[1:], block), np.int8)
    for first in range(0, rows, _ROWS_AT_ONCE):
        batch = slice(first, first + _ROWS_AT_ONCE)
        part = values[batch]
        np.take(four, data[batch].view(np.uint16), out=part.view(np.uint32), mode="clip")
        if scaled:
            np.take(repeated, factors[batch], axis=0, out=here[: len(part)], mode="clip")
            np.multiply(part, here[: len(part)].reshape(part.shape), out=part)
    height = rows
    while height and not values[height - 1].any():
        height -= 1
    squares = np.einsum("rb,rb->r", factors, factors, dtype=np.int64)
    return StepTile(values, grids - 1, height, bound=float(np.sqrt(squares.max() * block)) * _LARGEST_ELEMENT)


@cache
def _four(negate: bool) -> NDArray[np.uint32]:
    """Return the four E2M1 values of every 16-bit code as bytes of a word, in steps of 1/2, lowest nibble first."""
    codes = np.arange(1 << 16)
    table = (code_table("e2m1").values * 2).astype(np.int8)
    four = np.stack([table[codes >> 4 * i & 15] for i in range(4)], axis=1)
    return np.ascontiguousarray(-four if negate else four).view(np.uint32).ravel()
