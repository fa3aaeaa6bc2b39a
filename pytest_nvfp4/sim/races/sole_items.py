"""Accesses to global memory that are remembered as they are until another access may race with them.

Most weak accesses are reads of inputs, which nothing writes, or to a warp's own items: what it alone touches, lane by
lane and always together, such as its part of the output. They race with nothing. ``RegionShadow`` moves them to its
arrays, and to the lanes of the warp, as soon as another access asks for the units.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.races.access import Access, make_access
from pytest_nvfp4.sim.races.warp_lanes import GlobalLaneAccess, WarpLanes

ItemKey = tuple[int, Pattern | int]
"""The offset of a warp's items in their region, and their pattern, or the size of a single item."""


class Touch(NamedTuple):
    """The warp's tick at an access, the instruction, and the number of synchronisations of the lanes before it."""

    tick: int
    at: int
    sync_count: int


def by_single_lanes(where: Pattern | int, mask: int) -> bool:
    """Return whether no two lanes touch one byte of an access; ``mask`` has the lanes of a single item."""
    if isinstance(where, int):
        return mask.bit_count() == 1
    return where.aligned and where.distinct == where.active.size


class EarlyRead(NamedTuple):
    """A read of a region that was not written yet.

    Attributes:
        access: The access.
        mask: The lanes of a single item, as in ``MemoryHooks``.
        lanes, sync_count: The lanes of the warp, and the number of their synchronisations before.
    """

    access: Access
    mask: int
    lanes: WarpLanes
    sync_count: int

    def record(self, start: int, key: ItemKey) -> None:
        """Record the read with the lanes, unless they were synchronised since."""
        if self.sync_count == self.lanes.sync_count and (self.mask or not isinstance(key[1], int)):
            _record(self.lanes, start, key, self.mask, self.access.at, writes=False)


make_read = partial(tuple.__new__, EarlyRead)
"""Make an ``EarlyRead`` from a tuple of all its fields."""


def _record(lanes: WarpLanes, start: int, key: ItemKey, mask: int, at: int, *, writes: bool) -> None:
    offset, where = key
    low = start + offset
    high = low + (where if isinstance(where, int) else where.span)
    lanes.global_access(GlobalLaneAccess(low, high, where, mask, False, at, writes), again=False)


class SoleItems:
    """The last weak accesses to a warp's items.

    Attributes:
        key, mask: What the warp touches, as in ``MemoryHooks``.
        units: The units of the region.
        lanes: The lanes of the warp.
        write, read: The last write, and the last read since; None if there is none.
    """

    __slots__ = ("_agent", "_warp", "key", "lanes", "mask", "read", "units", "write")

    def __init__(
        self, key: ItemKey, mask: int, units: NDArray[np.intp] | slice, access: Access, lanes: WarpLanes
    ) -> None:
        self.key = key
        self.mask = mask
        self.units = units
        self.lanes = lanes
        self._agent, self._warp = access.agent, access.warp
        self.write: Touch | None = None
        self.read: Touch | None = None

    def touch(self, tick: int, at: int, *, writes: bool) -> None:
        """Record an access."""
        lanes = self.lanes
        lanes.touched = True
        if writes:
            self.write = Touch(tick, at, lanes.sync_count)
            self.read = None
        else:
            self.read = Touch(tick, at, lanes.sync_count)

    def access(self, touch: Touch) -> Access:
        """Return one of the accesses as shadows record it."""
        return make_access((self._agent, touch.tick, 0, touch.at, self._warp, None, None))

    def record(self, start: int) -> None:
        """Record the accesses since the lanes were last synchronised with the lanes; ``start`` is the region's."""
        for touch, writes in ((self.write, True), (self.read, False)):
            if touch is not None and touch.sync_count == self.lanes.sync_count:
                _record(self.lanes, start, self.key, self.mask, touch.at, writes=writes)
