"""Loads of global memory by a gang of warps (``run.gang``)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.memory.access import READ, Access, Values
from pytest_nvfp4.sim.memory.pattern import Pattern, pattern_of
from pytest_nvfp4.sim.memory.read import columns, read_global
from pytest_nvfp4.sim.memory.tally import Tally
from pytest_nvfp4.sim.run.gang import Gang, each

_SECTOR = 32
_ALL = (1 << 64) - 1


def read_global_together(gang: Gang, mask: int, address: Any, access: Access, at: int) -> Any:
    """Execute ``ld.global`` of all warps, with one gather if their lanes' addresses form the same pattern."""
    if mask == gang.full:
        one = isinstance(address, int)
        found = _read_one(gang, address, access, at) if one else _gather(gang, address, access, at)
        if found is not None:
            return found
    return each(gang, mask, read_global, access.register, address, access, at)


def _read_one(gang: Gang, address: int, access: Access, at: int) -> Values:
    """Load from one address for all warps."""
    monitor = gang.cta.launch.machine.monitor
    gang.scheduler.running = gang.first
    gang.part = lanes.FULL
    values = read_global(gang.first, lanes.FULL, address, access, at)
    _tallies(gang)[0][0][access.load] -= 1
    for tally, warps in _tallies(gang):
        tally[access.load] += warps
    if monitor is not None:
        region = gang.cta.launch.machine.memory.recent_read
        for warp in gang.warps[1:]:
            gang.scheduler.running = warp
            monitor.global_accessed(warp, at, region, address - region.start, access.size, READ, lanes.FULL)
    return values


def _tallies(gang: Gang) -> list[tuple[Tally, int]]:
    """Return the tally of each CTA, the first warp's first, and the number of its warps in the gang."""
    known: list[tuple[Tally, int]] | None = gang.units.get(Tally)
    if known is None:
        known = gang.units[Tally] = list(Counter(warp.cta.unit(Tally) for warp in gang.warps).items())
    return known


@dataclass(frozen=True, slots=True, eq=False)
class _Gather:
    """A load whose warps' lanes form one pattern. In a loop it is often the same one, some bytes further on.

    Attributes:
        address: Address of each lane.
        index: Place of its item, in items from ``low`` rounded down to 32 bytes.
        starts: Address of each warp's pattern, the lowest of which is ``low``; they end before ``end``.
        pattern: The pattern.
        sectors: Whether all warps begin at the same byte of a sector.
    """

    address: NDArray[np.uint64]
    index: NDArray[np.int64]
    starts: list[int]
    low: int
    end: int
    pattern: Pattern
    sectors: bool

    def distance(self, address: NDArray[Any]) -> int | None:
        """Return how many bytes further on other addresses are, if all are as far and in the same part of a sector."""
        far = int(address[0]) - int(self.address[0])
        if far % _SECTOR or address.size != self.address.size:
            return None
        return None if np.count_nonzero(address - self.address != np.uint64(far & _ALL)) else far


class _Gathers(dict[int, _Gather]):
    """The last such load of each instruction: ``gang.units``."""


def _gather(gang: Gang, address: NDArray[Any], access: Access, at: int) -> Values | None:
    """Return what all lanes load; None if the warps must load one by one, also because one of them fails."""
    size = access.size
    known: dict[int, _Gather] = gang.units.setdefault(_Gathers, _Gathers())
    load, far = known.get(at), None
    if load is not None:
        far = load.distance(address)
    if load is None or far is None:
        if (load := _found(address, access)) is None:
            return None
        known[at], far = load, 0
    low, end = load.low + far, load.end + far
    memory = gang.cta.launch.machine.memory
    region = memory.recent_read
    if low < region.start or end > region.end:
        other = memory.find(low) if low >= 0 else None
        if other is None or end > other.end:
            return None
        region = other
        memory.enter(region, write=False)
    if region.initialised is not None or (access.read_only and region.owner is not None) or region.start % size:
        return None
    if load.sectors:
        first = low & _SECTOR - 1
        for tally, warps in _tallies(gang):
            tally["global.load", load.pattern, first] += warps
    else:
        for warp, start in zip(gang.warps, load.starts, strict=True):
            warp.cta.unit(Tally)["global.load", load.pattern, start & _SECTOR - 1] += 1
    monitor = gang.cta.launch.machine.monitor
    if monitor is not None:
        gang.part = lanes.FULL
        for warp, start in zip(gang.warps, load.starts, strict=True):
            gang.scheduler.running = warp
            monitor.global_accessed(warp, at, region, start + far - region.start, load.pattern, READ)
    items = np.ndarray((region.size // size,), access.item, region.data)
    begin = (load.low & -_SECTOR) + far - region.start
    return columns(items[load.index + begin // size], lanes.FULL, access)


def _found(address: NDArray[Any], access: Access) -> _Gather | None:
    """Return the load of all warps, if it is one."""
    size = access.size
    rows = address.reshape(-1, 32)
    bases = rows[:, :1]
    relative = rows - bases
    if rows.itemsize != 8 or access.bits == 128 or (relative != relative[0]).any():
        return None
    _, pattern = pattern_of(rows[0], lanes.FULL, size)
    starts = bases[:, 0].view(np.int64) + pattern.low
    if not pattern.aligned or (starts % size).any():
        return None
    low = int(starts.min())
    index = ((starts - (low & -_SECTOR)) // size)[:, None] + pattern.index
    sectors = not np.count_nonzero(starts & _SECTOR - 1 != low & _SECTOR - 1)
    end = int(starts.max()) + pattern.span
    return _Gather(address, index.reshape(-1), starts.tolist(), low, end, pattern, sectors)
