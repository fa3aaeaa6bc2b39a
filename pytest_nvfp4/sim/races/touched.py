"""The bytes of device memory that a piece of work touches, to compare work on different streams byte by byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.sim.memory.globals import Region

READ, STRONG_READ, WRITE, STRONG_WRITE = 1, 2, 4, 8
"""Flags for how a byte is touched. Atomics and ordered accesses (strong ones) of two launches never race."""

Kinds = NDArray[np.uint8]


class TouchedUnits(NamedTuple):
    """How a launch touches a region.

    Attributes:
        start: Address of the region.
        offset: Offset of the first of the units; the others of the region are not touched.
        unit: Bytes of a unit.
        kinds: By unit, the flags.
        at: By unit, the index of an instruction that touches it plus one; 0 for none.
    """

    start: int
    offset: int
    unit: int
    kinds: Kinds
    at: NDArray[np.int32]


class TouchedExtent:
    """A strided array from ``low`` up to ``high``; ``place`` is the line of the kernel that touches it."""

    __slots__ = ("extent", "high", "kinds", "low", "place")

    def __init__(self, extent: Extent, kinds: int, place: str = "") -> None:
        reach = sum((n - 1) * step for n, step in zip(extent.shape, extent.strides, strict=True))
        self.extent = extent
        self.kinds = kinds
        self.place = place
        self.low = extent.address
        self.high = extent.address + (0 if 0 in extent.shape else reach + extent.size)

    def bytes(self, low: int, high: int) -> Kinds:
        """Return the flags of each byte of a part of the range."""
        extent = self.extent
        result = np.zeros(self.high - self.low, np.uint8)
        shape, strides = (*extent.shape, extent.size), (*extent.strides, 1)
        np.lib.stride_tricks.as_strided(result, shape, strides)[...] = self.kinds
        return result[low - self.low : high - self.low]

    def line(self, _address: int) -> str:
        """Return the line of the kernel, for messages."""
        return self.place


class TouchedRegion:
    """What a launch touches of a region, from ``low`` up to ``high``; ``place`` returns the line of an instruction.

    ``kinds`` has the flags of all bytes together.
    """

    __slots__ = ("_end", "at", "high", "kinds", "low", "place", "unit", "units")

    def __init__(self, region: Region, touched: TouchedUnits, place: Callable[[int], str] | None = None) -> None:
        _, offset, self.unit, self.units, self.at = touched
        self.low = region.start + offset
        self.high = min(region.end, self.low + self.unit * self.units.size)
        self._end = region.end
        self.kinds = int(np.bitwise_or.reduce(self.units)) if self.units.size else 0
        self.place = place

    def bytes(self, low: int, high: int) -> Kinds:
        """Return the flags of each byte of a part of the range."""
        first, last = (low - self.low) // self.unit, -(-(high - self.low) // self.unit)
        skip = (low - self.low) - first * self.unit
        return np.repeat(self.units[first:last], self.unit)[skip : skip + high - low]

    def line(self, address: int) -> str:
        """Return the line of the kernel that touches a byte, for messages; empty if there is none."""
        at = int(self.at[(address - self.low) // self.unit])
        return self.place(at - 1) if at and self.place is not None else ""

    def add(self, touched: TouchedUnits) -> None:
        """Add what another process of the same launch touched."""
        start, offset, unit, units, at = touched
        least = min(unit, self.unit)
        ends = start + offset, start + offset + unit * units.size
        low, high = min(self.low, ends[0]), max(self.low + self.unit * self.units.size, ends[1])

        def spread(values: NDArray[Any], of: int, first: int) -> NDArray[Any]:
            """Return the values of all units from ``low`` up to ``high``."""
            result = np.zeros((high - low) // least, values.dtype)
            here = (first - low) // least
            result[here : here + values.size * (of // least)] = np.repeat(values, of // least)
            return result

        self.units, units = spread(self.units, self.unit, self.low), spread(units, unit, ends[0])
        self.at, at = spread(self.at, self.unit, self.low), spread(at, unit, ends[0])
        self.unit, self.low, self.high = least, low, min(self._end, high)
        self.at = np.where(self.units & (WRITE | STRONG_WRITE) | (units == 0), self.at, at)
        self.units = self.units | units
        self.kinds = int(np.bitwise_or.reduce(self.units)) if self.units.size else 0


TouchedBytes: TypeAlias = TouchedExtent | TouchedRegion


def _aligned(first: TouchedBytes, second: TouchedBytes, low: int, high: int) -> tuple[Kinds, Kinds, int]:
    """Return both flags of each unit of a range, and the bytes of a unit: 1 unless both have the same units."""
    if (
        isinstance(first, TouchedRegion)
        and isinstance(second, TouchedRegion)
        and (first.low, first.high, first.unit) == (second.low, second.high, second.unit)
    ):
        return first.units, second.units, first.unit
    return first.bytes(low, high), second.bytes(low, high), 1


def _races(first: Kinds, second: Kinds) -> NDArray[np.bool_]:
    """Return, by unit, whether accesses without an order race: one of them writes, and not both are strong."""
    write, strong, read = WRITE, STRONG_WRITE, READ
    return (  # type: ignore[no-any-return]
        ((first & write != 0) & (second != 0))
        | ((first != 0) & (second & write != 0))
        | ((first & strong != 0) & (second & read != 0))
        | ((first & read != 0) & (second & strong != 0))
    )


def conflict(first: TouchedBytes, second: TouchedBytes) -> int | None:
    """Return the lowest address at which two pieces of work race if nothing orders them; None for no race."""
    low, high = max(first.low, second.low), min(first.high, second.high)
    if low >= high or not (first.kinds | second.kinds) & (WRITE | STRONG_WRITE):
        return None
    one, other, unit = _aligned(first, second, low, high)
    races = _races(one, other)
    return low + unit * int(np.argmax(races)) if races.any() else None


def synchronises(earlier: TouchedBytes, later: TouchedBytes) -> bool:
    """Return whether later work reads flags that earlier work sets, and so may wait for it.

    The order inside the launches is not recorded, so that such work counts as ordered.
    """
    low, high = max(earlier.low, later.low), min(earlier.high, later.high)
    if low >= high or not (earlier.kinds & STRONG_WRITE and later.kinds & STRONG_READ):
        return False
    sets, waits = earlier.bytes(low, high) & STRONG_WRITE, later.bytes(low, high) & STRONG_READ
    return bool((sets.astype(bool) & waits.astype(bool)).any())


def covers(new: TouchedBytes, old: TouchedBytes) -> bool:
    """Return whether everything that races with old work also races with new work."""
    if old.low < new.low or old.high > new.high:
        return False
    before, now, _ = _aligned(old, new, old.low, old.high)
    return bool(((before == 0) | (now & WRITE != 0) | (before == now)).all())
