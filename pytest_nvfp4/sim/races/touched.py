"""Which bytes of device memory a piece of work touches, and how: to compare work on different streams, byte by byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.driver.streams import Extent

if TYPE_CHECKING:
    from pytest_nvfp4.sim.memory.globals import Region

__all__ = [
    "READ", "STRONG_READ", "STRONG_WRITE", "WRITE", "ExtentTouched", "RegionTouched", "Touched", "conflict", "covers",
    "speak",
]  # fmt: skip

READ, STRONG_READ, WRITE, STRONG_WRITE = 1, 2, 4, 8
"""How a byte is touched: atomics and ordered accesses of two launches are no race, whoever comes first."""

Kinds = NDArray[np.uint8]


class Touched(Protocol):
    """Bytes from ``low`` up to ``high``, which may have holes; ``kinds`` is all that is done to any of them."""

    @property
    def low(self) -> int:
        """The lowest address."""

    @property
    def high(self) -> int:
        """The address after the highest."""

    @property
    def kinds(self) -> int:
        """All that is done to any of them."""

    def bytes(self, low: int, high: int) -> Kinds:
        """What is done to each byte of a part of the range."""

    def line(self, address: int) -> str:
        """The line of the kernel that touches a byte, in words; empty where there is none."""


class ExtentTouched:
    """A strided array."""

    __slots__ = ("extent", "high", "kinds", "low", "said")

    def __init__(self, extent: Extent, kinds: int, said: str = "") -> None:
        reach = sum((n - 1) * step for n, step in zip(extent.shape, extent.strides, strict=True))
        self.extent = extent
        self.kinds = kinds
        self.said = said
        self.low = extent.address
        self.high = extent.address + (0 if 0 in extent.shape else reach + extent.size)

    def bytes(self, low: int, high: int) -> Kinds:
        """See ``Touched``."""
        extent = self.extent
        result = np.zeros(self.high - self.low, np.uint8)
        shape, strides = (*extent.shape, extent.size), (*extent.strides, 1)
        np.lib.stride_tricks.as_strided(result, shape, strides)[...] = self.kinds
        return result[low - self.low : high - self.low]

    def line(self, _address: int) -> str:
        """See ``Touched``."""
        return self.said


class RegionTouched:
    """What a launch does in a region, by units of some bytes; ``at`` is the instruction that does it, and one."""

    __slots__ = ("at", "high", "kinds", "low", "say", "unit", "units")

    def __init__(
        self, region: Region, unit: int, units: Kinds, at: NDArray[np.int32], say: Callable[[int], str] | None = None
    ) -> None:
        self.low = region.start
        self.high = region.end
        self.unit = unit
        self.units = units
        self.at = at
        self.kinds = int(np.bitwise_or.reduce(units)) if units.size else 0
        self.say = say

    def bytes(self, low: int, high: int) -> Kinds:
        """See ``Touched``."""
        first, last = (low - self.low) // self.unit, -(-(high - self.low) // self.unit)
        skip = (low - self.low) - first * self.unit
        return np.repeat(self.units[first:last], self.unit)[skip : skip + high - low]

    def line(self, address: int) -> str:
        """See ``Touched``."""
        at = int(self.at[(address - self.low) // self.unit])
        return self.say(at - 1) if at and self.say is not None else ""

    def add(self, unit: int, units: Kinds, at: NDArray[np.int32]) -> None:
        """What another process of the same launch did there."""
        least = min(unit, self.unit)
        self.units, units = np.repeat(self.units, self.unit // least), np.repeat(units, unit // least)
        self.at, at = np.repeat(self.at, self.unit // least), np.repeat(at, unit // least)
        self.unit = least
        self.at = np.where(self.units & (WRITE | STRONG_WRITE) | (units == 0), self.at, at)
        self.units = self.units | units
        self.kinds = int(np.bitwise_or.reduce(self.units)) if self.units.size else 0


def _alike(one: Touched, other: Touched, low: int, high: int) -> tuple[Kinds, Kinds, int]:
    """What two do to each byte of a range, or to each unit of so many bytes where both have the same."""
    both = isinstance(one, RegionTouched) and isinstance(other, RegionTouched)
    if both and (one.low, one.high, one.unit) == (other.low, other.high, other.unit):  # type: ignore[attr-defined]
        return one.units, other.units, one.unit  # type: ignore[attr-defined]
    return one.bytes(low, high), other.bytes(low, high), 1


def _races(one: Kinds, other: Kinds) -> NDArray[np.bool_]:
    """By byte, whether two kinds race without an order: one of them writes, and not both are strong."""
    write, strong, read = WRITE, STRONG_WRITE, READ
    return (  # type: ignore[no-any-return]
        ((one & write != 0) & (other != 0))
        | ((one != 0) & (other & write != 0))
        | ((one & strong != 0) & (other & read != 0))
        | ((one & read != 0) & (other & strong != 0))
    )


def conflict(one: Touched, other: Touched) -> int | None:
    """The lowest address at which two pieces of work race if nothing orders them."""
    low, high = max(one.low, other.low), min(one.high, other.high)
    if low >= high or not (one.kinds | other.kinds) & (WRITE | STRONG_WRITE):
        return None
    first, second, unit = _alike(one, other, low, high)
    races = _races(first, second)
    return low + unit * int(np.argmax(races)) if races.any() else None


def speak(one: Touched, other: Touched) -> bool:
    """Whether later work reads flags that earlier work sets: then it may wait for it, and all that is known is lost."""
    low, high = max(one.low, other.low), min(one.high, other.high)
    if low >= high or not (one.kinds & STRONG_WRITE and other.kinds & STRONG_READ):
        return False
    sets, waits = one.bytes(low, high) & STRONG_WRITE, other.bytes(low, high) & STRONG_READ
    return bool((sets.astype(bool) & waits.astype(bool)).any())


def covers(new: Touched, old: Touched) -> bool:
    """Whether whatever races with earlier work also races with new work."""
    if old.low < new.low or old.high > new.high:
        return False
    before, now, _ = _alike(old, new, old.low, old.high)
    return bool(((before == 0) | (now & WRITE != 0) | (before == now)).all())
