"""Where the items of a warp's lanes lie, checked; and moving them all at once.

An access of a whole warp is one gather or scatter of items of the access's size: its ``Pattern`` is known from
earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.access import ITEMS, Access, misaligned
from pytest_nvfp4.sim.memory.coverage import note_items, note_write
from pytest_nvfp4.sim.memory.pattern import Pattern, pattern_of
from pytest_nvfp4.sim.memory.shared import SharedMemory
from pytest_nvfp4.sim.memory.tally import Tally

if TYPE_CHECKING:
    from pytest_nvfp4.sim.memory.globals import Region
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = [
    "by_region",
    "check_written",
    "count",
    "gather",
    "locate_global",
    "locate_shared",
    "mark_written",
    "note_store",
    "report_dropped",
    "scatter",
    "shared_byte",
]

_ZEROS = {size: np.zeros(1, item)[0] for size, item in ITEMS.items()}
_ONES = {size: np.frombuffer(b"\1" * size, item)[0] for size, item in ITEMS.items()}


def locate_global(
    w: Warp, mask: int, address: NDArray[Any], access: Access, *, write: bool
) -> tuple[Region, int, Pattern, int] | None:
    """The region that holds all lanes' items, the offset of the lowest, their pattern, the lowest address.

    None if they do not all lie in one region.

    Raises:
        Fault: a read-only region, or an address that is not a multiple of the access's size.
    """
    size = access.size
    base, pattern = pattern_of(address, mask, size)
    low = base + pattern.low
    memory = w.cta.launch.machine.memory
    region = memory.recent
    offset = low - region.start
    if offset < 0 or offset + pattern.span > region.size:
        found = memory.find(low)
        if found is None or low + pattern.span > found.end:
            return None
        region = memory.recent = found
        offset = low - region.start
    if write and not region.writable:
        memory.region(low, size, write=True, what=access.opcode)
    if not pattern.aligned or low % size:
        raise _first_misaligned(access, low, pattern, region.say)
    return region, offset, pattern, low


def by_region(
    w: Warp, mask: int, address: NDArray[Any], access: Access, *, write: bool, drop: bool = False
) -> list[int]:
    """The lanes of each region that an access touches.

    Raises:
        Fault: a lane outside all of them. With ``drop`` that is a finding, and the lane is in no part.
    """
    memory = w.cta.launch.machine.memory
    parts: dict[int, int] = {}
    outside: list[int] = []
    for lane in lanes.lanes(mask):
        where = int(address[lane])
        found = memory.find(where)
        if found is not None and where + access.size <= found.end:
            parts[found.start] = parts.get(found.start, 0) | 1 << lane
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
    """Note a store outside every tensor, whose bytes go nowhere: the kernel goes on, and its result can be judged."""
    w.cta.launch.report(outside.kind, f"{outside.message}; the bytes were dropped", hint=outside.hint)


def locate_shared(mask: int, address: NDArray[Any], shared: SharedMemory, access: Access) -> tuple[int, Pattern]:
    """The index of the lowest of the lanes' items in one CTA's shared memory, and their pattern.

    Raises:
        Fault: out of bounds, misaligned, or bytes of an mbarrier.
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
    opaque = shared.opaque
    if index < opaque.high and index + pattern.span > opaque.low:
        for part in pattern.offsets:
            shared.refuse_opaque(index + int(part), index + int(part) + size, what=access.opcode)
    return index, pattern


def check_written(shared: SharedMemory, index: int, pattern: Pattern, access: Access) -> None:
    """Raises Fault for a byte of the lanes' items that nothing wrote."""
    if not shared.written[index : index + pattern.span].all():
        known = gather(shared.written, index, pattern, access).view(np.uint8).reshape(-1, access.size)
        if not known.all():
            bad = int(np.argmin(known.all(axis=1)))
            byte = index + int(pattern.offsets[bad]) + int(np.argmin(known[bad]))
            raise shared.uninitialised(byte, what=f"{access.opcode}, lane {int(pattern.active[bad])}")


def gather(data: NDArray[Any], offset: int, pattern: Pattern, access: Access) -> NDArray[Any]:
    """The lanes' items, as one array of their bytes that is not a view of memory."""
    if pattern.dense:
        return data[offset : offset + pattern.span].copy()
    items: NDArray[Any] = np.ndarray((pattern.items,), access.item, data, offset)[pattern.index]
    return items


def scatter(data: NDArray[Any], offset: int, pattern: Pattern, rows: NDArray[Any], access: Access) -> None:
    """Write the lanes' items."""
    if pattern.dense:
        # Halves of a wider register come as every second element of it.
        data[offset : offset + pattern.span] = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
    else:
        np.ndarray((pattern.items,), access.item, data, offset)[pattern.index] = rows.view(access.item).reshape(-1)


def mark_written(shared: SharedMemory, index: int, pattern: Pattern, access: Access, *, written: bool = True) -> None:
    """The lanes' items are initialised from now on (or no longer)."""
    if pattern.dense:
        shared.written[index : index + pattern.span] = written
    else:
        known = _ONES[access.size] if written else _ZEROS[access.size]
        np.ndarray((pattern.items,), access.item, shared.written, index)[pattern.index] = known


def note_store(region: Region, offset: int, pattern: Pattern, access: Access, cta: int, at: int) -> None:
    """What a store leaves behind besides the bytes: initialised bytes, and writers of a watched output."""
    if region.initialised is not None:
        np.ndarray((pattern.items,), access.item, region.initialised, offset)[pattern.index] = _ONES[access.size]
    if region.owner is not None:
        if pattern.dense:
            note_write(region, offset, pattern.span, cta, at)
        else:
            note_items(region, offset, pattern.index, pattern.items, access.size, cta, at)


def count(w: Warp, what: str, size: int) -> None:
    """Count an access of one address."""
    tally = w.cta.units.get(Tally) or w.cta.unit(Tally)
    key = (what, size)
    tally[key] = tally.get(key, 0) + 1


def shared_byte(shared: SharedMemory) -> Callable[[int], str]:
    """Says what lies at an address of a CTA's shared memory."""
    return lambda address: f"byte {address - shared.base} of shared memory"


def _first_misaligned(access: Access, low: int, pattern: Pattern, say: Any) -> Fault:
    bad = int(np.argmax((pattern.offsets + low % access.size) % access.size != 0))
    address = low + int(pattern.offsets[bad])
    return misaligned(access, address, int(pattern.active[bad]), say(address))
