"""Lanes of one warp against each other, in shared and global memory: threads that only ``bar.warp.sync`` orders.

To the rest of the detector a warp is one agent, whose accesses follow each other. Its lanes are threads of their own
(PTX ISA, "Independent Thread Scheduling" of sm_70 and on): what one lane writes is there for another only behind
``bar.warp.sync``, a barrier, or an acquire; shuffles, votes and ``elect.sync`` order no memory. So each warp keeps what
its lanes touched since they last met, and a later access is compared with that, lane by lane and byte by byte.

It never tells of what may be in order: whatever could order two lanes (a wait for an mbarrier that acquires, a fence,
any barrier, even of a part of the lanes) counts as a meeting of all. And these are left out, as the warp's uniform
code: a lane that reads what it wrote itself together with others, and writes of one word by the same lanes twice.

In shared memory each access is compared with all since the lanes last met. In global memory the shadow says whether the
warp has touched one of the bytes since (``GlobalShadow.again``), and only then are the accesses compared.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.ptx.syntax import Instruction

__all__ = ["GlobalTouch", "Lanes", "Touch", "matrix_of"]

_KEPT = 512
"""Accesses that are kept between two meetings; a warp that makes more of them forgets all."""
PLAIN, ROWS, COLUMNS, UNKNOWN = range(4)
"""How a lane's address and its data belong together: its own, or rows of an 8 x 8 matrix that all lanes hold a part of,
as it lies or transposed; or a shape that is not followed."""


class Touch(NamedTuple):
    """One access of a warp: ``where`` and ``mask`` as the monitor hears them."""

    low: int
    high: int
    rank: int
    where: Pattern | int
    mask: int
    matrix: int
    strong: int
    at: int


class GlobalTouch(NamedTuple):
    """One access to global memory: the first byte's and the last byte's address, and the rest as in ``Touch``."""

    low: int
    high: int
    where: Pattern | int
    mask: int
    strong: int
    at: int
    writes: bool


def matrix_of(instruction: Instruction) -> int:
    """How the lanes of an instruction hold what they touch."""
    if instruction.root not in ("ldmatrix", "stmatrix"):
        return PLAIN
    if not {"m8n8", "b16"} <= set(instruction.parts):
        return UNKNOWN
    return COLUMNS if "trans" in instruction.parts else ROWS


class Lanes:
    """What the lanes of a warp did since they last met; ``met`` counts how often they have, from 1."""

    __slots__ = ("met", "reads", "touched", "writes")

    def __init__(self) -> None:
        self.reads: list[Touch] = []
        self.writes: list[Touch] = []
        self.touched: list[GlobalTouch] = []
        self.met = 1

    def meet(self) -> None:
        """All that was done is ordered before what comes."""
        if self.touched:
            self.touched = []
            self.met += 1
        if self.reads:
            self.reads = []
        if self.writes:
            self.writes = []

    def access(self, new: Touch, *, writes: bool) -> tuple[Touch, bool] | None:
        """Note an access; the earlier one that nothing orders before it in another lane, and whether that writes."""
        if new.matrix == UNKNOWN:
            return None
        found: tuple[Touch, bool] | None = None
        for old in self.writes:
            if old.low < new.high and new.low < old.high and _races(old, new, old_writes=True, new_writes=writes):
                found = old, True
                break
        if writes and found is None:
            for old in self.reads:
                if old.low < new.high and new.low < old.high and _races(old, new, old_writes=False, new_writes=True):
                    found = old, False
                    break
        if found is not None:
            self.meet()
        kept = self.writes if writes else self.reads
        if len(kept) >= _KEPT:
            kept.clear()
        kept.append(new)
        return found

    def touch(self, new: GlobalTouch, *, again: bool) -> tuple[GlobalTouch, int] | None:
        """Note an access to global memory; the earlier one that nothing orders before it in another lane, and where.

        ``again``: the warp has touched one of its bytes since its lanes last met.
        """
        found: tuple[GlobalTouch, int] | None = None
        if again:
            for old in self.touched:
                if old.low < new.high and new.low < old.high and (byte := _race_there(old, new)) >= 0:
                    found = old, old.low + byte
                    break
        if found is not None or len(self.touched) >= _KEPT:
            self.meet()
        self.touched.append(new)
        return found


def _race_there(old: GlobalTouch, new: GlobalTouch) -> int:
    """The first byte, from the earlier access's lowest, in which two accesses of a warp race; -1: they do not."""
    if old.strong & new.strong or not (old.writes or new.writes):
        return -1
    return _collide(old.where, old.mask, new.where, new.mask, new.low - old.low, old.writes, new.writes)


@lru_cache(maxsize=8192)
def _collide(
    old: Pattern | int, old_mask: int, new: Pattern | int, new_mask: int, shift: int, old_writes: bool, new_writes: bool
) -> int:
    first, a = _holders(old, old_mask)
    second, b = _holders(new, new_mask)
    both, here, there = np.intersect1d(first, second + shift, assume_unique=True, return_indices=True)
    races = ~_in_order(a[here], b[there], old_writes=old_writes, new_writes=new_writes)
    return int(both[np.argmax(races)]) if races.any() else -1


@lru_cache(maxsize=4096)
def _holders(where: Pattern | int, mask: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """The bytes that are touched, from the lowest, and the lanes that touch each, as bits."""
    if isinstance(where, int):
        return np.arange(where), np.full(where, mask, np.uint32)
    places = (where.offsets[:, None] + np.arange(where.size)).ravel()
    bits = np.repeat(np.left_shift(np.uint32(1), where.active.astype(np.uint32)), where.size)
    different, index = np.unique(places, return_inverse=True)
    lanes = np.zeros(different.size, np.uint32)
    np.bitwise_or.at(lanes, index, bits)
    return different, lanes


def _in_order(a: NDArray[np.uint32], b: NDArray[np.uint32], *, old_writes: bool, new_writes: bool) -> NDArray[np.bool_]:
    """Of bytes that lanes ``a`` touched and lanes ``b`` touch now: whether that is one lane, or uniform code."""
    alone: NDArray[np.bool_] = (a == b) & (a & (a - np.uint32(1)) == 0)
    if not old_writes:
        return alone
    same: NDArray[np.bool_] = a == b if new_writes else b & ~a == 0
    return alone | same


def _races(old: Touch, new: Touch, *, old_writes: bool, new_writes: bool) -> bool:
    if old.rank != new.rank or old.strong & new.strong:
        return False
    return _meet(
        old.where, old.mask, old.matrix, new.where, new.mask, new.matrix, new.low - old.low, old_writes, new_writes
    )


@lru_cache(maxsize=8192)
def _meet(
    old: Pattern | int, old_mask: int, old_matrix: int, new: Pattern | int, new_mask: int, new_matrix: int, shift: int,
    old_writes: bool, new_writes: bool,
) -> bool:  # fmt: skip
    first, second = _owners(old, old_mask, old_matrix), _owners(new, new_mask, new_matrix)
    start, end = max(0, shift), min(first.size, second.size + shift)
    a, b = first[start:end], second[start - shift : end - shift]
    return bool(((a != 0) & (b != 0) & ~_in_order(a, b, old_writes=old_writes, new_writes=new_writes)).any())


@lru_cache(maxsize=4096)
def _owners(where: Pattern | int, mask: int, matrix: int) -> NDArray[np.uint32]:
    """By byte from the lowest: the lanes that touch it, as bits."""
    if isinstance(where, int):
        return np.full(where, mask, np.uint32)
    owners = np.zeros(where.span, np.uint32)
    for place, (lane, offset) in enumerate(zip(where.active.tolist(), where.offsets.tolist(), strict=True)):
        if matrix == PLAIN:
            owners[offset : offset + where.size] |= np.uint32(1 << lane)
            continue
        row = place % 8
        for element in range(8):
            holder = 4 * row + element // 2 if matrix == ROWS else 4 * element + row // 2
            owners[offset + 2 * element : offset + 2 * element + 2] |= np.uint32(1 << holder)
    return owners
