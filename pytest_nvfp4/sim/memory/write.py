"""How a warp writes memory: one address for all lanes, or one a lane, in any state space.

Checked always: bounds by tensor, alignment, read-only regions, bytes of mbarriers, and lanes of one store that meet
with different values (PTX ISA, "Memory Consistency Model": which stays is not defined). A store to global memory
outside every tensor is a finding that does not stop the kernel: its bytes go nowhere, all else goes on, so that the
result can be judged too. Counted: requests, sectors, bank conflicts (``tally``); noted: the writers of watched outputs
(``coverage``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.access import Access, by_rank, by_space, misaligned
from pytest_nvfp4.sim.memory.coverage import note_write
from pytest_nvfp4.sim.memory.local import LOCAL_WINDOW, LocalMemory
from pytest_nvfp4.sim.memory.locate import (
    by_region,
    count,
    locate_global,
    locate_shared,
    mark_written,
    note_store,
    report_dropped,
    scatter,
    shared_byte,
)
from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.memory.shared import RANK_SHIFT, SHARED_WINDOW, SharedMemory
from pytest_nvfp4.sim.memory.tally import Tally
from pytest_nvfp4.sim.monitor import WRITE

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["WRITERS", "write"]

_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def write(w: Warp, mask: int, address: lanes.Bits, values: tuple[lanes.Bits, ...], access: Access, at: int) -> None:
    """Store the elements ``values`` of each lane. Raises Fault."""
    WRITERS[access.space](w, mask, address, values, access, at)


def write_global(
    w: Warp, mask: int, address: lanes.Bits, values: tuple[lanes.Bits, ...], access: Access, at: int
) -> None:
    """``st.global``."""
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
        raise misaligned(access, address, None, region.say(address))
    tally = cta.units.get(Tally) or cta.unit(Tally)
    key = access.store
    tally[key] = tally.get(key, 0) + 1
    if machine.monitor is not None:
        machine.monitor.global_accessed(w, at, region, offset, size, WRITE, mask)
    access.pack(region.raw, offset, *_one(w, mask, values, access, region.say, address))
    if machine.monitor is not None and machine.monitor.doubts:
        machine.monitor.global_written()
    if region.initialised is not None:
        region.initialised[offset : offset + size] = True
    if region.owner is not None:
        note_write(region, offset, size, cta.linear, at)


def write_shared(
    w: Warp, mask: int, address: lanes.Bits, values: tuple[lanes.Bits, ...], access: Access, at: int
) -> None:
    """``st.shared``: the CTA's own shared memory."""
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
    tally = cta.units.get(Tally) or cta.unit(Tally)
    key = access.stores
    tally[key] = tally.get(key, 0) + 1
    if machine.monitor is not None:
        machine.monitor.shared_accessed(w, at, shared, index, size, WRITE, mask)
    access.pack(shared.raw, index, *_one(w, mask, values, access, shared_byte(shared), address))
    access.pack(shared.written_raw, index, *access.known)


def write_cluster(
    w: Warp, mask: int, address: lanes.Bits, values: tuple[lanes.Bits, ...], access: Access, at: int
) -> None:
    """``st.shared::cluster``: any CTA's shared memory."""
    rank = w.cta.rank
    if address.__class__ is int:
        if address >> RANK_SHIFT == rank:
            write_shared(w, mask, address, values, access, at)
            return
        machine = w.cta.launch.machine
        machine.changes += 1
        shared = w.cta.owner_of(address, what=access.opcode).shared
        index = shared.index(address, access.size, what=access.opcode)
        if index % access.size:
            raise misaligned(access, address, None, f"byte {index} of CTA {shared.rank}'s shared memory")
        shared.refuse_opaque(index, index + access.size, what=access.opcode)
        count(w, "cluster.store", access.size)
        if machine.monitor is not None:
            machine.monitor.shared_accessed(w, at, shared, index, access.size, WRITE, mask)
        access.pack(shared.raw, index, *_one(w, mask, values, access, shared_byte(shared), address))
        access.pack(shared.written_raw, index, *access.known)
        return
    w.cta.launch.machine.changes += 1
    for owner, part in by_rank(address, mask):  # type: ignore[arg-type]
        shared = w.cta.shared if owner == rank else w.cta.peer(owner, what=access.opcode).shared
        what = "shared.store" if owner == rank else "cluster.store"
        _write_shared_lanes(w, part, address, values, shared, access, what, at)  # type: ignore[arg-type]


def write_local(
    w: Warp, mask: int, address: lanes.Bits, values: tuple[lanes.Bits, ...], access: Access, at: int
) -> None:
    """``st.local``: each thread's own bytes."""
    rows = np.ascontiguousarray(_rows(mask, values, access)).view(np.uint8).reshape(-1, access.size)
    w.unit(LocalMemory).write_lanes(mask, address, rows, what=access.opcode)
    count(w, "local.store", access.size)


def write_generic(
    w: Warp, mask: int, address: lanes.Bits, values: tuple[lanes.Bits, ...], access: Access, at: int
) -> None:
    """``st`` to a generic address: by window, lane by lane."""
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


def _write_global_lanes(
    w: Warp, mask: int, address: NDArray[Any], values: tuple[lanes.Bits, ...], access: Access, at: int
) -> None:
    located = locate_global(w, mask, address, access, write=True)
    if located is None:
        for part in by_region(w, mask, address, access, write=True, drop=True):
            _write_global_lanes(w, part, address, values, access, at)
        return
    region, offset, pattern, low = located
    cta = w.cta
    tally = cta.units.get(Tally) or cta.unit(Tally)
    key = ("global.store", pattern, low & 31)
    tally[key] = tally.get(key, 0) + 1
    monitor = cta.launch.machine.monitor
    if monitor is not None:
        monitor.global_accessed(w, at, region, offset, pattern, WRITE)
    rows = _rows(mask, values, access)
    scatter(region.data, offset, pattern, rows, access)
    if monitor is not None and monitor.doubts:
        monitor.global_written()
    if pattern.distinct != pattern.index.size:
        _check_lanes(w, region.data, offset, pattern, rows, access, region.say, low)
    note_store(region, offset, pattern, access, cta.linear, at)


def _write_shared_lanes(
    w: Warp,
    mask: int,
    address: NDArray[Any],
    values: tuple[lanes.Bits, ...],
    shared: SharedMemory,
    access: Access,
    what: str,
    at: int,
) -> None:
    index, pattern = locate_shared(mask, address, shared, access)
    cta = w.cta
    tally = cta.units.get(Tally) or cta.unit(Tally)
    key = (what, pattern, index & 127)
    tally[key] = tally.get(key, 0) + 1
    monitor = cta.launch.machine.monitor
    if monitor is not None:
        monitor.shared_accessed(w, at, shared, index, pattern, WRITE)
    rows = _rows(mask, values, access)
    scatter(shared.data, index, pattern, rows, access)
    mark_written(shared, index, pattern, access)
    if pattern.distinct != pattern.index.size:
        _check_lanes(w, shared.data, index, pattern, rows, access, shared_byte(shared), index + shared.base)


def _rows(mask: int, values: tuple[lanes.Bits, ...], access: Access) -> NDArray[Any]:
    """What each active lane writes: one row of elements a lane."""
    if access.bits == 128:
        whole = values[0]
        words = [
            part
            for lane in lanes.lanes(mask)
            for value in (whole if whole.__class__ is int else whole[lane],)  # type: ignore[index]
            for part in (value & 0xFFFF_FFFF_FFFF_FFFF, value >> 64)
        ]
        return np.array(words, np.uint64).reshape(-1, 2)
    dtype = _UNSIGNED[access.bits]
    if len(values) == 1:
        value = values[0]
        column = np.full(32, value, dtype) if value.__class__ is int else value
        return column if mask == lanes.FULL else column[lanes.bools(mask)]  # type: ignore[index,return-value]
    rows = np.empty((32, len(values)), dtype)
    for column, value in enumerate(values):
        rows[:, column] = value
    return rows if mask == lanes.FULL else rows[lanes.bools(mask)]


def _one(
    w: Warp, mask: int, values: tuple[lanes.Bits, ...], access: Access, say: Any, address: int
) -> tuple[int, ...] | list[int]:
    """What all lanes write to one address: they must agree, or it is a finding and the highest lane's value stays."""
    for value in values:
        if value.__class__ is not int:
            break
    else:
        if access.bits == 128:
            return values[0] & 0xFFFF_FFFF_FFFF_FFFF, values[0] >> 64  # type: ignore[return-value]
        return values  # type: ignore[return-value]
    rows = _rows(mask, values, access)
    rows = rows.reshape(-1, access.elements)
    if (rows != rows[-1]).any():
        active = lanes.lanes(mask)
        other = int(np.argmax((rows != rows[-1]).any(axis=1)))
        _report_lanes(w, access, active[other], active[-1], rows[other], rows[-1], say(address))
    return rows[-1].tolist()  # type: ignore[no-any-return]


def _check_lanes(
    w: Warp, data: NDArray[Any], offset: int, pattern: Pattern, rows: NDArray[Any], access: Access, say: Any, low: int
) -> None:
    """After a store in which lanes meet: each must find its own value there."""
    now = np.ndarray((pattern.items,), access.item, data, offset)[pattern.index]
    kept = now.view(np.uint8).reshape(-1, access.size)
    mine = np.ascontiguousarray(rows).view(np.uint8).reshape(-1, access.size)
    lost = (kept != mine).any(axis=1)
    if lost.any():
        loser = int(np.argmax(lost))
        winner = int(np.flatnonzero(pattern.index == pattern.index[loser])[-1])
        elements = rows.reshape(-1, access.elements)
        _report_lanes(
            w,
            access,
            int(pattern.active[loser]),
            int(pattern.active[winner]),
            elements[loser],
            elements[winner],
            say(low + int(pattern.offsets[loser])),
        )


def _report_lanes(w: Warp, access: Access, one: int, other: int, first: Any, second: Any, said: str) -> None:
    shown = [" ".join(f"{int(value):#x}" for value in values) for values in (first, second)]
    w.cta.launch.report(
        "lanes-race",
        f"{access.opcode}: lanes {one} and {other} of one warp write different values ({shown[0]} and {shown[1]}) to "
        f"{said}; which of them stays is not defined",
        hint="guard the store with one lane, or give every lane its own address",
    )


WRITERS = {
    "global": write_global,
    "shared": write_shared,
    "cluster": write_cluster,
    "local": write_local,
    "generic": write_generic,
}
