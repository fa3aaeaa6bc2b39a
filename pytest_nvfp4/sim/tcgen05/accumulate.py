"""Chains of MMAs into one accumulator, computed when the accumulator is read.

The PTX ISA does not specify how one instruction rounds. The model: D becomes the exact sum of the instruction's scaled
products plus D, rounded once to D's type, to nearest even. An i8 instruction adds to 32 bits and wraps, or clamps if
its descriptor sets saturation. NaN results are 0x7fffffff (f32) or 0x7fff (f16).

A chain holds copies of its operands' bytes. One of these methods computes it:

- *Integers.* NVFP4 data of few different scale factors are small integers (``step_tiles``). If the bound of the
  whole chain (see below) is under 2**24 steps, its value is one product of 8-bit integers.
- *Segments.* Let the values of row r of A be multiples of 2**g(r), and those of column c of B multiples of 2**h(c): all
  products of (r, c), and all their sums, are integers in steps of 2**(g(r) + h(c)). By Cauchy-Schwarz the sum of the
  magnitudes of the products of some instructions is at most the product of the norms of the row and the column over
  them. While it stays below 2**24 steps, together with the previous D, every partial sum in every order is a float32
  and nothing is rounded: one float32 product of the whole chain is the result. A chain is cut into equal segments, as
  many as are needed for each to have a bound of 2**23 steps; D is checked to be below 2**23 steps before each. NVFP4
  data with moderate scale factors is of this kind.
- *Steps.* Where D exceeds that bound (or did not start on the grid), but the bound of each single instruction is below
  2**24 steps, the sum of an instruction is exactly a float32, so that one addition in float32 rounds as modelled.
- *Float64.* Otherwise the products of each instruction are summed in float64 and D is rounded after each. While the
  bound of an instruction is below 2**53 steps (with D), the sum before the rounding is exact, and so is the result.
  Beyond (f16, bf16 and tf32 of wide range, wide E8M0 scales) a product is still exact, and the float64 sum of at most
  65 terms errs by at most 65 * 2**-53 of the sum of their magnitudes: only a value that lies this close to a tie of the
  rounding to 24 bits can differ.
- i8 products are exact in float64 for any length.

The number of elements of K in a chain is bounded; a longer one continues from the computed D.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.tcgen05.datapath import Datapath
from pytest_nvfp4.sim.tcgen05.descriptor import InstructionDescriptor
from pytest_nvfp4.sim.tcgen05.operand import Recording
from pytest_nvfp4.sim.tcgen05.operand_tiles import HIGHEST_GRID, LOWEST_GRID, OperandEncoding, OperandTile
from pytest_nvfp4.sim.tcgen05.step_tiles import Product, StepTile, is_exact, multiply
from pytest_nvfp4.sim.tcgen05.tile_cache import OperandBytes, OperandTileCache
from pytest_nvfp4.sim.tcgen05.tmem import Tmem

LONGEST = 16384
"""Elements of K in one chain."""
_BATCH = 16
"""Instructions whose products are computed together in float64, which bounds the memory for them."""
_SEGMENT_STEPS = 2.0**23
_FLOAT_MAX = 3.0e38
_NAN = np.uint32(0x7FFF_FFFF)


@dataclass(slots=True, eq=False)
class CtaRecording:
    """One CTA's part of a chain: its accumulator, and by instruction its rows of A and B and their scale factors."""

    tmem: Tmem
    a: Recording
    b: Recording
    sfa: bytearray = field(default_factory=bytearray)
    sfb: bytearray = field(default_factory=bytearray)


class Chain:
    """Instructions of one family that add to one accumulator.

    Args:
        key: Key that an instruction must share to extend the chain.
        base: Whether the first instruction adds to the accumulator's previous value.
        shift: ``scale-input-d`` of the first instruction.
        enabled: Lanes that are updated, None for all.

    Attributes:
        parts: The recorded operands, by CTA.
        length: Number of instructions.
        rows: Rows of A in each CTA, those of both blocks in layout E.
    """

    def __init__(
        self, key: tuple[Any, ...], ins: InstructionDescriptor, path: Datapath, column: int, *, tmems: list[Tmem],
        cache: OperandTileCache, operands: tuple[OperandEncoding, OperandEncoding], base: bool, shift: int = 0,
        enabled: NDArray[np.bool_] | None = None,
    ) -> None:  # fmt: skip
        self.key = key
        self.ins = ins
        self.path = path
        self.first = column
        self.last = column + path.columns
        self.a_ids: list[int] = []
        self.b_ids: list[int] = []
        self.cache = cache
        self.a_operand, self.b_operand = operands
        self.rows = self.a_operand.rows
        self.base = base
        self.shift = shift
        self.enabled = enabled
        self.length = 0
        a, b = operands
        start, capacity = cache.recordings.start, -(-LONGEST // ins.kind.k)
        self.parts = [
            CtaRecording(tmem, start(capacity, a.chunks * a.rows), start(capacity, b.chunks * b.rows)) for tmem in tmems
        ]
        for tmem in tmems:
            tmem.pending.append(self)

    @property
    def room(self) -> bool:
        """Whether the chain may take another instruction."""
        return self.length * self.ins.kind.k < LONGEST

    def forget(self) -> None:
        """Drop the chain without computing it: its accumulator is overwritten before it was read."""
        for part in self.parts:
            part.tmem.pending.remove(self)
        self._release()

    def _release(self) -> None:
        for part in self.parts:
            self.cache.recordings.end(part.a)
            self.cache.recordings.end(part.b)

    def finish(self) -> None:
        """Compute the value and write it to TMEM."""
        for part in self.parts:
            part.tmem.pending.remove(self)
        a_ids, b_ids = tuple(self.a_ids), tuple(self.b_ids)
        # Each CTA multiplies its own rows of A with the rows of B of the whole pair.
        all_b = [part.b.all() for part in self.parts]
        for part in self.parts:
            words = self._value(
                part.tmem,
                OperandBytes(self.a_operand, [part.a.all()], bytes(part.sfa), a_ids),
                OperandBytes(self.b_operand, all_b, bytes(part.sfb), b_ids),
            )
            if words is not None:
                self.path.write(part.tmem, self.first, words, self.enabled)
        self._release()

    def _value(self, tmem: Tmem, a: OperandBytes, b: OperandBytes) -> NDArray[np.uint32] | None:
        """Return the accumulator's words ``[n][row]``; None if they were written in place."""
        words = self._of_all_rows(tmem, a, b)
        if words is None or self.rows == self.ins.rows:
            return words
        # Layout E: the lower half of N has the product with the first block of A, the upper one with the second.
        lower, upper = np.split(words, 2)
        return np.concatenate([lower[:, : self.ins.rows], upper[:, self.ins.rows :]])

    def _of_all_rows(self, tmem: Tmem, a: OperandBytes, b: OperandBytes) -> NDArray[np.uint32] | None:
        """Return the words of D for each row of A, ``[n][row]``; None if they were written in place."""
        product = self.cache.int8_product if self._may_be_small else None
        if product is not None:
            columns = self.cache.steps(b)  # the tile of a pair of CTAs, so first
            rows = None if columns is None else self.cache.steps(a)
            if rows is not None and columns is not None and is_exact(rows, columns):
                return self._integral(tmem, rows, columns, product)
        return self._product(tmem, self.cache.get(a), self.cache.get(b))

    @property
    def _may_be_small(self) -> bool:
        """Whether the chain is one sum of products of E2M1 with scale factors, in float32."""
        a, b = self.a_operand, self.b_operand
        return self.ins.d == "f32" and not self.base and all(each.packed and each.scale for each in (a, b))

    def _integral(self, tmem: Tmem, a: StepTile, b: StepTile, product: Product) -> NDArray[np.uint32] | None:
        """Compute the chain as one product of integers, which is exact."""
        return self._whole(tmem, b.height, a.height, partial(multiply, b, a, product))

    def _previous(self, tmem: Tmem) -> NDArray[np.uint32]:
        """Return the previous words of D ``[n][row]``, once for each block of A."""
        words = self.path.read(tmem, self.first)
        return words if self.rows == self.ins.rows else np.tile(words, (1, 2))

    def _product(self, tmem: Tmem, a: OperandTile, b: OperandTile) -> NDArray[np.uint32] | None:
        """Return the words of D for each row of A, ``[n][row]``; None if they were written in place."""
        if self.ins.d == "s32":
            return self._integers(tmem, a, b)
        single = self.ins.d == "f32"
        base: NDArray[Any] | None = None
        if self.base:
            words = self._previous(tmem)
            base = words.view(np.float32) if single else words.astype(np.uint16).view(np.float16)
            if self.shift:
                base = base.astype(np.float64) * 2.0**-self.shift
        if single:
            segments = _segments(a, b, self.length, based=base is not None)
            if segments == 1 and base is None:
                left, right = b.values[: b.height], a.values[: a.height].T
                return self._whole(tmem, b.height, a.height, partial(np.matmul, left, right))
            if segments and not self.shift:
                value, start = self._segmented(a, b, base, segments)
                if start < self.length:
                    self._stepped(a, b, value, start)
                words = value.view(np.uint32)
                if base is not None:
                    words[np.isnan(value)] = _NAN
                return words
        return self._rounded(a, b, base)

    def _whole(self, tmem: Tmem, columns: int, rows: int, product: Callable[..., object]) -> NDArray[np.uint32] | None:
        """Compute the chain as one product. The caller has shown that nothing is rounded.

        Args:
            columns, rows: Rows of B and of A, up to the last that is not zero.
            product: Writes their product to ``out``, ``[columns][rows]``.
        """
        n, height = self.ins.n, self.rows
        in_place = self.enabled is None and self.path.columns == n and height == 128
        value = tmem.floats[self.first : self.last] if in_place else np.zeros((n, height), np.float32)
        if in_place and (columns, rows) != (n, height):
            value[...] = 0
        product(out=value[:columns, :rows])
        return None if in_place else value.view(np.uint32)

    def _segmented(
        self, a: OperandTile, b: OperandTile, base: NDArray[Any] | None, segments: int
    ) -> tuple[NDArray[np.float32], int]:  # fmt: skip
        """Compute the longest prefix of the chain that provably needs no rounding.

        Returns:
            The value ``[n][row]``, and the number of instructions in it.
        """
        k = self.ins.kind.k
        value = np.zeros((self.ins.n, self.rows), np.float32)
        part = value[: b.height, : a.height]
        step = np.ldexp(1.0, b.grids[: b.height])[:, None] * np.ldexp(1.0, a.grids[: a.height])[None, :]
        limits = np.minimum(step * _SEGMENT_STEPS, _FLOAT_MAX).astype(np.float32)
        scratch = np.empty_like(part)
        if base is not None:
            value[...] = base
            steps = part / step
            if not (steps == np.rint(steps)).all() or not _below(part, limits, scratch):
                return value, 0
        if segments == self.length > 1:
            return value, 0
        done = 0
        for i in range(segments):
            last = self.length * (i + 1) // segments
            span = slice(done * k, last * k)
            np.matmul(b.values[: b.height, span], a.values[: a.height, span].T, out=scratch)
            part += scratch
            done = last
            if done < self.length and not _below(part, limits, scratch):
                break
        return value, done

    def _stepped(self, a: OperandTile, b: OperandTile, value: NDArray[np.float32], start: int) -> None:
        """Add the instructions from ``start`` on to ``value``. The sum of each must be exactly a float32."""
        k = self.ins.kind.k
        part = value[: b.height, : a.height]
        scratch = np.empty_like(part)
        for i in range(start, self.length):
            span = slice(i * k, (i + 1) * k)
            np.matmul(b.values[: b.height, span], a.values[: a.height, span].T, out=scratch)
            part += scratch

    def _rounded(self, a: OperandTile, b: OperandTile, base: NDArray[Any] | None) -> NDArray[np.uint32]:
        """Compute the chain in float64, rounded after each instruction."""
        n, rows, count, k = self.ins.n, self.rows, self.length, self.ins.kind.k
        kind = np.float32 if self.ins.d == "f32" else np.float16
        left = b.values.reshape(n, count, k)
        right = a.values.reshape(rows, count, k)
        value = np.zeros((n, rows), np.float64) if base is None else base.astype(np.float64)
        rounded = np.empty((n, rows), kind)
        with np.errstate(all="ignore"):
            for begin in range(0, count, _BATCH):
                part = slice(begin, begin + _BATCH)
                sums = np.matmul(
                    left[:, part].transpose(1, 0, 2).astype(np.float64),
                    right[:, part].transpose(1, 2, 0).astype(np.float64),
                )
                for instruction_sum in sums:
                    value += instruction_sum
                    rounded[...] = value
                    value[...] = rounded
        missing = np.isnan(rounded)
        if kind is np.float32:
            words = rounded.view(np.uint32)
            words[missing] = _NAN
            return words
        words = rounded.view(np.uint16).astype(np.uint32)
        words[missing] = 0x7FFF
        return words

    def _integers(self, tmem: Tmem, a: OperandTile, b: OperandTile) -> NDArray[np.uint32]:
        n, rows, count, k = self.ins.n, self.rows, self.length, self.ins.kind.k
        value = np.zeros((n, rows), np.int64)
        if self.base:
            value += self._previous(tmem).view(np.int32)
        if not self.ins.saturate:
            value += (b.values.astype(np.float64) @ a.values.astype(np.float64).T).astype(np.int64)
        else:
            left = b.values.reshape(n, count, k).astype(np.float64)
            right = a.values.reshape(rows, count, k).astype(np.float64)
            for i in range(count):
                value += (left[:, i] @ right[:, i].T).astype(np.int64)
                np.clip(value, -(1 << 31), (1 << 31) - 1, out=value)
        return value.astype(np.uint32)


def _below(value: NDArray[np.float32], limits: NDArray[np.float32], scratch: NDArray[np.float32]) -> bool:
    np.abs(value, out=scratch)
    return bool((scratch < limits).all())


def _segments(a: OperandTile, b: OperandTile, count: int, *, based: bool) -> int:
    """Return into how many segments to cut a chain for each to be bounded by 2**23 grid steps; 0 if none suffices.

    Segments of one instruction may reach 2**24, and so may a chain in one segment that starts from zero. With a
    previous D (``based``) of up to 2**23 steps, D and half of such a chain could exceed 2**24 and be rounded between.
    """
    lowest, highest = a.grids.min() + b.grids.min(), _highest(a) + _highest(b)
    if lowest < LOWEST_GRID or highest > HIGHEST_GRID:
        return 0
    segments = 1
    while segments <= count:
        starts = [count * i // segments for i in range(segments)]
        most_a = np.add.reduceat(a.squares, starts, axis=1).max(axis=0)
        most_b = np.add.reduceat(b.squares, starts, axis=1).max(axis=0)
        bound = np.sqrt(most_a) * np.sqrt(most_b)
        alone = segments == count or (segments == 1 and not based)
        if bool((bound < (2 * _SEGMENT_STEPS if alone else _SEGMENT_STEPS)).all()):
            return segments
        if segments == count or float(bound.max()) > _SEGMENT_STEPS * count:
            return 0
        segments = min(2 * segments, count)
    return 0


def _highest(tile: OperandTile) -> int:
    """Return the largest grid of a row that is not zero."""
    used = tile.grids[tile.squares.any(axis=1)]
    return int(used.max()) if used.size else 0
