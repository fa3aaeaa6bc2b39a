"""What may still race on each byte of global memory that a launch may write.

Two arrays of numbers of sets of accesses (``access_sets``), one item a *unit* of a region: the largest power of two (16
at most) that every access so far was a multiple of, so that units are never touched in part. Per unit: the writes that
later accesses are compared with, and the reads that later writes are.

A weak write ends what was before it: it happened after that, or was reported. Two strong accesses never race, so that
a strong write may come after others that it does not know, and hides none of them: it joins the writes, one of each
agent, and the reads stay. What is read of a region that nobody has written yet is kept as it was read, since inputs are
read by many and written by none: of each place the first readers only.

Processes that share a large launch each have their own shadow, so that only CTAs of one process are compared; what two
CTAs write is found by ``memory.coverage`` whichever ran them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.races.access import ASYNC, STRONG, Access
from pytest_nvfp4.sim.races.access_sets import AccessSets
from pytest_nvfp4.sim.races.clocks import ASYNC_GLOBAL, BEFORE, Clock
from pytest_nvfp4.sim.races.touched import READ, STRONG_READ, STRONG_WRITE, WRITE

if TYPE_CHECKING:
    from pytest_nvfp4.sim.memory.globals import Region
    from pytest_nvfp4.sim.memory.pattern import Pattern

__all__ = ["GlobalConflict", "GlobalShadow", "RegionShadow", "item_rows"]

GlobalConflict = Callable[["RegionShadow", int, Access, bool, Access, bool, bool, Clock], None]
"""Told of a pair that is not ordered: the region, the byte offset, the earlier access and whether it writes, the later
one and whether it writes, whether only a proxy fence is missing, and the clock that does not have the earlier one."""
Offsets = NDArray[np.intp]
_LARGEST = 16
_READERS = 4
"""Readers that are kept of one place before the first write."""
_NAMES = ("writes", "reads")
_SETS = 1 << 17
"""Sets of accesses from which on those that no unit has any more are given up."""


class RegionShadow:
    """The history of one region."""

    __slots__ = ("boxes", "reads", "region", "unit", "writes", "written")

    def __init__(self, region: Region) -> None:
        self.region = region
        self.unit = _LARGEST
        self.writes: NDArray[np.int32] | None = None
        self.reads: NDArray[np.int32] | None = None
        self.boxes: dict[object, tuple[Callable[[], tuple[Offsets, int]], dict[tuple[int, int], int]]] = {}
        """What was read before the first write: its rows, and the number of the access by cluster and agent."""
        self.written = False

    def refine(self, unit: int) -> None:
        """Take smaller units."""
        factor = self.unit // unit
        self.unit = unit
        for name in _NAMES:
            array = getattr(self, name)
            if array is not None:
                setattr(self, name, np.repeat(array, factor))

    def array(self, name: str) -> NDArray[np.int32]:
        """One of the arrays, made on first use."""
        array: NDArray[np.int32] | None = getattr(self, name)
        if array is None:
            array = np.zeros(-(-self.region.size // _LARGEST) * (_LARGEST // self.unit), np.int32)
            setattr(self, name, array)
        return array

    def byte(self, units: NDArray[np.intp] | slice, chosen: NDArray[np.bool_]) -> int:
        """The offset of the first chosen unit of some."""
        place = int(np.argmax(chosen))
        return (units.start + place if isinstance(units, slice) else int(units[place])) * self.unit

    def units(self, offsets: Offsets, size: int) -> NDArray[np.intp] | slice:
        """The units of items of ``size`` bytes at offsets."""
        low = int(np.bitwise_or.reduce(offsets)) | size
        fits = low & -low
        if fits < self.unit:
            self.refine(fits)
        unit = self.unit
        start = offsets // unit
        count = size // unit
        if offsets.size == 1:
            return slice(int(start[0]), int(start[0]) + count)
        if count == 1:
            return start
        return (start[:, None] + np.arange(count)).ravel()

    def items(self, offset: int, where: Pattern | int) -> NDArray[np.intp] | slice:
        """The units of a warp's items, the first at an offset."""
        spread = where.__class__ is not int and not where.dense  # type: ignore[union-attr]
        if spread:
            low = offset | _bits(where)
        else:
            size: int = where if where.__class__ is int else where.span  # type: ignore[union-attr]
            low = offset | size
        fits = low & -low
        if fits < self.unit:
            self.refine(fits)
        unit = self.unit
        start = offset // unit
        return _relative(where, unit) + start if spread else slice(start, start + size // unit)


@lru_cache(maxsize=4096)
def _bits(where: Pattern) -> int:
    """All bits that are set in one of a pattern's offsets, or in the size: what the lowest one divides divides all."""
    return int(np.bitwise_or.reduce(where.offsets)) | where.size


@lru_cache(maxsize=4096)
def _relative(where: Pattern, unit: int) -> NDArray[np.intp]:
    """The units of a pattern's items, from the first."""
    start = where.offsets // unit
    count = where.size // unit
    return start if count == 1 else (start[:, None] + np.arange(count)).ravel()


class GlobalShadow:
    """The regions of a launch, and the sets of accesses that their arrays number."""

    def __init__(self, conflict: GlobalConflict) -> None:
        self.conflict = conflict
        self.regions: dict[int, RegionShadow] = {}
        self.sets = AccessSets()
        self.met = 0
        """Of the warp whose access is looked at: how often its lanes have met; 0: it is no access of a warp's lanes."""
        self.again = False
        """Whether that access, or one before it since this was last False, touched what the warp had since then."""
        self._most = _SETS

    def shadow(self, region: Region) -> RegionShadow:
        """The history of a region."""
        found = self.regions.get(region.start)
        if found is None or found.region is not region:
            found = self.regions[region.start] = RegionShadow(region)
        return found

    def read_box(self, shadow: RegionShadow, key: object, rows: Callable[[], tuple[Offsets, int]], access: Access,
                 clock: Clock) -> None:  # fmt: skip
        """A tensor copy reads a box."""
        if shadow.written:
            self.read(shadow, *rows(), access, clock)
            return
        known = shadow.boxes.get(key)
        if known is None:
            known = shadow.boxes[key] = (rows, {})
        readers = known[1]
        reader = (access.who.cluster, access.agent)
        if len(readers) < _READERS or reader in readers:
            readers[reader] = self.sets.number(access, self.met)

    def wants(self, shadow: RegionShadow, offset: int, where: Pattern | int, cluster: int, agent: int) -> bool:
        """Whether a read of a region that nobody has written is one of those that are kept."""
        known = shadow.boxes.get((offset, where))
        return known is None or len(known[1]) < _READERS or (cluster, agent) in known[1]

    def read_early(self, shadow: RegionShadow, offset: int, where: Pattern | int, access: Access) -> None:
        """A warp reads a region that nobody has written."""
        known = shadow.boxes.get((offset, where))
        if known is None:
            known = shadow.boxes[offset, where] = (partial(item_rows, offset, where), {})
        readers = known[1]
        reader = (access[4].cluster, access[0])
        if len(readers) < _READERS or reader in readers:
            readers[reader] = self.sets.number(access, self.met)

    def read(self, shadow: RegionShadow, offsets: Offsets, size: int, access: Access, clock: Clock) -> None:
        """Items of ``size`` bytes are read."""
        self._read(shadow, shadow.units(offsets, size), access, clock)

    def read_items(self, shadow: RegionShadow, offset: int, where: Pattern | int, access: Access, clock: Clock) -> None:
        """A warp reads its items."""
        self._read(shadow, shadow.items(offset, where), access, clock)

    def _read(self, shadow: RegionShadow, units: NDArray[np.intp] | slice, access: Access, clock: Clock) -> None:
        if shadow.writes is not None:
            self._check(shadow, shadow.writes[units], units, access, clock, earlier=True, later=False)
        self._join(shadow.array("reads"), units, self.sets.number(access, self.met), clock)

    def _join(
        self, array: NDArray[np.int32], units: NDArray[np.intp] | slice, number: int, clock: Clock | None
    ) -> None:
        """An access beside those that are there."""
        sets = self.sets
        here = array[units]
        if not here.any():
            array[units] = sets.alone(number)
            return
        if len(sets) > self._most:
            self._forget()
            here = array[units]

        def covers(old: Access) -> bool:
            return clock is not None and _covers(sets.access(number), old, clock)

        different = set(here.tolist())
        if len(different) == 1:
            array[units] = sets.joined(different.pop(), number, covers)
            return
        new = here.copy()
        for one in different:
            new[here == one] = sets.joined(one, number, covers)
        array[units] = new

    def _forget(self) -> None:
        """Give up the sets that no unit has."""
        arrays = [
            array for shadow in self.regions.values() for array in (shadow.writes, shadow.reads) if array is not None
        ]
        used = sorted({int(one) for array in arrays for one in np.unique(array)})
        now = self.sets.keep(used)
        table = np.zeros(max(used, default=0) + 1, np.int32)
        for old, new in now.items():
            table[old] = new
        for array in arrays:
            array[:] = table[array]
        self._most = max(_SETS, 2 * len(self.sets))

    def write(self, shadow: RegionShadow, offsets: Offsets, size: int, access: Access, clock: Clock) -> None:
        """Items of ``size`` bytes are written."""
        self._settle(shadow)
        self._write(shadow, shadow.units(offsets, size), access, clock)

    def write_items(
        self, shadow: RegionShadow, offset: int, where: Pattern | int, access: Access, clock: Clock
    ) -> None:
        """A warp writes its items."""
        self._settle(shadow)
        self._write(shadow, shadow.items(offset, where), access, clock)

    def _write(self, shadow: RegionShadow, units: NDArray[np.intp] | slice, access: Access, clock: Clock) -> None:
        writes = shadow.array("writes")
        self._check(shadow, writes[units], units, access, clock, earlier=True, later=True)
        reads = shadow.reads
        if reads is not None:
            self._check(shadow, reads[units], units, access, clock, earlier=False, later=True)
        if access[2] & STRONG:
            self._join(writes, units, self.sets.number(access, self.met), clock)
            return
        if reads is not None:
            reads[units] = 0
        writes[units] = self.sets.alone(self.sets.number(access, self.met))

    def _settle(self, shadow: RegionShadow) -> None:
        """What was read before the first write goes to the arrays."""
        if not shadow.written:
            shadow.written = True
            boxes, shadow.boxes = shadow.boxes, {}
            for rows, readers in boxes.values():
                places, wide = rows()
                for number in readers.values():
                    units = shadow.units(places, wide)
                    self._join(shadow.array("reads"), units, number, None)

    def meets(
        self, region: Region, rows: Callable[[], tuple[Offsets, int]], access: Access, *, writes: bool
    ) -> tuple[Access, bool, int] | None:
        """An access of this launch that another launch's would race with: it, whether it writes, and the byte."""
        shadow = self.regions.get(region.start)
        if shadow is None or shadow.region is not region or not (writes or shadow.written):
            return None
        self._settle(shadow)
        units = shadow.units(*rows())
        for name in _NAMES if writes else ("writes",):
            array: NDArray[np.int32] | None = getattr(shadow, name)
            if array is None:
                continue
            numbers = array[units]
            for number in dict.fromkeys(numbers[numbers != 0].tolist()):
                for old in map(self.sets.access, self.sets.members(number)):
                    if not old[2] & access[2] & STRONG:
                        return old, name == "writes", shadow.byte(units, numbers == number)
        return None

    def touched(self) -> Iterator[tuple[Region, int, NDArray[np.uint8], NDArray[np.int32]]]:
        """By region, in units of so many bytes: how each is touched (``touched``), and the instruction, and one."""
        for shadow in list(self.regions.values()):
            self._settle(shadow)
            size = len(self.sets)
            count = -(-shadow.region.size // _LARGEST) * (_LARGEST // shadow.unit)
            kinds, at = np.zeros(count, np.uint8), np.zeros(count, np.int32)
            for name, weak, strong in (("reads", READ, STRONG_READ), ("writes", WRITE, STRONG_WRITE)):
                array: NDArray[np.int32] | None = getattr(shadow, name)
                if array is None:
                    continue
                kind, place = np.zeros(size, np.uint8), np.zeros(size, np.int32)
                for number in np.flatnonzero(np.bincount(array)).tolist():
                    for one in map(self.sets.access, self.sets.members(number)):
                        kind[number] |= strong if one[2] & STRONG else weak
                        place[number] = one[3] + 1
                kinds |= kind[array]
                at = np.where(array, place[array], at)
            yield shadow.region, shadow.unit, kinds, at

    def _check(
        self, shadow: RegionShadow, numbers: NDArray[np.int32], units: NDArray[np.intp] | slice, access: Access,
        clock: Clock, *, earlier: bool, later: bool,
    ) -> None:  # fmt: skip
        if not numbers.any():
            return
        sets = self.sets
        met = self.met or -1
        for number in set(numbers.tolist()):
            for one in sets.members(number):
                old = sets.accesses[one - 1]
                if old[2] & access[2] & STRONG:
                    continue
                if sets.met[one - 1] == met and old[0] == access[0] and old[4] is access[4]:
                    self.again = True
                    continue
                ordered = _ordered(old, access, clock)
                if ordered and not (earlier and access[2] & ASYNC and not old[2] & ASYNC):
                    continue
                if ordered and _ordered(old, access, clock, ASYNC_GLOBAL):
                    continue
                byte = shadow.byte(units, numbers == number)
                self.conflict(shadow, byte, old, earlier, access, later, ordered, clock)


def _covers(new: Access, old: Access, clock: Clock) -> bool:
    """Whether all that races with an earlier access of the same kind, reads or writes, races with a new one too."""
    if new[2] & STRONG and not old[2] & STRONG:
        return False
    return old[2] & ASYNC == new[2] & ASYNC and _ordered(old, new, clock)


def _ordered(old: Access, new: Access, clock: Clock, row: int = BEFORE) -> bool:
    """Whether an access happened before what a clock is of; or is visible there to the async proxy, by another row."""
    theirs = old[4].cluster
    ticks = clock.ticks if theirs == new[4].cluster else (clock.foreign or {}).get(theirs)
    return ticks is not None and old[0] < ticks.shape[1] and bool(ticks[row, old[0]] >= old[1])


def item_rows(offset: int, where: Pattern | int) -> tuple[Offsets, int]:
    """Offsets and size of the items of a warp's access."""
    if isinstance(where, int):
        return np.array([offset], np.intp), where
    return where.offsets + offset, where.size
