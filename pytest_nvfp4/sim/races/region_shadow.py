"""The accesses to one region of global memory: an array of numbers of access sets for writes, one for reads.

An array has one item per *unit*: the largest power of two (at most 16) that divides the address and size of every
access so far, so that no access touches a part of a unit. ``global_shadow`` decides what is recorded, and checks it.
The arrays do not have the accesses of ``sole_items`` until another access asks for their units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.races.access import Access
from pytest_nvfp4.sim.races.access_sets import AccessSets
from pytest_nvfp4.sim.races.map_uses import MapUses
from pytest_nvfp4.sim.races.sole_items import EarlyRead, ItemKey, SoleItems, Touch, make_read
from pytest_nvfp4.sim.races.warp_lanes import WarpLanes

Offsets: TypeAlias = NDArray[np.intp]
Rows: TypeAlias = Callable[[], tuple[Offsets, int]]
"""Returns the offsets of the pieces of an access, and the size of each, in bytes. Called only where they matter."""
_LARGEST_UNIT = 16
"""Bytes of the widest access of a thread; the TMA's pieces are multiples of it."""
ARRAYS = ("writes", "reads")
MOST_READERS = 4
"""Readers recorded per place before the first write."""
_MOST_ITEMS = 4096
"""Most accesses of warps to a region whose units are remembered."""
_MOST_SOLE = 1 << 17
"""Most entries of ``RegionShadow.sole``."""


@dataclass(frozen=True, slots=True)
class BoxReads:
    """Reads of one box by copies before the region's first write: its rows, and the accesses by cluster and agent."""

    rows: Rows
    readers: dict[tuple[int, int], int] = field(default_factory=dict)


class RegionShadow:
    """The history of one region; ``sets`` numbers the accesses.

    Attributes:
        unit: Size of a unit in bytes.
        boxes, early: What copies and warps have read before the first write; of a warp's items the first readers.
        written: Whether the region has been written.
        low, high: The bytes that accesses have touched lie between these offsets, multiples of the largest unit. A
            launch that touches little of a large tensor needs memory for that part only.
        maps: The uses of the tensor maps in it, by offset.
        sole: The items that one warp alone touches; None for those of which ``repeated`` was called once.
        holds_first: Whether ``sole`` has room for items that were not touched before.
    """

    def __init__(self, region: Region, sets: AccessSets) -> None:
        self.region = region
        self._sets = sets
        self.unit = _LARGEST_UNIT
        self.writes: NDArray[np.int32] | None = None
        self.reads: NDArray[np.int32] | None = None
        self.boxes: dict[object, BoxReads] = {}
        self.early: dict[ItemKey, list[EarlyRead]] = {}
        self.written = False
        self.low, self.high = -(-region.size // _LARGEST_UNIT) * _LARGEST_UNIT, 0
        self.maps: dict[int, MapUses] = {}
        self.sole: dict[ItemKey, SoleItems | None] = {}
        self.holds_first = True
        self._holders: NDArray[np.int32] | None = None
        """By unit, the number of the ``SoleItems`` that has its last accesses; 0 for none."""
        self._held: dict[int, SoleItems] = {}
        self._last_held = 0
        self._items: dict[ItemKey, NDArray[np.intp] | slice] = {}

    def records_read(self, key: ItemKey, lanes: WarpLanes) -> bool:
        """Return whether ``read_early`` would record a read by a warp."""
        known = self.early.get(key)
        return known is None or len(known) < MOST_READERS or any(read.lanes is lanes for read in known)

    def read_early(self, key: ItemKey, mask: int, lanes: WarpLanes, access: Access) -> None:
        """Record a warp's read of a region before its first write."""
        lanes.touched = True
        read = make_read((access, mask, lanes, lanes.sync_count))
        known = self.early.get(key)
        if known is None:
            self.early[key] = [read]
            return
        for index, old in enumerate(known):
            if old.lanes is lanes and old.mask == mask:
                known[index] = read
                return
        if len(known) < MOST_READERS:
            known.append(read)

    def repeated(self, key: ItemKey) -> bool:
        """Return whether this was called before for items of one warp."""
        if key in self.sole:
            return True
        if len(self.sole) >= _MOST_SOLE:
            self.holds_first = False
            self.release()
            self.sole.clear()
        self.sole[key] = None
        return False

    def hold(self, items: SoleItems) -> None:
        """Leave the last accesses to some units to ``items``, which gets those of the arrays."""
        units = items.units
        first = units.start if isinstance(units, slice) else units[0]
        accesses, counts = self._sets.accesses, self._sets.sync_counts
        for name in ARRAYS:
            array = getattr(self, name)
            number = 0 if array is None else int(array[first]) >> 1
            if number:
                access = accesses[number - 1]
                setattr(items, name[:-1], Touch(access.tick, access.at, counts[number - 1]))
        self._hold(items)

    def hold_first(self, items: SoleItems) -> None:
        """Leave the accesses to some units, which have none yet, to ``items``."""
        self._hold(items)
        self.holds_first = len(self.sole) < _MOST_SOLE

    def _hold(self, items: SoleItems) -> None:
        if self._holders is None:
            self._holders = np.zeros(self.count, np.int32)
        self._last_held += 1
        self._holders[items.units] = self._last_held
        self._held[self._last_held] = self.sole[items.key] = items

    def release(self, units: NDArray[np.intp] | slice | None = None) -> None:
        """Move the last accesses to some units (None: to all) from ``sole`` to the arrays."""
        if not self._held:
            return
        assert self._holders is not None
        if units is None:
            numbers = [*self._held]
        else:
            held = self._holders[units]
            if not np.count_nonzero(held):
                return
            numbers = [number for number in dict.fromkeys(held.tolist()) if number]
        for number in numbers:
            items = self._held.pop(number)
            self.sole.pop(items.key, None)
            self._holders[items.units] = 0
            for name, touch in (("writes", items.write), ("reads", items.read)):
                access = 0 if touch is None else self._sets.number(items.access(touch), touch.sync_count) << 1
                if access or getattr(self, name) is not None:
                    self.array(name)[items.units] = access
            items.record(self.region.start)

    def refine(self, unit: int) -> None:
        """Split the units into smaller ones."""
        self.release()
        self._holders = None
        known = self.window
        factor = self.unit // unit
        self.unit = unit
        self._items.clear()
        for name in ARRAYS:
            array = getattr(self, name)
            if array is not None:
                setattr(self, name, None)
                self.array(name)[self.window] = np.repeat(array[known], factor)

    def array(self, name: str) -> NDArray[np.int32]:
        """Return one of the arrays, made on first use."""
        array: NDArray[np.int32] | None = getattr(self, name)
        if array is None:
            array = np.zeros(self.count, np.int32)
            setattr(self, name, array)
        return array

    @property
    def window(self) -> slice:
        """The units that were touched, and those between them."""
        return slice(min(self.low, self.high) // self.unit, self.high // self.unit)

    def _widen(self, low: int, high: int) -> None:
        """Extend the touched part to bytes from an offset up to another."""
        self.low = min(self.low, low & -_LARGEST_UNIT)
        self.high = max(self.high, -(-high & -_LARGEST_UNIT))

    @property
    def count(self) -> int:
        """Number of units."""
        return -(-self.region.size // _LARGEST_UNIT) * (_LARGEST_UNIT // self.unit)

    def byte(self, units: NDArray[np.intp] | slice, chosen: NDArray[np.bool_]) -> int:
        """Return the offset of the first of some units that is chosen."""
        place = int(np.argmax(chosen))
        return (units.start + place if isinstance(units, slice) else int(units[place])) * self.unit

    def bytes(self, units: NDArray[np.intp] | slice, chosen: NDArray[np.bool_]) -> Offsets:
        """Return the offsets of all bytes of the units that are chosen."""
        numbers = np.arange(units.start, units.stop) if isinstance(units, slice) else units
        return (numbers[chosen][:, None] * self.unit + np.arange(self.unit)).ravel()

    def units(self, offsets: Offsets, size: int) -> NDArray[np.intp] | slice:
        """Return the units of items of ``size`` bytes at offsets, after a release of them."""
        units = self._units_of(offsets, size)
        self.release(units)
        return units

    def _units_of(self, offsets: Offsets, size: int) -> NDArray[np.intp] | slice:
        # The lowest set bit of the disjunction is the largest power of two that divides all of them.
        low = int(np.bitwise_or.reduce(offsets)) | size
        fits = low & -low
        if fits < self.unit:
            self.refine(fits)
        if offsets.size:
            self._widen(int(offsets.min()), int(offsets.max()) + size)
        unit = self.unit
        start = offsets // unit
        count = size // unit
        if offsets.size == 1:
            return slice(int(start[0]), int(start[0]) + count)
        if count == 1:
            return start
        return (start[:, None] + np.arange(count)).ravel()

    def items(self, offset: int, where: Pattern | int) -> NDArray[np.intp] | slice:
        """Return the units of a warp's items, the first at an offset, after a release of them."""
        units = self._items.get((offset, where))
        if units is None:
            if len(self._items) >= _MOST_ITEMS:
                self._items.clear()
            units = self._items[offset, where] = self._units_of_items(offset, where)
        if self._held:
            self.release(units)
        return units

    def _units_of_items(self, offset: int, where: Pattern | int) -> NDArray[np.intp] | slice:
        spread = where.__class__ is not int and not where.dense  # type: ignore[union-attr]
        size: int = where if where.__class__ is int else where.span  # type: ignore[union-attr]
        low = offset | (_bits(where) if spread else size)
        self._widen(offset, offset + size)
        fits = low & -low
        if fits < self.unit:
            self.refine(fits)
        unit = self.unit
        start = offset // unit
        return _relative(where, unit) + start if spread else slice(start, start + size // unit)


@lru_cache(maxsize=4096)
def _bits(where: Pattern) -> int:
    """Return the disjunction of a pattern's offsets and size, whose lowest set bit divides all of them."""
    return int(np.bitwise_or.reduce(where.offsets)) | where.size


@lru_cache(maxsize=4096)
def _relative(where: Pattern, unit: int) -> NDArray[np.intp]:
    """Return the units of a pattern's items, relative to the first."""
    start = where.offsets // unit
    count = where.size // unit
    return start if count == 1 else (start[:, None] + np.arange(count)).ravel()


def item_rows(offset: int, where: Pattern | int) -> tuple[Offsets, int]:
    """Return the offsets and the size of the items of a warp's access."""
    if isinstance(where, int):
        return np.array([offset], np.intp), where
    return where.offsets + offset, where.size
