"""The accesses to each byte of writable global memory that later accesses may race with.

A region has two arrays of numbers of access sets (``region_shadow``, ``access_sets``): one has the writes, which all
later accesses are checked against; the other has the reads, for later writes.

A weak write replaces everything before it: it happened after that, or was reported. Two strong accesses never race, so
a strong write may follow accesses that are unordered with it, and hides none of them: it joins the writes, one of each
agent, and the reads stay. Reads of a region before its first write are kept apart (``settle``), because inputs are read
by many and never written: of each box or warp's items only the first readers.

An ``atom`` that returns a value comes behind all strong writes so far in the order of the place's writes (PTX ISA,
"Memory Consistency Model", "Coherence"), and what happens after it cannot come before them. So a weak access that is
ordered behind such an ``atom`` does not race with them: who counts last sets the counter to 0 by a plain store, as in
the CUDA Programming Guide's example of memory fences.

Processes that share a large launch have a shadow each, so only CTAs of one process are compared. ``memory.coverage``
finds CTAs that write the same bytes in any process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.races.access import ASYNC, STRONG, Access
from pytest_nvfp4.sim.races.access_sets import AccessSets
from pytest_nvfp4.sim.races.clocks import Clock
from pytest_nvfp4.sim.races.map_uses import MAP_BYTES
from pytest_nvfp4.sim.races.region_shadow import ARRAYS, MOST_READERS, BoxReads, Offsets, RegionShadow, Rows
from pytest_nvfp4.sim.races.sole_items import EarlyRead, ItemKey, SoleItems, Touch, by_single_lanes
from pytest_nvfp4.sim.races.ticks import ASYNC_GLOBAL, BEFORE, VISIBLE
from pytest_nvfp4.sim.races.touched import READ, STRONG_READ, STRONG_WRITE, WRITE, TouchedUnits
from pytest_nvfp4.sim.races.warp_lanes import WarpLanes

_FEW = 64
"""Units whose numbers are listed at once; of more, it is first asked whether there are any."""
_EMPTY: Set[int] = frozenset({0})
"""The numbers of units without accesses."""
_MOST_OBSERVED = 4096
"""Most places whose last ``atom`` is remembered."""
_SETS = 1 << 17
"""Collect unreferenced stored sets above this count."""


@dataclass(frozen=True, slots=True)
class GlobalConflict:
    """Two accesses to one place of global memory that lack an order.

    Attributes:
        shadow, offset: The region, and the offset of the first byte.
        old, new: The earlier and the later access.
        old_writes, new_writes: Whether each writes.
        clock: The clock of the later access.
        proxy: Whether the accesses are ordered, and only a proxy fence is missing.
        map_use: Whether one of the accesses is TMA's use of a tensor map.
        bytes: The offsets of all bytes that both touch; None if they are not listed.
    """

    shadow: RegionShadow
    offset: int
    old: Access
    old_writes: bool
    new: Access
    new_writes: bool
    clock: Clock
    proxy: bool
    map_use: bool = False
    bytes: Offsets | None = field(default=None, compare=False)


class EarlierAccess(NamedTuple):
    """An access, whether it writes, and the offset of its first byte in the region."""

    access: Access
    writes: bool
    offset: int


class GlobalShadow:
    """The regions of a launch, and the access sets that their arrays number.

    Args:
        report: Called with every conflict.

    Attributes:
        sync_count: Number of synchronisations of the lanes of the warp whose access is checked; 0: no lanes' access.
        settled: Whether the lanes are synchronised behind that access.
        again: Set if that access touches a unit that the warp has touched since its lanes were last synchronised.
        held: Set if ``SoleItems`` have that access, so that it need not be recorded with the lanes.
    """

    def __init__(self, report: Callable[[GlobalConflict], None]) -> None:
        self.report = report
        self.regions: dict[int, RegionShadow] = {}
        self.sets = AccessSets()
        self.sync_count = 0
        self.settled = False
        self.again = False
        self.held = False
        self._observed: dict[int, tuple[Access, Iterable[int]]] = {}
        self._limit = _SETS

    def shadow(self, region: Region) -> RegionShadow:
        """Return the history of a region."""
        shadow = self.regions.get(region.start)
        if shadow is None or shadow.region is not region:
            shadow = self.regions[region.start] = RegionShadow(region, self.sets)
        return shadow

    def read_box(self, shadow: RegionShadow, key: object, rows: Rows, access: Access, clock: Clock) -> None:
        """Check and record a tensor copy's read of a box."""
        if shadow.written:
            self.read(shadow, shadow.units(*rows()), access, clock)
            return
        reads = shadow.boxes.get(key)
        if reads is None:
            reads = shadow.boxes[key] = BoxReads(rows)
        reader = (access[4].cluster, access[0])
        if len(reads.readers) < MOST_READERS or reader in reads.readers:
            reads.readers[reader] = self.sets.number(access)

    def read(self, shadow: RegionShadow, units: NDArray[np.intp] | slice, access: Access, clock: Clock) -> None:
        """Check and record a read of units."""
        if shadow.writes is not None:
            self._check(shadow, shadow.writes[units], units, access, clock, old_writes=True, new_writes=False)
        self._join(shadow.array("reads"), units, self._number(access), clock)

    def _number(self, access: Access) -> int:
        """Return the number of an access in ``sets``.

        An access that the lanes are synchronised behind is older than all later ones, whichever count it has: with one
        count for all, the tests of a polling loop share a number.
        """
        return self.sets.number(access, 1 if self.settled else self.sync_count)

    def written(self, shadow: RegionShadow, units: NDArray[np.intp] | slice) -> tuple[Access, int] | None:
        """Return a recorded write of the first of some units that has one, and its offset."""
        if shadow.writes is None:
            return None
        numbers = shadow.writes[units]
        if not numbers.any():
            return None
        first = shadow.byte(units, numbers != 0)
        members = self.sets.members(int(shadow.writes[first // shadow.unit]))
        return self.sets.access(next(iter(members))), first

    def touch_own(
        self, shadow: RegionShadow, key: ItemKey, mask: int, lanes: WarpLanes, access: Access, *, writes: bool
    ) -> bool:
        """Record a warp's weak access to items of which it alone has made the recorded accesses, weakly and alike.

        That is what ``read`` and ``write_items`` would do, faster: such accesses are in order. What nothing has touched
        before, or the warp in several rounds between synchronisations of its lanes, is left to ``SoleItems``.

        Returns:
            Whether the items are such ones.
        """
        sets = self.sets
        sync_count = self.sync_count
        again = repeated = recent = False
        younger = True
        units = shadow.items(*key)
        for array, checked in ((shadow.writes, True), (shadow.reads, writes)):
            if array is None:
                continue
            data = array[units].tobytes()
            first = data[:4]
            if data != first * (len(data) >> 2):
                return False
            number = int.from_bytes(first, sys.byteorder)
            if not number:
                continue
            if number & 1:
                return False
            old = sets.accesses[(number >> 1) - 1]
            if old[0] != access[0] or old[4] is not access[4] or old[2]:
                return False
            count = sets.sync_counts[(number >> 1) - 1]
            if not count:
                return False
            repeated = True
            recent |= count == sync_count
            if checked:
                again |= count == sync_count
            else:
                younger = old[1] < access[1] or count < sync_count
        self.again = again
        if not repeated and shadow.holds_first and by_single_lanes(key[1], mask):
            items = SoleItems(key, mask, units, access, lanes)
            items.touch(access.tick, access.at, writes=writes)
            shadow.hold_first(items)
            self.held = True
            return True
        if writes:
            if shadow.reads is not None:
                shadow.reads[units] = 0
            shadow.array("writes")[units] = sets.number(access, sync_count) << 1
        elif younger:
            shadow.array("reads")[units] = sets.number(access, sync_count) << 1
        # ``SoleItems`` compare nothing with what other lanes have touched since they were last synchronised.
        if repeated and not recent and by_single_lanes(key[1], mask) and shadow.repeated(key):
            shadow.hold(SoleItems(key, mask, units, access, lanes))
        return True

    def _join(
        self, array: NDArray[np.int32], units: NDArray[np.intp] | slice, number: int, clock: Clock | None
    ) -> None:
        """Add an access to the sets of some units."""
        sets = self.sets
        here = array[units]
        different = _distinct(here)
        if different <= _EMPTY:
            array[units] = number << 1
            return
        if len(sets) > self._limit:
            self._collect()
            here = array[units]
            different = _distinct(here)

        def covers(old: Access) -> bool:
            return clock is not None and _covers(sets.access(number), old, clock)

        if len(different) == 1:
            array[units] = sets.joined(next(iter(different)), number, covers)
            return
        new = here.copy()
        for known in different:
            new[here == known] = sets.joined(known, number, covers)
        array[units] = new

    def _collect(self) -> None:
        """Drop the sets that no unit refers to, and renumber the others."""
        arrays = [
            array[shadow.window]
            for shadow in self.regions.values()
            for array in (shadow.writes, shadow.reads)
            if array is not None
        ]
        used = sorted({int(number) for array in arrays for number in np.unique(array[array & 1 != 0])})
        now = self.sets.retain(used)
        table = np.zeros(max(used, default=0) + 1, np.int32)
        for old, new in now.items():
            table[old] = new
        for array in arrays:
            stored = array & 1 != 0
            array[stored] = table[array[stored]]
        self._limit = max(_SETS, 2 * len(self.sets))

    def write(self, shadow: RegionShadow, offsets: Offsets, size: int, access: Access, clock: Clock) -> None:
        """Check and record a write of items of ``size`` bytes."""
        self.settle(shadow)
        self._write(shadow, shadow.units(offsets, size), access, clock)

    def write_items(
        self, shadow: RegionShadow, offset: int, where: Pattern | int, access: Access, clock: Clock
    ) -> None:
        """Check and record a warp's write of its items in a settled region."""
        self._write(shadow, shadow.items(offset, where), access, clock)

    def _write(self, shadow: RegionShadow, units: NDArray[np.intp] | slice, access: Access, clock: Clock) -> None:
        writes = shadow.array("writes")
        self._check(shadow, writes[units], units, access, clock, old_writes=True, new_writes=True)
        reads = shadow.reads
        if reads is not None:
            self._check(shadow, reads[units], units, access, clock, old_writes=False, new_writes=True)
        if shadow.maps:
            self._write_maps(shadow, units, access, clock)
        number = self._number(access)
        if access[2] & STRONG:
            self._join(writes, units, number, clock)
            return
        if reads is not None:
            reads[units] = 0
        writes[units] = number << 1

    def observe(self, shadow: RegionShadow, offset: int, access: Access) -> None:
        """Record that an ``atom`` at an offset, which has just been written, observed all strong writes there.

        The last one is enough: what comes behind an earlier one only may race with the last.
        """
        if len(self._observed) >= _MOST_OBSERVED:
            self._observed.clear()
        members = self.sets.members(int(shadow.array("writes")[offset // shadow.unit]))
        self._observed[shadow.region.start + offset] = access, members

    def _behind(self, address: int, old: Access, new: Access, clock: Clock) -> bool:
        """Return whether a strong write comes before an access in the order of the writes of a place."""
        found = self._observed.get(address)
        if found is None or old[2] != STRONG or new[2] & ASYNC or not _ordered(found[0], new, clock):
            return False
        return any(self.sets.access(number) is old for number in found[1])

    def _write_maps(self, shadow: RegionShadow, units: NDArray[np.intp] | slice, access: Access, clock: Clock) -> None:
        """Check a write against the uses of the tensor maps that it changes."""
        touched = np.arange(units.start, units.stop) if isinstance(units, slice) else units
        for offset, uses in shadow.maps.items():
            first = offset // shadow.unit
            if not ((touched >= first) & (touched < first + MAP_BYTES // shadow.unit)).any():
                continue
            for old in uses.overwrite(access):
                if not _ordered(old, access, clock):
                    self.report(GlobalConflict(shadow, offset, old, False, access, True, clock, False, map_use=True))

    def use_map(self, shadow: RegionShadow, offset: int, access: Access, clock: Clock) -> None:
        """Check TMA's use of a tensor map against the writes of its bytes.

        ``sync.fences`` checks the proxy fences between the two.
        """
        if shadow.writes is None:
            return
        units = slice(offset // shadow.unit, (offset + MAP_BYTES) // shadow.unit)
        shadow.release(units)
        for number in set(shadow.writes[units].tolist()):
            for old in map(self.sets.access, self.sets.members(number)):
                if not _ordered(old, access, clock, VISIBLE):
                    self.report(GlobalConflict(shadow, offset, old, True, access, False, clock, False, map_use=True))

    def settle(self, shadow: RegionShadow) -> None:
        """Move the reads before the first write to the arrays."""
        if not shadow.written:
            shadow.written = True
            boxes, shadow.boxes = shadow.boxes, {}
            for early in boxes.values():
                offsets, size = early.rows()
                for number in early.readers.values():
                    units = shadow.units(offsets, size)
                    self._join(shadow.array("reads"), units, number, None)
            items, shadow.early = shadow.early, {}
            for key, reads in items.items():
                self._settle_items(shadow, key, reads)

    def _settle_items(self, shadow: RegionShadow, key: ItemKey, reads: list[EarlyRead]) -> None:
        units = shadow.items(*key)  # before the array, which this may replace
        (access, mask, lanes, sync_count), *others = reads
        untouched = shadow.reads is None or not np.count_nonzero(shadow.reads[units])
        if untouched and not others and shadow.holds_first and by_single_lanes(key[1], mask):
            held = SoleItems(key, mask, units, access, lanes)
            held.read = Touch(access.tick, access.at, sync_count)
            shadow.hold_first(held)
            return
        for read in reads:
            self._join(shadow.array("reads"), units, self.sets.number(read.access, read.sync_count), None)
            read.record(shadow.region.start, key)

    def conflicting(self, region: Region, rows: Rows, access: Access, *, writes: bool) -> EarlierAccess | None:
        """Return an access of this launch that an unordered access of another launch would race with."""
        shadow = self.regions.get(region.start)
        if shadow is None or shadow.region is not region or not (writes or shadow.written):
            return None
        self.settle(shadow)
        units = shadow.units(*rows())
        for name in ARRAYS if writes else ("writes",):
            array: NDArray[np.int32] | None = getattr(shadow, name)
            if array is None:
                continue
            numbers = array[units]
            for number in dict.fromkeys(numbers[numbers != 0].tolist()):
                for old in map(self.sets.access, self.sets.members(number)):
                    if not old[2] & access[2] & STRONG:
                        return EarlierAccess(old, name == "writes", shadow.byte(units, numbers == number))
        return None

    def touched(self) -> Iterator[TouchedUnits]:
        """Yield how each region is touched, for ``touched``."""
        for shadow in list(self.regions.values()):
            self.settle(shadow)
            shadow.release()
            size = self.sets.end
            window = shadow.window
            count = window.stop - window.start
            kinds, at = np.zeros(count, np.uint8), np.zeros(count, np.int32)
            for name, weak, strong in (("reads", READ, STRONG_READ), ("writes", WRITE, STRONG_WRITE)):
                whole: NDArray[np.int32] | None = getattr(shadow, name)
                if whole is None:
                    continue
                array = whole[window]
                kind, place = np.zeros(size, np.uint8), np.zeros(size, np.int32)
                for number in np.flatnonzero(np.bincount(array)).tolist():
                    for access in map(self.sets.access, self.sets.members(number)):
                        kind[number] |= strong if access[2] & STRONG else weak
                        place[number] = access[3] + 1
                kinds |= kind[array]
                at = np.where(array, place[array], at)
            yield TouchedUnits(shadow.region.start, window.start * shadow.unit, shadow.unit, kinds, at)

    def _check(
        self, shadow: RegionShadow, numbers: NDArray[np.int32], units: NDArray[np.intp] | slice, access: Access,
        clock: Clock, *, old_writes: bool, new_writes: bool,
    ) -> None:  # fmt: skip
        different = _distinct(numbers)
        if different <= _EMPTY:
            return
        sets = self.sets
        sync_count = self.sync_count
        for number in different:
            if access[2] & STRONG and sets.only_strong(number):
                continue
            for member in sets.members(number):
                old = sets.accesses[member - 1]
                if old[2] & access[2] & STRONG:
                    continue
                if old[0] == access[0] and old[4] is access[4] and sync_count and sets.sync_counts[member - 1]:
                    # The warp's own, so before. Its lanes may race.
                    self.again |= sets.sync_counts[member - 1] == sync_count
                    continue
                ordered = _ordered(old, access, clock, VISIBLE if old_writes else BEFORE)
                # A generic write needs a proxy fence before an access through the async proxy (PTX ISA, "Proxies").
                if ordered and not (old_writes and access[2] & ASYNC and not old[2] & ASYNC):
                    continue
                if ordered and _ordered(old, access, clock, ASYNC_GLOBAL):
                    continue
                chosen = numbers == number
                byte = shadow.byte(units, chosen)
                if old_writes and not ordered and self._behind(shadow.region.start + byte, old, access, clock):
                    continue
                both = shadow.bytes(units, chosen) if old_writes and new_writes else None
                self.report(
                    GlobalConflict(shadow, byte, old, old_writes, access, new_writes, clock, ordered, bytes=both)
                )


def _distinct(numbers: NDArray[np.int32]) -> Set[int]:
    """Return the different numbers of units' sets, in the units' order; most often, many units have none."""
    if numbers.size > _FEW and not numbers.any():
        return _EMPTY
    if numbers.size == 1:
        return {numbers.item()}
    data = numbers.tobytes()
    first = data[:4]
    if data == first * (len(data) >> 2):
        return {int.from_bytes(first, sys.byteorder)}
    return dict.fromkeys(numbers.tolist()).keys()


def _covers(new: Access, old: Access, clock: Clock) -> bool:
    """Return whether everything that races with an earlier read (or write) also races with a new one."""
    if new[2] & STRONG and not old[2] & STRONG:
        return False
    return old[2] & ASYNC == new[2] & ASYNC and _ordered(old, new, clock, VISIBLE)


def _ordered(old: Access, new: Access, clock: Clock, row: int = BEFORE) -> bool:
    """Return whether a row of a clock has an access: whether it happened before, or is visible to the async proxy."""
    cluster = old[4].cluster
    ticks = clock.ticks if cluster == new[4].cluster else (clock.foreign or {}).get(cluster)
    return ticks is not None and old[0] < ticks.shape[1] and bool(ticks[row, old[0]] >= old[1])
