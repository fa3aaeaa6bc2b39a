"""Runs of stores to global memory: what several instructions write behind one address, as one scatter.

A compiler splits an epilogue that is not vectorised into many stores at constant offsets. Where a run of them has no
effect but its bytes and its counters, ``write_run`` makes it; else the stores are executed one by one.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.lanes import DTYPES, Bits
from pytest_nvfp4.sim.memory.access import Access
from pytest_nvfp4.sim.memory.coverage import note_items, unclaimed
from pytest_nvfp4.sim.memory.locate import ONES
from pytest_nvfp4.sim.memory.pattern import Pattern, pattern_of
from pytest_nvfp4.sim.memory.tally import Tally
from pytest_nvfp4.sim.run.warp import Warp


class _Places(NamedTuple):
    """Where a run writes, relative to the first lane's address of the run's base.

    Attributes:
        low, span: The lowest byte, and the bytes from it to the end of the highest item.
        item: Item of each store and lane, from the lowest one on; store by store.
        items: ``span`` in items.
    """

    low: int
    span: int
    item: NDArray[np.int64]
    items: int


def write_run(
    w: Warp, mask: int, address: Bits, offsets: tuple[int, ...], values: tuple[Bits, ...], access: Access, at: int
) -> bool:
    """Execute a run of ``st.global`` in a warp, or return False, with nothing done, if each store must be checked.

    That is so with a monitor or a count by instruction, for an element that the launch wrote before, for lanes or
    stores with one address, and for what raises a fault.

    Args:
        w, mask, address, access, at: See ``write_global``; of the first store.
        offsets: Bytes from the address to what each store writes.
        values: The elements of each store, one store behind the other.
    """
    cta = w.cta
    machine = cta.launch.machine
    if address.__class__ is int or machine.monitor is not None or cta.launch.detail is not None:
        return False
    base, pattern = pattern_of(address, mask, access.size)  # type: ignore[arg-type]
    places = _places(pattern, offsets)
    if places is None:
        return False
    low = base + places.low
    memory = machine.memory
    region = memory.recent_written
    if low < region.start or low + places.span > region.end:
        other = memory.find(low)
        if other is None or low + places.span > other.end:
            return False
        region = other
    start = low - region.start
    if low % access.size or not region.writable:
        return False
    if region.owner is not None and not unclaimed(region, start, places.item, places.items, access.size):
        return False
    if region is not memory.recent_written:
        memory.enter(region, write=True)
    machine.changes += len(offsets)
    tally = cta.units.get(Tally) or cta.unit(Tally)
    for residue, times in _residues(offsets, base + pattern.low & 31):
        tally["global.store", pattern, residue] += times
    rows = _rows(mask, values, access).view(access.item).reshape(-1)
    np.ndarray((places.items,), access.item, region.data, start)[places.item] = rows
    if region.initialised is not None:
        np.ndarray((places.items,), access.item, region.initialised, start)[places.item] = ONES[access.size]
    if region.owner is not None:
        note_items(region, start, places.item, places.items, access.size, cta.linear, at)
    return True


@lru_cache(maxsize=64)
def _places(pattern: Pattern, offsets: tuple[int, ...]) -> _Places | None:
    """Return where a run writes; None if items are not aligned to each other, or two of them have one address."""
    size = pattern.size
    lowest = min(offsets)
    starts = (np.array(offsets)[:, None] - lowest + pattern.offsets).ravel()
    if (starts % size).any() or len(np.unique(starts)) != starts.size:
        return None
    span = int(starts.max()) + size
    return _Places(lowest + pattern.low, span, starts // size, span // size)


@lru_cache(maxsize=256)
def _residues(offsets: tuple[int, ...], low: int) -> tuple[tuple[int, int], ...]:
    """Return the lowest addresses of the stores, modulo 32, with their number."""
    return tuple(Counter(low + offset & 31 for offset in offsets).items())


def _rows(mask: int, values: tuple[Bits, ...], access: Access) -> NDArray[Any]:
    """Return the elements that each active lane writes in each store, one row for both."""
    columns = [np.full(32, value, DTYPES[access.bits]) if value.__class__ is int else value for value in values]
    joined = np.concatenate(columns).reshape(-1, access.elements, 32)
    if mask != lanes.FULL:
        joined = joined[:, :, lanes.bools(mask)]
    return np.ascontiguousarray(joined.transpose(0, 2, 1))
