"""Accumulators: chains of MMAs into one accumulator, computed when somebody looks at it.

The rule (the ISA does not say how one instruction rounds): D becomes the exact sum of the instruction's products, each
scaled, plus D, rounded once to D's type, to nearest even. An i8 instruction adds to 32 bits and wraps, or clamps if its
descriptor says so. NaN results are 0x7fffffff (f32) or 0x7fff (f16).

A chain keeps copies of its operands' bytes. When it is computed:

- Let the values of row r of A be multiples of 2**g(r), and those of column c of B multiples of 2**h(c): all products of
  (r, c), and all their sums, are integers in steps of 2**(g(r) + h(c)). By Cauchy-Schwarz the sum of the magnitudes of
  the products of some instructions is at most the product of the norms of the row and the column over them. While it
  stays below 2**24 steps, together with what D holds before, every partial sum in every order is a float32, and nothing
  is ever rounded: one float32 product of the whole chain is the result. A chain is cut into as many equal segments as
  it takes for each to have a bound of 2**23 steps; that D is below 2**23 steps between them is looked at. NVFP4 data
  with moderate scale factors is of this kind.
- Where D has grown beyond (or did not start on the grid), while the bound of each single instruction is below 2**24
  steps: its sum is exactly a float32, so that one addition in float32 rounds as the rule says.
- Else the products of each instruction are summed in float64 and D is rounded after each. While the bound of an
  instruction is below 2**53 steps (with D), the sum before the rounding is exact, and so is the rule.
  Beyond (f16, bf16 and tf32 of wide range, wide E8M0 scales) a product is still exact, and the float64 sum of at most
  65 terms errs by at most 65 * 2**-53 of the sum of their magnitudes: only what lies that close to a tie of the
  rounding to 24 bits can come out differently.
- i8 products are exact in float64 for any length.

The number of elements of K in a chain is bounded; a longer one goes on from the computed D.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.tcgen05.datapath import Datapath
from pytest_nvfp4.sim.tcgen05.descriptor import InstructionDescriptor
from pytest_nvfp4.sim.tcgen05.operand import Recording
from pytest_nvfp4.sim.tcgen05.operand_tiles import OperandEncoding, OperandTile, OperandTileCache
from pytest_nvfp4.sim.tcgen05.tmem import Tmem

__all__ = ["LONGEST", "Chain", "Half"]

LONGEST = 16384
"""Elements of K in one chain."""
_BATCH = 16
_HALF = 2.0**23
_FLOAT_MAX = 3.0e38
_SMALLEST, _LARGEST = -149, 100
"""Grids on which 2**24 steps are float32."""
_NAN = np.uint32(0x7FFF_FFFF)


class Half:
    """One CTA's part: its rows of A and of B, its accumulator, and the scale factors in its TMEM, by instruction."""

    __slots__ = ("a", "b", "sfa", "sfb", "tmem")

    def __init__(self, tmem: Tmem, a: Recording, b: Recording) -> None:
        self.tmem = tmem
        self.a = a
        self.b = b
        self.sfa = bytearray()
        self.sfb = bytearray()


class Chain:
    """Instructions of one kind that add to one accumulator.

    Args:
        key: What an instruction must share to go on with the chain.
        base: Whether the first instruction adds to what the accumulator holds.
        shift: ``scale-input-d`` of the first instruction.
        enabled: Lanes that are updated, None for all.
    """

    __slots__ = (
        "a_ids", "a_operand", "b_ids", "b_operand", "base", "cache", "enabled", "first", "halves", "ins", "key",
        "last", "length", "path", "shift",
    )  # fmt: skip

    def __init__(
        self,
        key: tuple[Any, ...],
        ins: InstructionDescriptor,
        path: Datapath,
        column: int,
        *,
        tmems: list[Tmem],
        cache: OperandTileCache,
        operands: tuple[OperandEncoding, OperandEncoding],
        base: bool,
        shift: int = 0,
        enabled: NDArray[np.bool_] | None = None,
    ) -> None:
        self.key = key
        self.ins = ins
        self.path = path
        self.first = column
        self.last = column + path.columns
        self.a_ids: list[int] = []
        self.b_ids: list[int] = []
        self.cache = cache
        self.a_operand, self.b_operand = operands
        self.base = base
        self.shift = shift
        self.enabled = enabled
        self.length = 0
        start, most = cache.recordings.start, -(-LONGEST // ins.kind.k)
        self.halves = [
            Half(tmem, start(most, 2 * operands[0].rows), start(most, 2 * operands[1].rows)) for tmem in tmems
        ]
        """By CTA."""
        for tmem in tmems:
            tmem.pending.append(self)

    @property
    def room(self) -> bool:
        """Whether another instruction may join."""
        return self.length * self.ins.kind.k < LONGEST

    def forget(self) -> None:
        """Leave the lists without a value: it is about to be overwritten and nobody looked."""
        for half in self.halves:
            half.tmem.pending.remove(self)
        self._end()

    def _end(self) -> None:
        for half in self.halves:
            self.cache.recordings.end(half.a)
            self.cache.recordings.end(half.b)

    def finish(self) -> None:
        """Compute the value and write it."""
        for half in self.halves:
            half.tmem.pending.remove(self)
        a_ids, b_ids = tuple(self.a_ids), tuple(self.b_ids)
        all_b = [half.b.all() for half in self.halves]
        tiles = [
            (
                half,
                self.cache.get(self.a_operand, [half.a.all()], bytes(half.sfa), a_ids),
                self.cache.get(self.b_operand, all_b, bytes(half.sfb), b_ids),
            )
            for half in self.halves
        ]
        self._end()
        for half, a, b in tiles:
            words = self._value(half, a, b)
            if words is not None:
                self.path.write(half.tmem, self.first, words, self.enabled)

    def _value(self, half: Half, a: OperandTile, b: OperandTile) -> NDArray[np.uint32] | None:
        """The accumulator's words ``[n][row]``; None if they were written in place."""
        if self.ins.d == "s32":
            return self._integers(half, a, b)
        single = self.ins.d == "f32"
        base: NDArray[Any] | None = None
        if self.base:
            words = self.path.read(half.tmem, self.first)
            base = words.view(np.float32) if single else words.astype(np.uint16).view(np.float16)
            if self.shift:
                base = base.astype(np.float64) * 2.0**-self.shift
        if single:
            segments = _segments(a, b, self.length)
            if segments == 1 and base is None:
                return self._whole(half, a, b)
            if segments and not self.shift:
                value, start = self._segmented(a, b, base, segments)
                if start < self.length:
                    self._stepped(a, b, value, start)
                words = value.view(np.uint32)
                if base is not None:
                    words[np.isnan(value)] = _NAN
                return words
        return self._rounded(a, b, base)

    def _whole(self, half: Half, a: OperandTile, b: OperandTile) -> NDArray[np.uint32] | None:
        """The chain as one product, if it is known that nothing is rounded."""
        n, rows = self.ins.n, self.ins.rows
        left = b.values[: b.height]
        right = a.values[: a.height].T
        if self.enabled is None and self.path.columns == n and rows == 128:
            target = half.tmem.floats[self.first : self.last]
            if a.height == rows and b.height == n:
                np.matmul(left, right, out=target)
            else:
                target[...] = 0
                target[: b.height, : a.height] = left @ right
            return None
        value = np.zeros((n, rows), np.float32)
        value[: b.height, : a.height] = left @ right
        return value.view(np.uint32)

    def _segmented(
        self, a: OperandTile, b: OperandTile, base: NDArray[Any] | None, segments: int
    ) -> tuple[NDArray[np.float32], int]:  # fmt: skip
        """As much of the chain as provably needs no rounding: the value, and how many instructions that is."""
        k = self.ins.kind.k
        value = np.zeros((self.ins.n, self.ins.rows), np.float32)
        part = value[: b.height, : a.height]
        step = np.ldexp(1.0, b.grids[: b.height])[:, None] * np.ldexp(1.0, a.grids[: a.height])[None, :]
        limits = np.minimum(step * _HALF, _FLOAT_MAX).astype(np.float32)
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
        """Add the instructions from ``start`` on to ``value``, each of whose sums is exactly a float32."""
        k = self.ins.kind.k
        part = value[: b.height, : a.height]
        scratch = np.empty_like(part)
        for i in range(start, self.length):
            span = slice(i * k, (i + 1) * k)
            np.matmul(b.values[: b.height, span], a.values[: a.height, span].T, out=scratch)
            part += scratch

    def _rounded(self, a: OperandTile, b: OperandTile, base: NDArray[Any] | None) -> NDArray[np.uint32]:
        """The chain, rounded after each instruction."""
        n, rows, count, k = self.ins.n, self.ins.rows, self.length, self.ins.kind.k
        kind = np.float32 if self.ins.d == "f32" else np.float16
        left = b.values.reshape(n, count, k)
        right = a.values.reshape(rows, count, k)
        value = np.zeros((n, rows), np.float64) if base is None else base.astype(np.float64)
        rounded = np.empty((n, rows), kind)
        with np.errstate(all="ignore"):
            for begin in range(0, count, _BATCH):
                part = slice(begin, begin + _BATCH)
                some = np.matmul(
                    left[:, part].transpose(1, 0, 2).astype(np.float64),
                    right[:, part].transpose(1, 2, 0).astype(np.float64),
                )
                for products in some:
                    value += products
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

    def _integers(self, half: Half, a: OperandTile, b: OperandTile) -> NDArray[np.uint32]:
        n, rows, count, k = self.ins.n, self.ins.rows, self.length, self.ins.kind.k
        value = np.zeros((n, rows), np.int64)
        if self.base:
            value += self.path.read(half.tmem, self.first).view(np.int32)
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
    """Whether all magnitudes are below their limits."""
    np.abs(value, out=scratch)
    return bool((scratch < limits).all())


def _segments(a: OperandTile, b: OperandTile, count: int) -> int:
    """Into how many segments a chain is cut for each to be bounded by 2**23 grid steps; 0 if there is no way.

    A whole chain, and a single instruction, may be bounded by 2**24.
    """
    lowest, highest = a.grids.min() + b.grids.min(), _highest(a) + _highest(b)
    if lowest < _SMALLEST or highest > _LARGEST:
        return 0
    segments = 1
    while segments <= count:
        starts = [count * i // segments for i in range(segments)]
        most_a = np.add.reduceat(a.squares, starts, axis=1).max(axis=0)
        most_b = np.add.reduceat(b.squares, starts, axis=1).max(axis=0)
        bound = np.sqrt(most_a) * np.sqrt(most_b)
        if bool((bound < (2 * _HALF if segments in (1, count) else _HALF)).all()):
            return segments
        if segments == count or float(bound.max()) > _HALF * count:
            return 0
        segments = min(2 * segments, count)
    return 0


def _highest(tile: OperandTile) -> int:
    """The largest grid of a row that is not zero."""
    used = tile.grids[tile.squares.any(axis=1)]
    return int(used.max()) if used.size else 0
