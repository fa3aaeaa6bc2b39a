"""Races between the lanes of one warp, in shared and global memory.

For the rest of the detector a warp is one agent, whose accesses are in program order. Its lanes, however, are threads
(independent thread scheduling, sm_70 and later): what one lane writes is visible to another only behind
``bar.warp.sync``, a barrier, or an acquire; shuffles, votes and ``elect.sync`` order no memory. So each warp records
the accesses of its lanes since they were last synchronised, and compares each access with them by lane and byte.

There are no false positives by construction: anything that could order two lanes (an acquiring wait for an mbarrier, a
fence, any barrier, even of a part of the lanes) counts as a synchronisation of all. Uniform code of the warp is left
out: a lane that reads what it wrote together with others, and writes of one word by the same lanes twice.

In shared memory, each access is compared with all since the last synchronisation. In global memory, the shadow reports
whether the warp has touched one of the bytes since (``GlobalShadow.again``), and only then the accesses to the same
lines of 128 bytes are compared, and of those that touch many lines by rows the ones in the same columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.races.lane_order import LaneItems

_CAPACITY = 512
"""Accesses recorded between two synchronisations; a warp with more of them drops all, and misses races with those."""
_LINE = 7
"""Base-2 logarithm of a line's size."""
_MOST_LINES = 8
"""Lines of an access that is found by them; one of more lines is found by its pattern."""
PLAIN, ROWS, COLUMNS, UNKNOWN = range(4)
"""Relation of the data at a lane's address to the lanes: its own data; a row of an 8 x 8 matrix that all lanes hold a
part of, straight or transposed (PTX ISA, "ldmatrix", fragment layout); a shape that is not checked."""


class SharedLaneAccess(NamedTuple):
    """An access of a warp to shared memory.

    Attributes:
        low, high: The first byte, and the one after the last.
        rank: Rank of the CTA whose memory it is.
        where, mask: The lanes' items, as ``MemoryHooks`` gets them.
        matrix: ``PLAIN``, ``ROWS``, ``COLUMNS`` or ``UNKNOWN``.
        strong: Whether the access is strong.
        at: Index of the instruction.
    """

    low: int
    high: int
    rank: int
    where: Pattern | int
    mask: int
    matrix: int
    strong: int
    at: int


class GlobalLaneAccess(NamedTuple):
    """An access of a warp to global memory; ``low`` and ``high`` are addresses, the rest as in ``SharedLaneAccess``."""

    low: int
    high: int
    where: Pattern | int
    mask: int
    strong: int
    at: int
    writes: bool


class LaneRace(NamedTuple):
    """The earlier access of a race between lanes, whether it writes, and the first byte in question."""

    access: SharedLaneAccess | GlobalLaneAccess
    writes: bool
    byte: int


def matrix_of(instruction: Instruction) -> int:
    """Return how the lanes of an instruction hold the data at their addresses."""
    if instruction.root not in ("ldmatrix", "stmatrix"):
        return PLAIN
    if not {"m8n8", "b16"} <= set(instruction.parts):
        return UNKNOWN
    return COLUMNS if "trans" in instruction.parts else ROWS


def touching_lanes(items: LaneItems, places: NDArray[np.intp]) -> int:
    """Return the lanes of an access that touch some bytes of shared memory."""
    owners = _owners(items.where, items.mask, PLAIN)
    inside = places[(places >= items.start) & (places < items.start + owners.size)] - items.start
    return int(np.bitwise_or.reduce(owners[inside], initial=np.uint32(0)))


class WarpLanes:
    """The accesses of a warp's lanes since they were last synchronised.

    Attributes:
        sync_count: Number of synchronisations that global accesses were before, from 1.
        touched: Whether ``SoleItems`` have an access since the last one.
    """

    __slots__ = ("_by_line", "_compared", "_wide", "accesses", "reads", "sync_count", "touched", "writes")

    def __init__(self) -> None:
        self.reads: list[SharedLaneAccess] = []
        self.writes: list[SharedLaneAccess] = []
        self.accesses: list[GlobalLaneAccess] = []
        self._by_line: dict[int, list[int]] = {}
        """By line, the places in ``accesses`` of those that touch it, but for those of many lines."""
        self._wide: dict[Pattern | int, dict[int, list[int]]] = {}
        """Of these, the places by pattern and column."""
        self._compared: dict[tuple[int, Pattern | int, int, int, bool], int] = {}
        """By place, lanes, strength and kind of an access, with how many ``accesses`` such a one was compared last."""
        self.sync_count = 1
        self.touched = False

    def synchronise(self) -> None:
        """Order all accesses so far before the next ones."""
        if self.accesses:
            self.accesses = []
            self._by_line = {}
            self._wide = {}
            self._compared = {}
            self.touched = True
        if self.touched:
            self.touched = False
            self.sync_count += 1
        if self.reads:
            self.reads = []
        if self.writes:
            self.writes = []

    def shared_access(self, new: SharedLaneAccess, *, writes: bool) -> LaneRace | None:
        """Record an access to shared memory, and return an earlier one by another lane that races with it."""
        if new.matrix == UNKNOWN:
            return None
        race: LaneRace | None = None
        for old in self.writes:
            if old.low < new.high and new.low < old.high and _races(old, new, old_writes=True, new_writes=writes):
                race = LaneRace(old, True, old.low)
                break
        if writes and race is None:
            for old in self.reads:
                if old.low < new.high and new.low < old.high and _races(old, new, old_writes=False, new_writes=True):
                    race = LaneRace(old, False, old.low)
                    break
        if race is not None:
            self.synchronise()
        accesses = self.writes if writes else self.reads
        if len(accesses) >= _CAPACITY:
            accesses.clear()
        accesses.append(new)
        return race

    def global_access(self, new: GlobalLaneAccess, *, again: bool) -> LaneRace | None:
        """Record an access to global memory, and return an earlier one by another lane that races with it.

        Of accesses alike, the first one is recorded. ``again``: the warp has touched one of its bytes since its lanes
        were last synchronised.
        """
        alike = new.low, new.where, new.mask, new.strong, new.writes
        compared = self._compared.get(alike)
        if compared is not None and (compared == len(self.accesses) or not again):
            return None
        race: LaneRace | None = None
        lines = range(new.low >> _LINE, (new.high - 1 >> _LINE) + 1)
        if again:
            for place in self._near(new, lines):
                old = self.accesses[place]
                if old.low < new.high and new.low < old.high and (byte := _global_race(old, new)) >= 0:
                    race = LaneRace(old, old.writes, old.low + byte)
                    break
        if race is not None or len(self.accesses) >= _CAPACITY:
            self.synchronise()
        elif compared is not None:
            self._compared[alike] = len(self.accesses)
            return None
        if len(lines) <= _MOST_LINES:
            for line in lines:
                self._by_line.setdefault(line, []).append(len(self.accesses))
        else:
            column, _ = _column(new)
            self._wide.setdefault(new.where, {}).setdefault(column, []).append(len(self.accesses))
        self.accesses.append(new)
        self._compared[alike] = len(self.accesses)
        return race

    def _near(self, new: GlobalLaneAccess, lines: range) -> Sequence[int]:
        """Return the places of the accesses that may touch bytes of a new one, the first one first."""
        if len(lines) == 1 and not self._wide:
            return self._by_line.get(lines[0], ())
        if len(lines) <= _MOST_LINES:
            found = {place for line in lines for place in self._by_line.get(line, ())}
        else:
            found = {place for places in self._by_line.values() for place in places}
        for where, columns in self._wide.items():
            near: Iterable[int] = columns
            if where is new.where:
                column, count = _column(new)
                near = {(column - 1) % count, column, (column + 1) % count} & columns.keys()
            found.update(place for column in near for place in columns[column])
        return sorted(found)


def _column(access: GlobalLaneAccess) -> tuple[int, int]:
    """Return in which column of how many an access to rows begins.

    A column is as wide as the rows, so that accesses of one pattern whose columns are not neighbours have no byte in
    common. Of other patterns, all accesses are in one column.
    """
    pitch, width = _rows(access.where)
    return access.low % pitch // width, pitch // width


@lru_cache(maxsize=4096)
def _rows(where: Pattern | int) -> tuple[int, int]:
    """Return the pitch of contiguous rows and their width, which divides it, in bytes; 1 and 1 for other patterns."""
    if isinstance(where, int):
        return 1, 1
    starts = np.unique(where.offsets)
    steps = np.diff(starts)
    rows = np.concatenate([starts[:1], starts[1:][steps > where.size]])
    ends = np.concatenate([starts[:-1][steps > where.size], starts[-1:]]) + where.size
    pitches, widths = np.unique(np.diff(rows)), np.unique(ends - rows)
    if len(pitches) != 1 or len(widths) != 1 or pitches[0] % widths[0]:
        return 1, 1
    return int(pitches[0]), int(widths[0])


def _global_race(old: GlobalLaneAccess, new: GlobalLaneAccess) -> int:
    """Return the first byte, from the earlier access's lowest, in which two accesses of a warp race; -1 for none."""
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
    """Return the touched bytes, from the lowest, and for each the bit mask of the lanes that touch it."""
    if isinstance(where, int):
        return np.arange(where), np.full(where, mask, np.uint32)
    places = (where.offsets[:, None] + np.arange(where.size)).ravel()
    bits = np.repeat(np.left_shift(np.uint32(1), where.active.astype(np.uint32)), where.size)
    different, index = np.unique(places, return_inverse=True)
    lanes = np.zeros(different.size, np.uint32)
    np.bitwise_or.at(lanes, index, bits)
    return different, lanes


def _in_order(a: NDArray[np.uint32], b: NDArray[np.uint32], *, old_writes: bool, new_writes: bool) -> NDArray[np.bool_]:
    """Return, for bytes that lanes ``a`` touched and lanes ``b`` touch now, whether it is one lane or uniform code.

    ``a & (a - 1) == 0`` holds for a mask of one lane.
    """
    alone: NDArray[np.bool_] = (a == b) & (a & (a - np.uint32(1)) == 0)
    if not old_writes:
        return alone
    same: NDArray[np.bool_] = a == b if new_writes else b & ~a == 0
    return alone | same


def _races(old: SharedLaneAccess, new: SharedLaneAccess, *, old_writes: bool, new_writes: bool) -> bool:
    if old.rank != new.rank or old.strong & new.strong:
        return False
    return _overlap(
        old.where, old.mask, old.matrix, new.where, new.mask, new.matrix, new.low - old.low, old_writes, new_writes
    )


@lru_cache(maxsize=8192)
def _overlap(
    old: Pattern | int, old_mask: int, old_matrix: int, new: Pattern | int, new_mask: int, new_matrix: int, shift: int,
    old_writes: bool, new_writes: bool,
) -> bool:  # fmt: skip
    first, second = _owners(old, old_mask, old_matrix), _owners(new, new_mask, new_matrix)
    start, end = max(0, shift), min(first.size, second.size + shift)
    a, b = first[start:end], second[start - shift : end - shift]
    return bool(((a != 0) & (b != 0) & ~_in_order(a, b, old_writes=old_writes, new_writes=new_writes)).any())


@lru_cache(maxsize=4096)
def _owners(where: Pattern | int, mask: int, matrix: int) -> NDArray[np.uint32]:
    """Return, by byte from the lowest, the bit mask of the lanes that touch it.

    Of an 8 x 8 matrix of 16-bit elements, lane 4 * row + column // 2 holds an element (PTX ISA, "ldmatrix").
    """
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
