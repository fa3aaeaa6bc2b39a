"""Address checks of a warp's access, and the gather or scatter that moves its bytes.

An access of a warp is one gather or scatter of items of the access's size; its ``Pattern`` is cached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.access import ITEMS, Access, by_rank, by_value, misaligned
from pytest_nvfp4.sim.memory.coverage import note_items, note_write
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.memory.pattern import Pattern, pattern_of
from pytest_nvfp4.sim.memory.shared import RANK_SHIFT, SharedMemory
from pytest_nvfp4.sim.memory.tally import Key, Tally
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync import mbarrier

_ZEROS = {size: np.zeros(1, item)[0] for size, item in ITEMS.items()}
ONES = {size: np.frombuffer(b"\1" * size, item)[0] for size, item in ITEMS.items()}
"""An item of true bytes, by its size."""


def locate_global(
    w: Warp, mask: int, address: NDArray[Any], access: Access, *, write: bool
) -> tuple[Region, int, Pattern, int] | None:
    """Return the region of all lanes' items, the lowest item's offset, the pattern, and the lowest address.

    None if the items are not all in one region. The result is a plain tuple: this runs once for every warp access.

    Raises:
        Fault: a read-only region, or an address that is not a multiple of the access's size.
    """
    size = access.size
    base, pattern = pattern_of(address, mask, size)
    low = base + pattern.low
    memory = w.cta.launch.machine.memory
    region = memory.recent_written if write else memory.recent_read
    offset = low - region.start
    if offset < 0 or offset + pattern.span > region.size:
        other = memory.find(low)
        if other is None or low + pattern.span > other.end:
            return None
        region = other
        memory.enter(region, write=write)
        offset = low - region.start
    if write and not region.writable:
        memory.region(low, size, write=True, what=access.opcode)
    if not pattern.aligned or low % size:
        raise _first_misaligned(access, low, pattern, region.place)
    return region, offset, pattern, low


def by_region(
    w: Warp, mask: int, address: NDArray[Any], access: Access, *, write: bool, drop: bool = False
) -> list[int]:
    """Return the lane masks of the regions that an access touches.

    Raises:
        Fault: a lane is outside every region. With ``drop`` that is a finding, and the lane is in no mask.
    """
    memory = w.cta.launch.machine.memory
    parts: dict[int, int] = {}
    outside: list[int] = []
    for lane in lanes.lanes(mask):
        where = int(address[lane])
        region = memory.find(where)
        if region is not None and where + access.size <= region.end:
            parts[region.start] = parts.get(region.start, 0) | 1 << lane
        elif drop:
            outside.append(lane)
        else:
            raise memory.outside(where, access.size, write=write, what=f"{access.opcode}, lane {lane}")
    if outside:
        first = outside[0]
        named = f"lane {first}" if len(outside) == 1 else f"{len(outside)} lanes, the first of them lane {first}"
        report_dropped(
            w, memory.outside(int(address[first]), access.size, write=True, what=f"{access.opcode}, {named}")
        )
    return list(parts.values())


def report_dropped(w: Warp, outside: Fault) -> None:
    """Report a store outside every tensor. Its bytes are dropped and the kernel continues, so its result is checked."""
    w.cta.launch.report(outside.kind, f"{outside.message}; the bytes were dropped", hint=outside.hint)


def locate_shared(mask: int, address: NDArray[Any], shared: SharedMemory, access: Access) -> tuple[int, Pattern]:
    """Return the index of the lowest of the lanes' items in one CTA's shared memory, and their pattern.

    Raises:
        Fault: out of bounds, misaligned, or overlapping an mbarrier.
    """
    size = access.size
    base, pattern = pattern_of(address, mask, size)
    low = base + pattern.low
    index = low - shared.base
    if index < 0 or index + pattern.span > shared.size:
        for lane, offset in zip(pattern.active, pattern.offsets, strict=True):
            shared.index(low + int(offset), size, what=f"{access.opcode}, lane {int(lane)}")
    if not pattern.aligned or low % size:
        raise _first_misaligned(access, low, pattern, shared_byte(shared))
    refuse_opaque(shared, index, pattern, access)
    return index, pattern


def refuse_opaque(shared: SharedMemory, index: int, pattern: Pattern, access: Access) -> None:
    """Raise Fault if one of the lanes' items overlaps an mbarrier or another opaque object."""
    opaque = shared.opaque
    if index < opaque.high and index + pattern.span > opaque.low:
        for part in pattern.offsets.tolist():
            shared.refuse_opaque(index + part, index + part + access.size, what=access.opcode)


def locate_peer(w: Warp, address: int, access: Access) -> tuple[SharedMemory, int]:
    """Return another CTA's shared memory and the checked index there of one address for all lanes. Raises Fault."""
    shared = w.cta.owner_of(address, what=access.opcode).shared
    index = shared.index(address, access.size, what=access.opcode)
    if index % access.size:
        raise misaligned(access, address, None, f"byte {index} of CTA {shared.rank}'s shared memory")
    shared.refuse_opaque(index, index + access.size, what=access.opcode)
    return shared, index


class AsyncTarget(NamedTuple):
    """Destination of lanes of ``st.async`` or ``red.async`` in one CTA, and the mbarrier that they signal."""

    shared: SharedMemory
    start: int
    where: Pattern
    barrier: mbarrier.Mbarrier


def locate_async(
    w: Warp, mask: int, address: lanes.Bits, barrier: lanes.Bits, access: Access, at: int, *, written: bool = False
) -> list[AsyncTarget]:
    """Return the checked targets of ``st.async`` or ``red.async``, and report them to the monitor.

    Args:
        written: Whether the bytes must have been written before, as a reduction requires.

    Raises:
        Fault: out of bounds, misaligned, overlapping an mbarrier, or data and mbarrier in different CTAs.
    """
    addresses = lanes.spread(address, 64)
    monitor = w.cta.launch.machine.monitor
    targets = []
    for rank, part in by_rank(addresses, mask):
        shared = w.cta.peer(rank, what=access.opcode).shared
        for signal, chosen in by_value(barrier, part):
            start, where = locate_shared(chosen, addresses, shared, access)
            if written:
                check_written(shared, start, where, access)
            # PTX ISA, "st.async", "red.async": the data and the mbarrier are in the shared memory of the same CTA.
            if signal >> RANK_SHIFT != rank:
                raise Fault(
                    "mbarrier",
                    f"{access.opcode}: the data are in CTA rank {rank}, the mbarrier is in rank {signal >> RANK_SHIFT}",
                    hint="the data and the mbarrier of one instruction must be in the shared memory of one CTA",
                )
            resolved = mbarrier.resolve(w, signal, cluster=True, what=access.opcode)
            if monitor is not None:
                monitor.stored_async(w, at, shared, start, where, resolved)
            targets.append(AsyncTarget(shared, start, where, resolved))
    return targets


class Unwritten(NamedTuple):
    """Lanes whose items have bytes that were never written, the first of them, and the index of its first such byte."""

    mask: int
    lane: int
    byte: int


def unwritten(written: NDArray[np.bool_], index: int, pattern: Pattern, access: Access) -> Unwritten | None:
    """Return what of the lanes' items was never written; None if all of it was. ``written`` is of each byte."""
    if written[index : index + pattern.span].all():
        return None
    known = gather(written, index, pattern, access).view(np.uint8).reshape(-1, access.size)
    missing = np.flatnonzero(~known.all(axis=1))
    if not missing.size:
        return None
    active, first = np.asarray(pattern.active), int(missing[0])
    byte = index + int(pattern.offsets[first]) + int(np.argmin(known[first]))
    mask = int(np.left_shift(1, active[missing], dtype=np.int64).sum())
    return Unwritten(mask, int(active[first]), byte)


def check_written(shared: SharedMemory, index: int, pattern: Pattern, access: Access) -> None:
    """Raise Fault for a byte of the lanes' items that was never written."""
    if (missing := unwritten(shared.written, index, pattern, access)) is not None:
        raise shared.uninitialised(missing.byte, what=f"{access.opcode}, lane {missing.lane}")


def gather(data: NDArray[Any], offset: int, pattern: Pattern, access: Access) -> NDArray[Any]:
    """Return the lanes' items as an array that is not a view of memory."""
    if pattern.dense:
        return data[offset : offset + pattern.span].copy()
    items: NDArray[Any] = np.ndarray((pattern.items,), access.item, data, offset)[pattern.index]
    return items


def scatter(data: NDArray[Any], offset: int, pattern: Pattern, rows: NDArray[Any], access: Access) -> None:
    """Write the lanes' items."""
    if pattern.dense:
        # Rows may be strided: a 16-bit half of a wider register is every second element of that register's array.
        data[offset : offset + pattern.span] = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
    else:
        np.ndarray((pattern.items,), access.item, data, offset)[pattern.index] = rows.view(access.item).reshape(-1)


def mark_written(
    written: NDArray[np.bool_], index: int, pattern: Pattern, access: Access, *, value: bool = True
) -> None:  # fmt: skip
    """Mark the lanes' items as written, or as not written."""
    if pattern.dense:
        written[index : index + pattern.span] = value
    else:
        known = ONES[access.size] if value else _ZEROS[access.size]
        np.ndarray((pattern.items,), access.item, written, index)[pattern.index] = known


def note_store(region: Region, offset: int, pattern: Pattern, access: Access, cta: int, at: int) -> None:
    """Record the initialised bytes and the watched writers of a store."""
    if region.initialised is not None:
        mark_written(region.initialised, offset, pattern, access)
    if region.owner is not None:
        if pattern.dense:
            note_write(region, offset, pattern.span, cta, at)
        else:
            note_items(region, offset, pattern.index, pattern.items, access.size, cta, at)


def count(w: Warp, key: Key) -> None:
    """Count one access; the innermost loops of ``read`` and ``write`` do this in line."""
    (w.cta.units.get(Tally) or w.cta.unit(Tally))[key] += 1


def shared_byte(shared: SharedMemory) -> Callable[[int], str]:
    """Return a function that describes an address of a CTA's shared memory."""
    return lambda address: f"byte {address - shared.base} of shared memory"


def _first_misaligned(access: Access, low: int, pattern: Pattern, place: Callable[[int], str]) -> Fault:
    bad = int(np.argmax((pattern.offsets + low % access.size) % access.size != 0))
    address = low + int(pattern.offsets[bad])
    return misaligned(access, address, int(pattern.active[bad]), place(address))
