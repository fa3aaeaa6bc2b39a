"""Loads of global memory by a gang of warps (``run.gang``)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.memory.access import READ, Access, Values
from pytest_nvfp4.sim.memory.pattern import pattern_of
from pytest_nvfp4.sim.memory.read import columns, read_global
from pytest_nvfp4.sim.memory.tally import Tally
from pytest_nvfp4.sim.run.gang import Gang, each


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


def _gather(gang: Gang, address: NDArray[Any], access: Access, at: int) -> Values | None:
    """Return what all lanes load; None if the warps must load one by one, also because one of them fails."""
    size = access.size
    rows = address.reshape(-1, 32)
    bases = rows[:, :1]
    relative = rows - bases
    if rows.itemsize != 8 or access.bits == 128 or (relative != relative[0]).any():
        return None
    _, pattern = pattern_of(rows[0], lanes.FULL, size)
    starts = bases[:, 0].view(np.int64) + pattern.low
    low, end = int(starts.min()), int(starts.max()) + pattern.span
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
    if not pattern.aligned or (starts % size).any():
        return None
    first = low & 31
    if np.count_nonzero(starts & 31 != first):
        for warp, start in zip(gang.warps, (starts & 31).tolist(), strict=True):
            warp.cta.unit(Tally)["global.load", pattern, start] += 1
    else:
        for tally, warps in _tallies(gang):
            tally["global.load", pattern, first] += warps
    monitor = gang.cta.launch.machine.monitor
    if monitor is not None:
        gang.part = lanes.FULL
        for warp, start in zip(gang.warps, starts.tolist(), strict=True):
            gang.scheduler.running = warp
            monitor.global_accessed(warp, at, region, start - region.start, pattern, READ)
    items = np.ndarray((region.size // size,), access.item, region.data)
    index = (starts - region.start) // size
    return columns(items[(index[:, None] + pattern.index).reshape(-1)], lanes.FULL, access)
