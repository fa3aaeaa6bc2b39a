"""Operands of a chain of MMAs as numbers: decoded once, kept while they are likely to come again.

A *tile* is an operand over all instructions of a chain: ``[row][k]`` in float32 (float64 where scale factors leave
float32's range), scale factors applied. Each value is exact: an element times a scale has at most 8 significant bits,
f16, bf16 and tf32 are float32 themselves. With it comes what the proof of exactness needs: for each row a grid (every
value of the row is a multiple of 2**grid), and for each row and instruction a bound on the sum of the squares of the
values, counted in steps of the grid.

Tiles are looked up by their bytes, all of which are compared: the CTAs of one column of a grid share their weights.
Counters: ``mma.tiles.decoded``, ``mma.tiles.shared`` are not kept, as they depend on the order of the CTAs.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.tcgen05.formats import NO_GRID, code_table
from pytest_nvfp4.sim.tcgen05.operand import Chunks, Recordings, k_major_rows

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.machine import Machine

__all__ = ["OperandEncoding", "OperandTile", "OperandTileCache", "decode"]

_BUDGET = 96 << 20
"""Bytes of decoded tiles that a cache keeps."""
_SAMPLES = 64
_TOGETHER = 16
"""Rows that are decoded together: at 7,168 elements a row half a megabyte."""


@dataclass(frozen=True, slots=True)
class OperandEncoding:
    """What an operand's bytes mean. ``packed`` for two E2M1 a byte; else every element fills its bytes."""

    form: str
    packed: bool
    negate: bool
    mn: bool
    rows: int
    """Rows in one CTA's part."""
    k: int
    """Elements of K an instruction."""
    scale: str
    vector: int

    @property
    def element_bytes(self) -> int:
        """Bytes of an element's place; 1 for sub-byte formats (of 16-byte groups of 16, or packed)."""
        return {"f16": 2, "bf16": 2, "tf32": 4}.get(self.form, 1)


@dataclass(slots=True, eq=False)
class OperandTile:
    """A decoded operand.

    Attributes:
        values: ``[row][k]``.
        grids: ``[row]``: exponents.
        squares: ``[row][instruction]``: bounds of the sums of squares, in grid steps.
        height: Rows up to the last that is not zero.
    """

    values: NDArray[Any]
    grids: NDArray[np.int64]
    squares: NDArray[np.float64]
    height: int


class OperandTileCache:
    """Decoded tiles, and the memory for them: ``machine.unit(OperandTileCache)``."""

    def __init__(self, machine: Machine | None = None, *, budget: int = _BUDGET) -> None:
        del machine
        self.budget = budget
        self.held = 0
        self.hits = 0
        self.misses = 0
        self._tiles: OrderedDict[tuple[Any, ...], tuple[list[NDArray[np.uint64]], bytes, OperandTile]] = OrderedDict()
        self._scratch: dict[tuple[int, int], NDArray[np.float32]] = {}
        self.recordings = Recordings()

    def get(self, operand: OperandEncoding, parts: list[Chunks], words: bytes, ids: tuple[int, ...]) -> OperandTile:
        """The tile of a chain.

        Args:
            parts: For each CTA that holds rows of the operand, its chunks, ``[instruction][...]``.
            words: The words of scale factors of all rows, by instruction; empty without block scaling.
            ids: By instruction, the SF id.
        """
        count = len(parts[0])
        together = [part.reshape(-1) for part in parts]
        raw = [part.view(np.uint64) for part in together]
        first = together[0]
        sample = first[:: max(1, first.size // _SAMPLES)].tobytes()
        ids_key = ids if operand.vector != 4 else ()
        key = (operand, len(parts), count, ids_key, sample, words[:256], words[-256:])
        found = self._tiles.get(key)
        if found is not None and found[1] == words and _same(found[0], raw):
            self._tiles.move_to_end(key)
            self.hits += 1
            return found[2]
        self.misses += 1
        out = None
        shape = (operand.rows * len(parts), operand.k * count)
        if self.held + 4 * shape[0] * shape[1] > self.budget and found is None:
            out = self._evict(shape)
        scaled = operand.scale and not (operand.packed and operand.scale == "ue4m3")
        scratch = self._scratch.get(shape) if scaled else None
        if scaled and scratch is None:
            scratch = np.empty(shape, np.float32)
            self._scratch = {shape: scratch}
        tile = decode(operand, together, count, words, ids, out=out, scratch=scratch)
        if found is not None:
            self.held -= found[2].values.nbytes
        self._tiles[key] = ([part.copy() for part in raw], words, tile)
        self._tiles.move_to_end(key)
        self.held += tile.values.nbytes
        return tile

    def _evict(self, shape: tuple[int, int]) -> NDArray[np.float32] | None:
        """Forget the oldest tiles; give back the memory of one of the shape that is needed."""
        out: NDArray[np.float32] | None = None
        while self._tiles and self.held > self.budget * 7 // 8:
            _, (_, _, tile) = self._tiles.popitem(last=False)
            self.held -= tile.values.nbytes
            if out is None and tile.values.shape == shape and tile.values.dtype == np.float32:
                out = tile.values
        return out


def _same(one: list[NDArray[np.uint64]], other: list[NDArray[np.uint64]]) -> bool:
    """Whether all bytes are the same."""
    return all(a.size == b.size and bool((a == b).all()) for a, b in zip(one, other, strict=True))


@cache
def _pairs(negate: bool) -> NDArray[np.float32]:
    """Four E2M1 values for each 16 bits, lowest nibble first."""
    codes = np.arange(65536)
    table = code_table("e2m1").values
    four = np.stack([table[codes >> 4 * i & 15] for i in range(4)], axis=1)
    return np.ascontiguousarray(-four if negate else four, np.float32)


@cache
def _repeated(name: str, times: int) -> NDArray[np.float32]:
    """Each scale factor's value, a block long."""
    with np.errstate(over="ignore", under="ignore"):
        return np.ascontiguousarray(np.repeat(code_table(name).values[:, None], times, axis=1), np.float32)


def decode(
    operand: OperandEncoding,
    parts: list[Chunks],
    count: int,
    words: bytes,
    ids: tuple[int, ...],
    *,
    out: NDArray[np.float32] | None = None,
    scratch: NDArray[np.float32] | None = None,
) -> OperandTile:
    """Decode an operand of ``count`` instructions; ``out`` and ``scratch`` are memory to use, of the tile's shape."""
    rows = operand.rows * len(parts)
    size = operand.element_bytes
    split = [
        k_major_rows(part, count, rows=operand.rows, mn=operand.mn, element_bytes=size).reshape(operand.rows, -1)
        for part in parts
    ]
    data = split[0] if len(split) == 1 else np.concatenate(split)
    shape = (rows, count * operand.k)
    if out is None:
        out = np.empty(shape, np.float32)
    values: NDArray[Any] = out
    codes = _scale_codes(operand, words, count, rows, ids) if operand.scale else None
    if codes is not None and operand.packed and operand.scale == "ue4m3":
        grids = _scale_grids(np.full(rows, -1), operand, codes)
        squares = _packed(operand, data, codes, values, count)
    else:
        if operand.packed:
            np.take(_pairs(operand.negate), data.view(np.uint16), axis=0, out=out.reshape(rows, -1, 4), mode="clip")
            grids = np.full(rows, -1)
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
        squares *= 1 + operand.k * 2.0**-23
        filled = np.flatnonzero(squares.any(axis=1))
        squares *= np.ldexp(1.0, -2 * grids)[:, None]
    return OperandTile(values, grids, squares, int(filled[-1]) + 1 if filled.size else 0)


def _packed(
    operand: OperandEncoding, data: NDArray[np.uint8], codes: NDArray[np.uint8], values: NDArray[np.float32], count: int
) -> NDArray[np.float64]:  # fmt: skip
    """Decode E2M1 with E4M3 scale factors into ``values``, some rows at a time, which stay in the CPU's cache.

    Returns:
        The sums of squares by row and instruction; they neither vanish nor overflow in float32.
    """
    rows, wide = values.shape
    block = operand.k // operand.vector
    pairs, scale = _pairs(operand.negate), _repeated(operand.scale, block)
    factors = np.empty((min(rows, _TOGETHER), wide), np.float32)
    squares = np.empty((rows, count), np.float64)
    for first in range(0, rows, _TOGETHER):
        some = slice(first, first + _TOGETHER)
        part = values[some]
        here = factors[: len(part)]
        np.take(pairs, data[some].view(np.uint16), axis=0, out=part.reshape(len(part), -1, 4), mode="clip")
        np.take(scale, codes[some], axis=0, out=here.reshape(len(part), -1, block), mode="clip")
        np.multiply(part, here, out=part)
        by_instruction = part.reshape(len(part), count, operand.k)
        squares[some] = np.einsum("rik,rik->ri", by_instruction, by_instruction)
    return squares


def _scale_grids(grids: NDArray[np.int64], operand: OperandEncoding, codes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The rows' grids, once scale factors are applied."""
    found: NDArray[np.int64] = np.minimum(grids + code_table(operand.scale).grids.take(codes).min(axis=1), NO_GRID)
    return found


def _scaled(
    operand: OperandEncoding, values: NDArray[np.float32], codes: NDArray[np.uint8], scratch: NDArray[np.float32] | None
) -> NDArray[Any]:  # fmt: skip
    """The values times their scale factors, in place unless float32 cannot hold them."""
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
    """Decode formats other than packed E2M1 into ``values``; the grids of the rows."""
    form = operand.form
    if form == "f16":
        np.copyto(values, data.view(np.float16))
    elif form == "bf16":
        np.left_shift(data.view(np.uint16), 16, out=values.view(np.uint32), dtype=np.uint32)
    elif form == "tf32":
        np.bitwise_and(data.view(np.uint32), np.uint32(0xFFFF_E000), out=values.view(np.uint32))
    else:
        codes = _bytes_of(form, data) if form in ("e2m1", "e2m3", "e3m2") else data
        table = code_table(form)
        np.take(table.values.astype(np.float32), codes, out=values, mode="clip")
        if operand.negate:
            np.negative(values, out=values)
        grids: NDArray[np.int64] = table.grids.take(codes).min(axis=1).astype(np.int64)
        return grids
    if operand.negate:
        np.negative(values, out=values)
    return _grid_of(values)


def _bytes_of(form: str, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Sub-byte elements in groups of 16 that start at multiples of 16 bytes, as one code a byte."""
    groups = data.reshape(data.shape[0], -1, 16)
    codes = np.empty_like(groups)
    if form == "e2m1":
        codes[:, :, 0::2] = groups[:, :, :8] & 15
        codes[:, :, 1::2] = groups[:, :, :8] >> 4
    else:
        three = groups[:, :, :12].reshape(data.shape[0], -1, 3).astype(np.uint32)
        word = three[:, :, 0] | three[:, :, 1] << 8 | three[:, :, 2] << 16
        four = np.stack([word >> 6 * i & 63 for i in range(4)], axis=2)
        codes[...] = four.reshape(codes.shape)
    return codes.reshape(data.shape)


def _grid_of(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """For each row the exponent of the largest power of two that divides all its values."""
    bits = values.view(np.uint32)
    exponent = (bits >> 23 & 0xFF).astype(np.int32)
    mantissa = (bits & 0x7F_FFFF | np.where(exponent > 0, 0x80_0000, 0)).astype(np.int32)
    _, power = np.frexp((mantissa & -mantissa).astype(np.float32))
    grids = np.maximum(exponent, 1) - 151 + power
    grids[(mantissa == 0) | (exponent == 255)] = NO_GRID
    lowest: NDArray[np.int64] = grids.min(axis=1).astype(np.int64)
    return lowest


def _scale_codes(
    operand: OperandEncoding, words: bytes, count: int, rows: int, ids: tuple[int, ...]
) -> NDArray[np.uint8]:  # fmt: skip
    """Scale factors ``[row][instruction * vector]``."""
    codes = np.frombuffer(words, np.uint8).reshape(count, -1, 4)[:, :rows]
    if operand.vector == 4:
        return np.ascontiguousarray(codes.view(np.uint32)[:, :, 0].T).view(np.uint8)
    chosen = np.array(ids)[:, None, None] + np.arange(operand.vector)[None, None, :]
    picked = np.take_along_axis(codes, np.broadcast_to(chosen, (count, rows, operand.vector)), axis=2)
    return np.ascontiguousarray(picked.transpose(1, 0, 2)).reshape(rows, -1)


def _extreme(codes: NDArray[np.uint8]) -> bool:
    return bool(codes.min() < 40 or (np.where(codes == 255, 0, codes)).max() > 214)
