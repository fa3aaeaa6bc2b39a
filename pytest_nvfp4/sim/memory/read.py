"""Loads of a warp from any state space, with one address for all lanes or one per lane.

Every load checks the bounds of the tensor, the alignment (PTX ISA, "Addresses as Operands": the address is a multiple
of the size of the whole access, vectors included), and that the bytes were written and belong to no mbarrier. A load of
unwritten memory does not stop the kernel, and is a finding if the value is used (``run.undefined``).
Bytes of a copy in flight are a fault. ``Tally`` counts requests, sectors and bank conflicts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import DTYPES, Bits
from pytest_nvfp4.sim.memory.access import READ, Access, Values, by_rank, by_space, join, misaligned
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.memory.local import LOCAL_WINDOW, LocalMemory
from pytest_nvfp4.sim.memory.locate import (
    by_region,
    count,
    gather,
    locate_global,
    locate_peer,
    locate_shared,
    unwritten,
)
from pytest_nvfp4.sim.memory.shared import RANK_SHIFT, SHARED_WINDOW, SharedMemory
from pytest_nvfp4.sim.memory.tally import Tally
from pytest_nvfp4.sim.run.undefined import loaded_undefined
from pytest_nvfp4.sim.run.warp import Warp

_SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


def read_global(w: Warp, mask: int, address: Bits, access: Access, at: int) -> Values:
    """Execute ``ld.global``, ``ld.const``, or ``ld.param`` of an address."""
    if address.__class__ is not int:
        return _read_global_lanes(w, mask, address, access, at)  # type: ignore[arg-type]
    size = access.size
    machine = w.cta.launch.machine
    memory = machine.memory
    region = memory.recent_read
    offset = address - region.start
    if offset < 0 or offset + size > region.size:
        region = memory.region(address, size, write=False, what=access.opcode)
        offset = address - region.start
    if address % size:
        raise misaligned(access, address, None, region.place(address))
    if (
        region.initialised is not None
        and not w.cta.launch.reported("uninitialised", at)
        and (missing := region.unwritten(offset, size, what=access.opcode))
    ):
        loaded_undefined(w, at, mask, missing)
    if access.read_only and region.owner is not None:
        _refuse_written(region, offset, size, access)
    cta = w.cta
    (cta.units.get(Tally) or cta.unit(Tally))[access.load] += 1
    if machine.monitor is not None:
        machine.monitor.global_accessed(w, at, region, offset, size, READ, mask)
    elements = access.unpack(region.raw, offset)
    if access.elements == 1 and not access.signed:
        return elements[0]  # type: ignore[no-any-return]
    return _extend(elements, access)


def read_shared(w: Warp, mask: int, address: Bits, access: Access, at: int) -> Values:
    """Execute ``ld.shared``, a load of the CTA's own shared memory."""
    cta = w.cta
    shared = cta.shared
    if address.__class__ is not int:
        return _read_shared_lanes(w, mask, address, shared, access, "shared.load", at)  # type: ignore[arg-type]
    size = access.size
    index = address - shared.base
    if index < 0 or index + size > shared.size:
        shared.index(address, size, what=access.opcode)
    if index % size:
        raise misaligned(access, address, None, f"byte {index} of shared memory")
    opaque = shared.opaque
    if index < opaque.high and index + size > opaque.low:
        shared.refuse_opaque(index, index + size, what=access.opcode)
    if access.unpack(shared.written_raw, index) != access.known:
        try:
            shared.read(index, size, what=access.opcode)
        except Fault as fault:
            _unwritten(w, at, mask, fault)
    (cta.units.get(Tally) or cta.unit(Tally))[access.loads] += 1
    monitor = cta.launch.machine.monitor
    if monitor is not None:
        monitor.shared_accessed(w, at, shared, index, size, READ, mask)
    elements = access.unpack(shared.raw, index)
    if access.elements == 1 and not access.signed:
        return elements[0]  # type: ignore[no-any-return]
    return _extend(elements, access)


def read_cluster(w: Warp, mask: int, address: Bits, access: Access, at: int) -> Values:
    """Execute ``ld.shared::cluster``, a load of any CTA's shared memory."""
    rank = w.cta.rank
    if address.__class__ is int:
        if address >> RANK_SHIFT == rank:
            return read_shared(w, mask, address, access, at)
        shared, index = locate_peer(w, address, access)
        try:
            shared.read(index, access.size, what=access.opcode)
        except Fault as fault:
            _unwritten(w, at, mask, fault)
        count(w, ("cluster.load", access.size))
        monitor = w.cta.launch.machine.monitor
        if monitor is not None:
            monitor.shared_accessed(w, at, shared, index, access.size, READ, mask)
        return _extend(access.unpack(shared.raw, index), access)
    parts = []
    for owner, part in by_rank(address, mask):  # type: ignore[arg-type]
        shared = w.cta.shared if owner == rank else w.cta.peer(owner, what=access.opcode).shared
        counter = "shared.load" if owner == rank else "cluster.load"
        parts.append((part, _read_shared_lanes(w, part, address, shared, access, counter, at)))  # type: ignore[arg-type]
    return join(parts, access.register)


def read_local(w: Warp, mask: int, address: Bits, access: Access, at: int) -> Values:
    """Execute ``ld.local``. Each thread has its own bytes, so the result differs by lane even at one address."""
    data, missing = w.unit(LocalMemory).read_lanes(mask, address, access.size, count=access.count, what=access.opcode)
    if missing is not None:
        loaded_undefined(w, at, missing.mask, missing.fault, registers=missing.elements)
    count(w, ("local.load", access.size))
    return columns(data.reshape(-1), mask, access)


def read_generic(w: Warp, mask: int, address: Bits, access: Access, at: int) -> Values:
    """Execute ``ld`` of a generic address: each lane reads the state space of its address's window."""
    if address.__class__ is int:
        if address < LOCAL_WINDOW:
            return read_global(w, mask, address, access, at)
        if address >= SHARED_WINDOW:
            return read_cluster(w, mask, address & 0xFFFF_FFFF, access, at)
        return read_local(w, mask, address, access, at)
    parts = by_space(address, mask, READERS)  # type: ignore[arg-type]
    return join([(part, reader(w, part, where, access, at)) for reader, part, where in parts], access.register)


def _read_global_lanes(w: Warp, mask: int, address: NDArray[Any], access: Access, at: int) -> Values:
    located = locate_global(w, mask, address, access, write=False)
    if located is None:
        parts = by_region(w, mask, address, access, write=False)
        return join([(part, _read_global_lanes(w, part, address, access, at)) for part in parts], access.register)
    region, offset, pattern, low = located
    if (
        region.initialised is not None
        and not w.cta.launch.reported("uninitialised", at)
        and (missing := unwritten(region.initialised, offset, pattern, access))
    ):
        fault = region.uninitialised(missing.byte, what=f"{access.opcode}, lane {missing.lane}")
        loaded_undefined(w, at, missing.mask, fault)
    if access.read_only and region.owner is not None:
        for part in pattern.offsets:
            _refuse_written(region, offset + int(part), access.size, access)
    cta = w.cta
    (cta.units.get(Tally) or cta.unit(Tally))["global.load", pattern, low & 31] += 1
    monitor = cta.launch.machine.monitor
    if monitor is not None:
        monitor.global_accessed(w, at, region, offset, pattern, READ)
    if pattern.same:
        return _extend(access.unpack(region.raw, offset), access)
    return columns(gather(region.data, offset, pattern, access), mask, access)


def _read_shared_lanes(
    w: Warp, mask: int, address: NDArray[Any], shared: SharedMemory, access: Access, counter: str, at: int
) -> Values:
    index, pattern = locate_shared(mask, address, shared, access)
    if (missing := unwritten(shared.written, index, pattern, access)) is not None:
        fault = shared.uninitialised(missing.byte, what=f"{access.opcode}, lane {missing.lane}")
        _unwritten(w, at, missing.mask, fault)
    cta = w.cta
    (cta.units.get(Tally) or cta.unit(Tally))[counter, pattern, index & 127] += 1
    monitor = cta.launch.machine.monitor
    if monitor is not None:
        monitor.shared_accessed(w, at, shared, index, pattern, READ)
    if pattern.same:
        return _extend(access.unpack(shared.raw, index), access)
    return columns(gather(shared.data, index, pattern, access), mask, access)


def _unwritten(w: Warp, at: int, mask: int, fault: Fault) -> None:
    """Record a load of memory that was never written, or that a copy in flight will write."""
    if fault.kind not in ("uninitialised", "in-flight"):
        raise fault
    loaded_undefined(w, at, mask, fault)


def columns(data: NDArray[Any], mask: int, access: Access) -> Values:
    """Convert the active lanes' items to register values: widened, in their lanes, one array per element."""
    bits, count = access.bits, access.elements
    if bits == 128:
        return _columns_128(data, mask)
    elements = data.view(_SIGNED[bits] if access.signed else DTYPES[bits])
    if count > 1:
        elements = elements.reshape(-1, count).T
    register = access.register
    if register != bits:
        elements = elements.astype(_SIGNED[register] if access.signed else DTYPES[register])
    if access.signed:
        elements = np.ascontiguousarray(elements).view(DTYPES[register])
    if mask != lanes.FULL:
        shape = (32,) if count == 1 else (count, 32)
        whole = np.zeros(shape, elements.dtype)
        whole[..., lanes.bools(mask)] = elements
        elements = whole
    if count == 1:
        return elements
    return tuple(np.ascontiguousarray(elements))


def _columns_128(data: NDArray[Any], mask: int) -> Values:
    pairs = data.view(np.uint64).reshape(-1, 2)
    whole = np.zeros(32, np.object_)
    for lane, (low, high) in zip(lanes.lanes(mask), pairs.tolist(), strict=True):
        whole[lane] = low | high << 64
    return whole


def _extend(elements: tuple[int, ...], access: Access) -> Values:
    """Convert the elements at one address to register values: joined to 128 bits, or sign-extended."""
    if access.bits == 128:
        return elements[0] | elements[1] << 64
    if access.signed:
        narrow = (1 << access.register) - 1
        elements = tuple(value & narrow for value in elements)
    return elements[0] if access.elements == 1 else elements


def _refuse_written(region: Region, offset: int, size: int, access: Access) -> None:
    assert region.owner is not None
    unit = region.owner_bytes
    part = region.owner[offset // unit : (offset + size - 1) // unit + 1]
    if part.max(initial=-1) >= region.launch_base:
        writer = int(part.max()) - region.launch_base
        raise Fault(
            "non-coherent",
            f"{access.opcode}: reads {region.place(region.start + offset)}, which CTA {writer} of this launch wrote",
            # PTX ISA, "ld.global.nc": the memory is read-only for the duration of the kernel.
            hint="the non-coherent path (.nc) is for memory that no thread writes while the kernel runs",
        )


READERS = {
    "global": read_global,
    "shared": read_shared,
    "cluster": read_cluster,
    "local": read_local,
    "generic": read_generic,
}
