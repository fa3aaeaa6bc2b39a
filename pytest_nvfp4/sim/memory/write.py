"""Stores of a warp to any state space, with one address for all lanes or one per lane.

Every store checks bounds, alignment, read-only regions, mbarriers, and lanes that write different values to one address
(PTX ISA, "Memory Consistency Model": the order of such writes is undefined). A store to global memory outside every
tensor is a finding that does not stop the kernel: its bytes are dropped and the result is still checked. ``Tally``
counts requests, sectors and bank conflicts; ``coverage`` records the writers of watched outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import DTYPES, Bits
from pytest_nvfp4.sim.memory.access import WRITE, Access, by_rank, by_space, misaligned
from pytest_nvfp4.sim.memory.coverage import note_write
from pytest_nvfp4.sim.memory.local import LOCAL_WINDOW, LocalMemory
from pytest_nvfp4.sim.memory.locate import (
    by_region,
    count,
    locate_global,
    locate_peer,
    locate_shared,
    mark_written,
    note_store,
    report_dropped,
    scatter,
    shared_byte,
)
from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.memory.rounded import WIDTHS, is_rounding
from pytest_nvfp4.sim.memory.shared import RANK_SHIFT, SHARED_WINDOW, SharedMemory
from pytest_nvfp4.sim.memory.tally import Tally
from pytest_nvfp4.sim.run.following import FollowedValues
from pytest_nvfp4.sim.run.warp import Warp

Elements = tuple[Bits, ...]
"""The elements that each lane writes."""


def write_global(w: Warp, mask: int, address: Bits, values: Elements, access: Access, at: int) -> None:
    """Execute ``st.global``."""
    cta = w.cta
    machine = cta.launch.machine
    machine.changes += 1
    if address.__class__ is not int:
        _write_global_lanes(w, mask, address, values, access, at)  # type: ignore[arg-type]
        return
    size = access.size
    try:
        region = machine.memory.region(address, size, write=True, what=access.opcode)
    except Fault as fault:
        if fault.kind != "out-of-bounds":
            raise
        report_dropped(w, fault)
        return
    offset = address - region.start
    if address % size:
        raise misaligned(access, address, None, region.place(address))
    (cta.units.get(Tally) or cta.unit(Tally))[access.store] += 1
    if machine.monitor is not None:
        machine.monitor.global_accessed(w, at, region, offset, size, WRITE, mask)
    access.pack(region.raw, offset, *_common_values(w, mask, values, access, region.place, address))
    if machine.monitor is not None and machine.monitor.doubts:
        machine.monitor.stored()
    if region.initialised is not None:
        region.initialised[offset : offset + size] = True
    if region.owner is not None:
        note_write(region, offset, size, cta.linear, at)


def write_shared(w: Warp, mask: int, address: Bits, values: Elements, access: Access, at: int) -> None:
    """Execute ``st.shared``, a store to the CTA's own shared memory."""
    cta = w.cta
    machine = cta.launch.machine
    machine.changes += 1
    shared = cta.shared
    if address.__class__ is not int:
        _write_shared_lanes(w, mask, address, values, shared, access, "shared.store", at)  # type: ignore[arg-type]
        return
    size = access.size
    index = address - shared.base
    if index < 0 or index + size > shared.size:
        shared.index(address, size, what=access.opcode)
    if index % size:
        raise misaligned(access, address, None, f"byte {index} of shared memory")
    opaque = shared.opaque
    if index < opaque.high and index + size > opaque.low:
        shared.refuse_opaque(index, index + size, what=access.opcode)
    (cta.units.get(Tally) or cta.unit(Tally))[access.stores] += 1
    if machine.monitor is not None:
        machine.monitor.shared_accessed(w, at, shared, index, size, WRITE, mask)
    access.pack(shared.raw, index, *_common_values(w, mask, values, access, shared_byte(shared), address))
    if machine.monitor is not None and machine.monitor.doubts:
        machine.monitor.stored()
    access.pack(shared.written_raw, index, *access.known)
    if (followed := w.units.get(FollowedValues)) is not None:
        passed, why = followed.stored(at, mask)
        if why is not None:
            width = size // len(values)
            for element, of in passed.items():
                if of >> mask.bit_length() - 1:  # the value of the highest lane remains
                    shared.undefine(np.arange(width) + (index + element * width), why)


def write_cluster(w: Warp, mask: int, address: Bits, values: Elements, access: Access, at: int) -> None:
    """Execute ``st.shared::cluster``, a store to any CTA's shared memory."""
    rank = w.cta.rank
    if address.__class__ is int:
        if address >> RANK_SHIFT == rank:
            write_shared(w, mask, address, values, access, at)
            return
        machine = w.cta.launch.machine
        machine.changes += 1
        shared, index = locate_peer(w, address, access)
        count(w, ("cluster.store", access.size))
        if machine.monitor is not None:
            machine.monitor.shared_accessed(w, at, shared, index, access.size, WRITE, mask)
        access.pack(shared.raw, index, *_common_values(w, mask, values, access, shared_byte(shared), address))
        if machine.monitor is not None and machine.monitor.doubts:
            machine.monitor.stored()
        access.pack(shared.written_raw, index, *access.known)
        return
    w.cta.launch.machine.changes += 1
    for owner, part in by_rank(address, mask):  # type: ignore[arg-type]
        shared = w.cta.shared if owner == rank else w.cta.peer(owner, what=access.opcode).shared
        counter = "shared.store" if owner == rank else "cluster.store"
        _write_shared_lanes(w, part, address, values, shared, access, counter, at)  # type: ignore[arg-type]


def write_local(w: Warp, mask: int, address: Bits, values: Elements, access: Access, at: int) -> None:
    """Execute ``st.local``, a store to each thread's own bytes."""
    rows = np.ascontiguousarray(lane_rows(mask, values, access)).view(np.uint8).reshape(-1, access.size)
    local = w.unit(LocalMemory)
    local.write_lanes(mask, address, rows, what=access.opcode)
    if (followed := w.units.get(FollowedValues)) is not None:
        passed, why = followed.stored(at, mask)
        if why is not None:
            width = access.size // len(values)
            for element, of in passed.items():
                part = slice(element * width, (element + 1) * width)
                local.undefine(of, address, access.size, part, why)
    count(w, ("local.store", access.size))


def write_generic(w: Warp, mask: int, address: Bits, values: Elements, access: Access, at: int) -> None:
    """Execute ``st`` to a generic address: each lane writes the state space of its address's window."""
    if address.__class__ is int:
        if address < LOCAL_WINDOW:
            write_global(w, mask, address, values, access, at)
        elif address >= SHARED_WINDOW:
            write_cluster(w, mask, address & 0xFFFF_FFFF, values, access, at)
        else:
            write_local(w, mask, address, values, access, at)
        return
    for writer, part, where in by_space(address, mask, WRITERS):  # type: ignore[arg-type]
        writer(w, part, where, values, access, at)


def _write_global_lanes(w: Warp, mask: int, address: NDArray[Any], values: Elements, access: Access, at: int) -> None:
    located = locate_global(w, mask, address, access, write=True)
    if located is None:
        for part in by_region(w, mask, address, access, write=True, drop=True):
            _write_global_lanes(w, part, address, values, access, at)
        return
    region, offset, pattern, low = located
    cta = w.cta
    (cta.units.get(Tally) or cta.unit(Tally))["global.store", pattern, low & 31] += 1
    monitor = cta.launch.machine.monitor
    if monitor is not None:
        monitor.global_accessed(w, at, region, offset, pattern, WRITE)
    rows = lane_rows(mask, values, access)
    scatter(region.data, offset, pattern, rows, access)
    if monitor is not None and monitor.doubts:
        monitor.stored()
    if pattern.distinct != pattern.index.size:
        _check_lanes(w, region.data, offset, pattern, rows, access, region.place, low)
    note_store(region, offset, pattern, access, cta.linear, at)


def _write_shared_lanes(
    w: Warp,
    mask: int,
    address: NDArray[Any],
    values: Elements,
    shared: SharedMemory,
    access: Access,
    counter: str,
    at: int,
) -> None:
    index, pattern = locate_shared(mask, address, shared, access)
    cta = w.cta
    (cta.units.get(Tally) or cta.unit(Tally))[counter, pattern, index & 127] += 1
    monitor = cta.launch.machine.monitor
    if monitor is not None:
        monitor.shared_accessed(w, at, shared, index, pattern, WRITE)
    rows = lane_rows(mask, values, access)
    scatter(shared.data, index, pattern, rows, access)
    if monitor is not None and monitor.doubts:
        monitor.stored()
    mark_written(shared.written, index, pattern, access)
    if (followed := w.units.get(FollowedValues)) is not None:
        passed, why = followed.stored(at, mask)
        if why is not None:
            width = access.size // len(values)
            for element, of in passed.items():
                starts = pattern.offsets[lanes.bools(of)[pattern.active]] + (index + element * width)
                shared.undefine((starts[:, None] + np.arange(width)).ravel(), why)
    if pattern.distinct != pattern.index.size:
        _check_lanes(w, shared.data, index, pattern, rows, access, shared_byte(shared), index + shared.base)


def lane_rows(mask: int, values: Elements, access: Access) -> NDArray[Any]:
    """Return the elements that each active lane writes, one row per lane."""
    if access.bits == 128:
        whole = values[0]
        words = [
            part
            for lane in lanes.lanes(mask)
            for value in (whole if whole.__class__ is int else whole[lane],)  # type: ignore[index]
            for part in (value & 0xFFFF_FFFF_FFFF_FFFF, value >> 64)
        ]
        return np.array(words, np.uint64).reshape(-1, 2)
    dtype = DTYPES[access.bits]
    rows: NDArray[Any]
    if len(values) == 1:
        rows = np.full(32, values[0], dtype) if values[0].__class__ is int else values[0]  # type: ignore[assignment]
    else:
        rows = np.empty((32, len(values)), dtype)
        for column, value in enumerate(values):
            rows[:, column] = value
    return rows if mask == lanes.FULL else rows[lanes.bools(mask)]


def _common_values(
    w: Warp, mask: int, values: Elements, access: Access, place: Callable[[int], str], address: int
) -> tuple[int, ...] | list[int]:
    """Return the elements that all lanes write to one address; lanes that differ are a finding, the highest wins."""
    for value in values:
        if value.__class__ is not int:
            break
    else:
        if access.bits == 128:
            return values[0] & 0xFFFF_FFFF_FFFF_FFFF, values[0] >> 64  # type: ignore[return-value]
        return values  # type: ignore[return-value]
    rows = lane_rows(mask, values, access).reshape(-1, access.elements)
    if (rows != rows[-1]).any():
        loser = int(np.argmax((rows != rows[-1]).any(axis=1)))
        _report_lanes(w, access, lanes.lanes(mask), rows, loser, len(rows) - 1, place(address))
    return rows[-1].tolist()  # type: ignore[no-any-return]


def _check_lanes(
    w: Warp,
    data: NDArray[Any],
    offset: int,
    pattern: Pattern,
    rows: NDArray[Any],
    access: Access,
    place: Callable[[int], str],
    low: int,
) -> None:
    """Report a lane whose value another lane of the same store has overwritten."""
    present = np.ndarray((pattern.items,), access.item, data, offset)[pattern.index]
    written = np.ascontiguousarray(rows).view(np.uint8).reshape(-1, access.size)
    lost = (present.view(np.uint8).reshape(-1, access.size) != written).any(axis=1)
    if lost.any():
        loser = int(np.argmax(lost))
        winner = int(np.flatnonzero(pattern.index == pattern.index[loser])[-1])
        address = low + int(pattern.offsets[loser])
        _report_lanes(w, access, pattern.active, rows.reshape(-1, access.elements), loser, winner, place(address))


def _report_lanes(w: Warp, access: Access, active: Any, rows: NDArray[Any], loser: int, winner: int, to: str) -> None:
    launch = w.cta.launch
    who = f"{access.opcode}: lanes {active[loser]} and {active[winner]} of one warp write"
    store = launch.instruction if access.bits in WIDTHS else None
    words = np.ascontiguousarray(rows).view(np.uint32) if store is not None else rows
    two = words[[loser, winner]]
    if store is not None and is_rounding(store, launch.program.sums, two, words):
        differing = int(np.argmax(two[0] != two[1]))
        first, second = (f"{value:.9g}" for value in two[:, differing].view(np.float32))
        launch.report(
            "lanes-rounding",
            f"{who} sums that differ by rounding ({first} and {second}) to {to}; which of them remains is undefined, "
            "so that runs may differ in the last bits",
            hint="a reduction across lanes gives each the same sum if no addition is fused with a multiplication: in "
            "Triton, enable_fp_fusion=False",
        )
        return
    values = [" ".join(f"{int(value):#x}" for value in rows[row]) for row in (loser, winner)]
    launch.report(
        "lanes-race",
        f"{who} different values ({values[0]} and {values[1]}) to {to}; which of them remains is undefined",
        hint="guard the store with one lane, or give every lane its own address",
    )


WRITERS = {
    "global": write_global,
    "shared": write_shared,
    "cluster": write_cluster,
    "local": write_local,
    "generic": write_generic,
}
