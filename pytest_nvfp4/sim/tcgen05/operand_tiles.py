"""Decoded operands of a chain of MMAs.

An operand tile is an operand over all instructions of a chain: ``[row][k]`` in float32 (float64 where scale factors
leave float32's range), scale factors applied. Each value is exact: an element times a scale has at most 8 significant
bits, and f16, bf16 and tf32 are subsets of float32. A tile also holds what the proof of exactness needs (see
``accumulate``): for each row a grid (every value of the row is a multiple of 2**grid), and for each row and instruction
a bound on the sum of the squares of the values, in steps of the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.numerics.formats import FORMATS, lowest_bits
from pytest_nvfp4.sim.tcgen05.operand import Chunks, k_major_rows

_ROWS_AT_ONCE = 16
"""Rows that are decoded together: half a megabyte at 7,168 elements a row, which stays in the CPU's cache."""


LOWEST_GRID, HIGHEST_GRID = -149, 100
"""Grids on which all integers up to 2**24 steps are float32: subnormals end at 2**-149, and 2**(100 + 24) is finite."""
NO_GRID = 127
"""Grid of zero and of values that are not finite: no constraint."""


@dataclass(frozen=True, slots=True, eq=False)
class CodeTable:
    """Values and grids of all bytes, each read as a code in its low bits; ``values`` are exact in float64.

    The grid of a value is the exponent g of the largest 2**g that divides it exactly.
    """

    values: NDArray[np.float64]
    grids: NDArray[np.int16]


@cache
def code_table(name: str) -> CodeTable:
    """Return the table of a format of 8 bits or fewer: e2m1, e2m3, e3m2, e4m3, e5m2, s8, u8, ue4m3 or ue8m0."""
    codes = np.arange(256)
    if name in ("s8", "u8"):
        values = codes.astype(np.uint8).view(np.int8 if name == "s8" else np.uint8).astype(np.float64)
    else:
        values = FORMATS[name].values[codes % FORMATS[name].codes]
    grids = np.minimum(lowest_bits(values), NO_GRID).astype(np.int16)
    values.flags.writeable = grids.flags.writeable = False
    return CodeTable(values, grids)


@dataclass(frozen=True, slots=True)
class OperandEncoding:
    """Meaning of an operand's bytes.

    Attributes:
        element: Name of the element format.
        packed: Whether a byte holds two E2M1 elements; otherwise every element fills its container.
        mn: Whether the operand is M- or N-major.
        rows: Rows in one CTA's part.
        k: Elements of K in an instruction.
        scale: Name of the scale format, empty without block scaling.
        vector: Scale factors for each row and instruction.
    """

    element: str
    packed: bool
    negate: bool
    mn: bool
    rows: int
    k: int
    scale: str
    vector: int

    @property
    def chunks(self) -> int:
        """Chunks of 16 bytes of a row and instruction."""
        return 3 if self.k == 96 else 2

    @property
    def element_bytes(self) -> int:
        """Bytes of an element's container; 1 for sub-byte formats (in 16-byte groups of 16, or packed)."""
        return {"f16": 2, "bf16": 2, "tf32": 4}.get(self.element, 1)


@dataclass(slots=True, eq=False)
class OperandTile:
    """A decoded operand.

    Attributes:
        values: ``[row][k]``.
        grids: ``[row]``: exponent of a power of two that divides every value of the row.
        squares: ``[row][instruction]``: upper bounds of the sums of squares, in grid steps.
        height: Number of rows up to the last that is not zero.
    """

    values: NDArray[Any]
    grids: NDArray[np.int64]
    squares: NDArray[np.float64]
    height: int

    @property
    def nbytes(self) -> int:
        """Size of the decoded values."""
        return self.values.nbytes


@cache
def _pairs(negate: bool) -> NDArray[np.float32]:
    """Return the four E2M1 values of every 16-bit code, lowest nibble first."""
    codes = np.arange(65536)
    table = code_table("e2m1").values
    four = np.stack([table[codes >> 4 * i & 15] for i in range(4)], axis=1)
    return np.ascontiguousarray(-four if negate else four, np.float32)


@cache
def _repeated(name: str, times: int) -> NDArray[np.float32]:
    """Return the value of every scale-factor code, repeated ``times`` times: one block of elements."""
    with np.errstate(over="ignore", under="ignore"):
        return np.ascontiguousarray(np.repeat(code_table(name).values[:, None], times, axis=1), np.float32)


def decode(
    operand: OperandEncoding, parts: Sequence[Chunks], count: int, words: bytes, ids: tuple[int, ...], *,
    out: NDArray[np.float32] | None = None, scratch: NDArray[np.float32] | None = None,
) -> OperandTile:  # fmt: skip
    """Decode an operand of ``count`` instructions; ``out`` and ``scratch`` are reusable memory of the tile's shape."""
    rows = operand.rows * len(parts)
    data = element_rows(operand, parts, count)
    shape = (rows, count * operand.k)
    if out is None:
        out = np.empty(shape, np.float32)
    values: NDArray[Any] = out
    codes = scale_codes(operand, words, count, rows, ids) if operand.scale else None
    if codes is not None and operand.packed and operand.scale == "ue4m3":
        grids = _scale_grids(np.full(rows, -1), operand, codes)
        squares = _packed(operand, data, codes, values, count)
    else:
        if operand.packed:
            np.take(_pairs(operand.negate), data.view(np.uint16), axis=0, out=out.reshape(rows, -1, 4), mode="clip")
            grids = np.full(rows, -1)  # Every E2M1 value is a multiple of 1/2.
        else:
            grids = _unpacked(operand, data, out)
        if codes is not None:
            grids = _scale_grids(grids, operand, codes)
            values = _scaled(operand, out, codes, scratch)
        narrow = operand.scale in ("", "ue4m3") and operand.element_bytes == 1
        # Squares of narrow formats neither vanish nor overflow in float32; each addition rounds once.
        wide = (values if narrow else values.astype(np.float64)).reshape(rows, count, operand.k)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.einsum("rik,rik->ri", wide, wide).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        # Each term of the float32 sum takes at most k roundings, of a relative error of 2**-24 each: enlarged by
        # 1 + k * 2**-23 the sum bounds the exact one.
        squares *= 1 + operand.k * 2.0**-23
        filled = np.flatnonzero(squares.any(axis=1))
        squares *= np.ldexp(1.0, -2 * grids)[:, None]
    return OperandTile(values, grids, squares, int(filled[-1]) + 1 if filled.size else 0)


def element_rows(operand: OperandEncoding, parts: Sequence[Chunks], count: int) -> NDArray[np.uint8]:
    """Return the bytes of an operand's elements, ``[row][...]``: two in each if ``packed``, else each in its own."""
    size = operand.element_bytes
    if not operand.packed and operand.element in ("e2m1", "e2m3", "e3m2"):
        parts = [_bytes_of(operand.element, part) for part in parts]
    split = [
        k_major_rows(part, count, rows=operand.rows, mn=operand.mn, element_bytes=size).reshape(operand.rows, -1)
        for part in parts
    ]
    return split[0] if len(split) == 1 else np.concatenate(split)


def _packed(
    operand: OperandEncoding, data: NDArray[np.uint8], codes: NDArray[np.uint8], values: NDArray[np.float32], count: int
) -> NDArray[np.float64]:  # fmt: skip
    """Decode E2M1 with E4M3 scale factors into ``values``, a few rows at a time.

    Returns:
        The sums of squares by row and instruction, which neither underflow nor overflow in float32.
    """
    rows, wide = values.shape
    block = operand.k // operand.vector
    pairs, scale = _pairs(operand.negate), _repeated(operand.scale, block)
    factors = np.empty((min(rows, _ROWS_AT_ONCE), wide), np.float32)
    squares = np.empty((rows, count), np.float64)
    for first in range(0, rows, _ROWS_AT_ONCE):
        batch = slice(first, first + _ROWS_AT_ONCE)
        part = values[batch]
        here = factors[: len(part)]
        np.take(pairs, data[batch].view(np.uint16), axis=0, out=part.reshape(len(part), -1, 4), mode="clip")
        np.take(scale, codes[batch], axis=0, out=here.reshape(len(part), -1, block), mode="clip")
        np.multiply(part, here, out=part)
        by_instruction = part.reshape(len(part), count, operand.k)
        squares[batch] = np.einsum("rik,rik->ri", by_instruction, by_instruction)
    return squares


def _scale_grids(grids: NDArray[np.int64], operand: OperandEncoding, codes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the grids of the rows after their scale factors are applied."""
    scaled: NDArray[np.int64] = np.minimum(grids + code_table(operand.scale).grids.take(codes).min(axis=1), NO_GRID)
    return scaled


def _scaled(
    operand: OperandEncoding, values: NDArray[np.float32], codes: NDArray[np.uint8], scratch: NDArray[np.float32] | None
) -> NDArray[Any]:  # fmt: skip
    """Return the values times their scale factors, in place unless float32 cannot hold them."""
    block = operand.k // operand.vector
    if operand.scale == "ue8m0" and _extreme(codes):
        wide = values.astype(np.float64).reshape(len(values), -1, block)
        wide *= code_table(operand.scale).values[codes][:, :, None]
        return wide.reshape(values.shape)
    if scratch is None:
        scratch = np.empty(values.shape, np.float32)
    factors = scratch.reshape(len(values), -1, block)
    np.take(_repeated(operand.scale, block), codes, axis=0, out=factors, mode="clip")
    return np.multiply(values, scratch, out=values)


def _unpacked(operand: OperandEncoding, data: NDArray[np.uint8], values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Decode formats other than packed E2M1 into ``values`` and return the grids of the rows."""
    element = operand.element
    if element == "f16":
        np.copyto(values, data.view(np.float16))
    elif element == "bf16":
        np.left_shift(data.view(np.uint16), 16, out=values.view(np.uint32), dtype=np.uint32)
    elif element == "tf32":
        np.bitwise_and(data.view(np.uint32), np.uint32(0xFFFF_E000), out=values.view(np.uint32))
    else:
        table = code_table(element)
        np.take(table.values.astype(np.float32), data, out=values, mode="clip")
        if operand.negate:
            np.negative(values, out=values)
        grids: NDArray[np.int64] = table.grids.take(data).min(axis=1).astype(np.int64)
        return grids
    if operand.negate:
        np.negative(values, out=values)
    return _grid_of(values)


def _bytes_of(element: str, chunks: Chunks) -> Chunks:
    """Return sub-byte elements, of which each chunk holds 16 in its first bytes, as one code a byte."""
    groups = np.ascontiguousarray(chunks).view(np.uint8).reshape(-1, 16)
    codes = np.empty_like(groups)
    if element == "e2m1":
        codes[:, 0::2] = groups[:, :8] & 15
        codes[:, 1::2] = groups[:, :8] >> 4
    else:
        three = groups[:, :12].reshape(-1, 3).astype(np.uint32)
        word = three[:, 0] | three[:, 1] << 8 | three[:, 2] << 16
        codes[...] = np.stack([word >> 6 * i & 63 for i in range(4)], axis=1).reshape(codes.shape)
    unpacked: Chunks = codes.view(np.complex128).reshape(chunks.shape)
    return unpacked


def _grid_of(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return for each row the exponent of the largest power of two that divides all its values."""
    bits = values.view(np.uint32)
    exponent = (bits >> 23 & 0xFF).astype(np.int32)
    mantissa = (bits & 0x7F_FFFF | np.where(exponent > 0, 0x80_0000, 0)).astype(np.int32)
    # The lowest set bit of the mantissa is 2**(power - 1), and a float32 is mantissa * 2**(max(exponent, 1) - 150).
    _, power = np.frexp((mantissa & -mantissa).astype(np.float32))
    grids = np.maximum(exponent, 1) - 151 + power
    grids[(mantissa == 0) | (exponent == 255)] = NO_GRID
    lowest: NDArray[np.int64] = grids.min(axis=1).astype(np.int64)
    return lowest


def scale_codes(
    operand: OperandEncoding, words: bytes, count: int, rows: int, ids: tuple[int, ...]
) -> NDArray[np.uint8]:  # fmt: skip
    """Return the codes of scale factors, ``[row][instruction * vector]``."""
    if operand.k == 96:
        pairs = np.frombuffer(words, np.uint8).reshape(count, 2, -1, 4)[:, :, :rows]
        codes = pairs.transpose(0, 2, 1, 3).reshape(count, rows, 8)
    else:
        codes = np.frombuffer(words, np.uint8).reshape(count, -1, 4)[:, :rows]
    if operand.vector == 4:
        return np.ascontiguousarray(codes.view(np.uint32)[:, :, 0].T).view(np.uint8)
    chosen = np.array(ids)[:, None, None] + np.arange(operand.vector)[None, None, :]
    picked = np.take_along_axis(codes, np.broadcast_to(chosen, (count, rows, operand.vector)), axis=2)
    return np.ascontiguousarray(picked.transpose(1, 0, 2)).reshape(rows, -1)


def _extreme(codes: NDArray[np.uint8]) -> bool:
    """Return whether an element times one of these E8M0 scale factors may leave float32's normal range."""
    return bool(codes.min() < 40 or (np.where(codes == 255, 0, codes)).max() > 214)
