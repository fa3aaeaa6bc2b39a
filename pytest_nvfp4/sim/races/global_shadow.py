"""What happened last to each byte of global memory that a launch may write.

Arrays of access numbers, one item a *unit* of a region: the largest power of two (16 at most) that every access so far
was a multiple of, so that units are never touched in part. Per unit: the last write, the first read since, and the last
read since by another agent; a write that conflicts with none of the two reads but with one in between is not seen.
Two strong accesses never race, so that a strong write may come after others that it does not know, and hides none of
them: reads stay, and the last weak write and the first of the strong ones since (``weak``, ``strong``) are kept beside
the last write, until the next weak write. Of more than two strong writes those in between are not seen.
What is read of a region that nobody has written yet is kept as it was read, since inputs are read by many and written
by none: of each place the first readers only.

Processes that share a large launch each have their own shadow, so that only CTAs of one process are compared; what two
CTAs write is found by ``memory.coverage`` whichever ran them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.races.access import ASYNC, STRONG, Access
from pytest_nvfp4.sim.races.clocks import ASYNC_GLOBAL, BEFORE, Clock

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
_COVERED = ("weak", "strong")
_WRITES = ("writes", *_COVERED)
_READS = ("first", "last")


class RegionShadow:
    """The history of one region."""

    __slots__ = ("boxes", "first", "last", "region", "strong", "unit", "weak", "writes", "written")

    def __init__(self, region: Region) -> None:
        self.region = region
        self.unit = _LARGEST
        self.writes: NDArray[np.int32] | None = None
        self.first: NDArray[np.int32] | None = None
        self.last: NDArray[np.int32] | None = None
        self.weak: NDArray[np.int32] | None = None
        self.strong: NDArray[np.int32] | None = None
        self.boxes: dict[object, tuple[Callable[[], tuple[Offsets, int]], dict[tuple[int, int], int]]] = {}
        """What was read before the first write: its rows, and the number of the access by cluster and agent."""
        self.written = False

    def refine(self, unit: int) -> None:
        """Take smaller units."""
        factor = self.unit // unit
        self.unit = unit
        for name in (*_WRITES, *_READS):
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
    """The regions of a launch, and the accesses that their arrays number."""

    def __init__(self, conflict: GlobalConflict) -> None:
        self.conflict = conflict
        self.regions: dict[int, RegionShadow] = {}
        self.accesses: list[Access] = []
        self._numbers: dict[tuple[int, int, int, int, int], int] = {}

    def shadow(self, region: Region) -> RegionShadow:
        """The history of a region."""
        found = self.regions.get(region.start)
        if found is None or found.region is not region:
            found = self.regions[region.start] = RegionShadow(region)
        return found

    def number(self, access: Access) -> int:
        """The number of an access, from 1; the same for one that differs in nothing that matters."""
        key = (access.who.cluster, access[0], access[1], access[2], access[3])
        found = self._numbers.get(key)
        if found is None:
            self.accesses.append(access)
            found = self._numbers[key] = len(self.accesses)
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
            readers[reader] = self.number(access)

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
            readers[reader] = self.number(access)

    def read(self, shadow: RegionShadow, offsets: Offsets, size: int, access: Access, clock: Clock) -> None:
        """Items of ``size`` bytes are read."""
        self._read(shadow, shadow.units(offsets, size), access, clock)

    def read_items(self, shadow: RegionShadow, offset: int, where: Pattern | int, access: Access, clock: Clock) -> None:
        """A warp reads its items."""
        self._read(shadow, shadow.items(offset, where), access, clock)

    def _read(self, shadow: RegionShadow, units: NDArray[np.intp] | slice, access: Access, clock: Clock) -> None:
        if shadow.writes is not None:
            self._check(shadow, shadow.writes[units], units, access, clock, earlier=True, later=False)
            if shadow.strong is not None:
                self._check_covered(shadow, units, access, clock, later=False)
        number = self.number(access)
        self._note_read(shadow, units, number)

    def _note_read(self, shadow: RegionShadow, units: NDArray[np.intp] | slice, number: int) -> None:
        first = shadow.array("first")
        here = first[units]
        if not here.any():
            first[units] = number
            return
        first[units] = np.where(here == 0, number, here)
        if (here[here != 0] != number).any():
            last = shadow.array("last")
            last[units] = np.where((here != 0) & (here != number), number, last[units])

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
        strong = access[2] & STRONG
        self._check(shadow, writes[units], units, access, clock, earlier=True, later=True)
        if shadow.strong is not None:
            self._check_covered(shadow, units, access, clock, later=True)
        for name in _READS:
            reads: NDArray[np.int32] | None = getattr(shadow, name)
            if reads is not None:
                self._check(shadow, reads[units], units, access, clock, earlier=False, later=True)
                if not strong:
                    reads[units] = 0
        if strong:
            self._cover(shadow, writes[units], units)
        elif shadow.strong is not None:
            shadow.strong[units] = 0
            shadow.array("weak")[units] = 0
        writes[units] = self.number(access)

    def _cover(self, shadow: RegionShadow, numbers: NDArray[np.int32], units: NDArray[np.intp] | slice) -> None:
        """Keep the writes that a strong write comes after."""
        if not numbers.any():
            return
        strong, weak = shadow.array("strong"), shadow.array("weak")
        for number in set(numbers.tolist()):
            if not number:
                continue
            if self.accesses[number - 1][2] & STRONG:
                here = strong[units]
                strong[units] = np.where((numbers == number) & (here == 0), number, here)
            else:
                weak[units] = np.where(numbers == number, number, weak[units])

    def _check_covered(
        self, shadow: RegionShadow, units: NDArray[np.intp] | slice, access: Access, clock: Clock, *, later: bool
    ) -> None:
        for name in _COVERED:
            self._check(shadow, shadow.array(name)[units], units, access, clock, earlier=True, later=later)

    def _settle(self, shadow: RegionShadow) -> None:
        """What was read before the first write goes to the arrays."""
        if not shadow.written:
            shadow.written = True
            boxes, shadow.boxes = shadow.boxes, {}
            for rows, readers in boxes.values():
                places, wide = rows()
                for number in readers.values():
                    self._note_read(shadow, shadow.units(places, wide), number)

    def meets(
        self, region: Region, rows: Callable[[], tuple[Offsets, int]], access: Access, *, writes: bool
    ) -> tuple[Access, bool, int] | None:
        """An access of this launch that another launch's would race with: it, whether it writes, and the byte."""
        shadow = self.regions.get(region.start)
        if shadow is None or shadow.region is not region or not (writes or shadow.written):
            return None
        self._settle(shadow)
        units = shadow.units(*rows())
        for name in (*_WRITES, *_READS) if writes else _WRITES:
            array: NDArray[np.int32] | None = getattr(shadow, name)
            if array is None:
                continue
            numbers = array[units]
            for number in dict.fromkeys(numbers[numbers != 0].tolist()):
                old = self.accesses[number - 1]
                if not old[2] & access[2] & STRONG:
                    place = int(np.argmax(numbers == number))
                    unit = units.start + place if isinstance(units, slice) else int(units[place])
                    return old, name in _WRITES, unit * shadow.unit
        return None

    def _check(
        self, shadow: RegionShadow, numbers: NDArray[np.int32], units: NDArray[np.intp] | slice, access: Access,
        clock: Clock, *, earlier: bool, later: bool,
    ) -> None:  # fmt: skip
        if not numbers.any():
            return
        mine = access.who.cluster
        for number in set(numbers.tolist()):
            if not number:
                continue
            old = self.accesses[number - 1]
            if old[2] & access[2] & STRONG:
                continue
            theirs = old.who.cluster
            ticks = clock.ticks if theirs == mine else (clock.foreign or {}).get(theirs)
            known = ticks is not None and old[0] < ticks.shape[1]
            ordered = known and ticks[BEFORE, old[0]] >= old[1]  # type: ignore[index]
            fenced = True
            if ordered and earlier and access[2] & ASYNC and not old[2] & ASYNC:
                fenced = bool(ticks[ASYNC_GLOBAL, old[0]] >= old[1])  # type: ignore[index]
            if ordered and fenced:
                continue
            place = int(np.argmax(numbers == number))
            unit = units.start + place if isinstance(units, slice) else int(units[place])
            self.conflict(shadow, unit * shadow.unit, old, earlier, access, later, bool(ordered), clock)


def item_rows(offset: int, where: Pattern | int) -> tuple[Offsets, int]:
    """Offsets and size of the items of a warp's access."""
    if isinstance(where, int):
        return np.array([offset], np.intp), where
    return where.offsets + offset, where.size
