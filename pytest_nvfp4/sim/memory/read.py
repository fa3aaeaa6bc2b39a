"""How a warp reads memory: one address for all lanes, or one a lane, in any state space.

Checked always: bounds by tensor, alignment (PTX ISA, "Addresses as Operands": natural, to the size of the whole access,
vectors included), bytes that nothing wrote, bytes of mbarriers. A load of shared memory that nothing wrote is a finding
that does not stop the kernel, and gives what lies there (NVIDIA's kernels have CTAs that load so, and end without a use
of it); bytes of a copy under way are a fault. Counted: requests, sectors, bank conflicts (``tally``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.access import Access, Values, by_rank, by_space, misaligned
from pytest_nvfp4.sim.memory.local import LOCAL_WINDOW, LocalMemory
from pytest_nvfp4.sim.memory.locate import by_region, check_written, count, gather, locate_global, locate_shared
from pytest_nvfp4.sim.memory.shared import RANK_SHIFT, SHARED_WINDOW, SharedMemory
from pytest_nvfp4.sim.memory.tally import Tally
from pytest_nvfp4.sim.monitor import READ

if TYPE_CHECKING:
    from pytest_nvfp4.sim.memory.globals import Region
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["READERS", "read"]

_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


def read(w: Warp, mask: int, address: lanes.Bits, access: Access, at: int) -> Values:
    """Load: the register's value (a tuple for a vector). Raises Fault."""
    return READERS[access.space](w, mask, address, access, at)


def read_global(w: Warp, mask: int, address: lanes.Bits, access: Access, at: int) -> Values:
    """``ld.global``, ``ld.const`` and ``ld.param`` of an address."""
    if address.__class__ is not int:
        return _read_global_lanes(w, mask, address, access, at)  # type: ignore[arg-type]
    size = access.size
    machine = w.cta.launch.machine
    memory = machine.memory
    region = memory.recent
    offset = address - region.start
    if offset < 0 or offset + size > region.size:
        region = memory.region(address, size, write=False, what=access.opcode)
        offset = address - region.start
    if address % size:
        raise misaligned(access, address, None, region.say(address))
    if region.initialised is not None:
        memory.check_initialised(region, offset, size, what=access.opcode)
    if access.read_only and region.owner is not None:
        _refuse_written(region, offset, size, access)
    cta = w.cta
    tally = cta.units.get(Tally) or cta.unit(Tally)
    key = access.load
    tally[key] = tally.get(key, 0) + 1
    if machine.monitor is not None:
        machine.monitor.global_accessed(w, at, region, offset, size, READ, mask)
    found = access.unpack(region.raw, offset)
    if access.elements == 1 and not access.signed:
        return found[0]  # type: ignore[no-any-return]
    return _finish(found, access)


def read_shared(w: Warp, mask: int, address: lanes.Bits, access: Access, at: int) -> Values:
    """``ld.shared``: the CTA's own shared memory."""
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
            _note_unwritten(w, fault)
    tally = cta.units.get(Tally) or cta.unit(Tally)
    key = access.loads
    tally[key] = tally.get(key, 0) + 1
    monitor = cta.launch.machine.monitor
    if monitor is not None:
        monitor.shared_accessed(w, at, shared, index, size, READ, mask)
    found = access.unpack(shared.raw, index)
    if access.elements == 1 and not access.signed:
        return found[0]  # type: ignore[no-any-return]
    return _finish(found, access)


def read_cluster(w: Warp, mask: int, address: lanes.Bits, access: Access, at: int) -> Values:
    """``ld.shared::cluster``: any CTA's shared memory."""
    rank = w.cta.rank
    if address.__class__ is int:
        if address >> RANK_SHIFT == rank:
            return read_shared(w, mask, address, access, at)
        shared = w.cta.owner_of(address, what=access.opcode).shared
        index = shared.index(address, access.size, what=access.opcode)
        if index % access.size:
            raise misaligned(access, address, None, f"byte {index} of CTA {shared.rank}'s shared memory")
        shared.refuse_opaque(index, index + access.size, what=access.opcode)
        try:
            shared.read(index, access.size, what=access.opcode)
        except Fault as fault:
            _note_unwritten(w, fault)
        count(w, "cluster.load", access.size)
        monitor = w.cta.launch.machine.monitor
        if monitor is not None:
            monitor.shared_accessed(w, at, shared, index, access.size, READ, mask)
        return _finish(access.unpack(shared.raw, index), access)
    parts = []
    for owner, part in by_rank(address, mask):  # type: ignore[arg-type]
        if owner == rank:
            parts.append((part, _read_shared_lanes(w, part, address, w.cta.shared, access, "shared.load", at)))  # type: ignore[arg-type]
        else:
            shared = w.cta.peer(owner, what=access.opcode).shared
            parts.append((part, _read_shared_lanes(w, part, address, shared, access, "cluster.load", at)))  # type: ignore[arg-type]
    return _join(parts, access)


def read_local(w: Warp, mask: int, address: lanes.Bits, access: Access, at: int) -> Values:
    """``ld.local``: each thread's own bytes, so the result differs by lane even at one address."""
    data = w.unit(LocalMemory).read_lanes(mask, address, access.size, what=access.opcode)
    count(w, "local.load", access.size)
    return _columns(data.reshape(-1), mask, access)


def read_generic(w: Warp, mask: int, address: lanes.Bits, access: Access, at: int) -> Values:
    """``ld`` of a generic address: by window, lane by lane."""
    if address.__class__ is int:
        if address < LOCAL_WINDOW:
            return read_global(w, mask, address, access, at)
        if address >= SHARED_WINDOW:
            return read_cluster(w, mask, address & 0xFFFF_FFFF, access, at)
        return read_local(w, mask, address, access, at)
    return _join(
        [(part, reader(w, part, where, access, at)) for reader, part, where in by_space(address, mask, READERS)],  # type: ignore[arg-type]
        access,
    )


def _read_global_lanes(w: Warp, mask: int, address: NDArray[Any], access: Access, at: int) -> Values:
    located = locate_global(w, mask, address, access, write=False)
    if located is None:
        parts = by_region(w, mask, address, access, write=False)
        return _join([(part, _read_global_lanes(w, part, address, access, at)) for part in parts], access)
    region, offset, pattern, low = located
    if region.initialised is not None:
        for part in pattern.offsets:
            w.cta.launch.machine.memory.check_initialised(region, offset + int(part), access.size, what=access.opcode)
    if access.read_only and region.owner is not None:
        for part in pattern.offsets:
            _refuse_written(region, offset + int(part), access.size, access)
    cta = w.cta
    tally = cta.units.get(Tally) or cta.unit(Tally)
    key = ("global.load", pattern, low & 31)
    tally[key] = tally.get(key, 0) + 1
    monitor = cta.launch.machine.monitor
    if monitor is not None:
        monitor.global_accessed(w, at, region, offset, pattern, READ)
    if pattern.same:
        return _finish(access.unpack(region.raw, offset), access)
    return _columns(gather(region.data, offset, pattern, access), mask, access)


def _read_shared_lanes(
    w: Warp, mask: int, address: NDArray[Any], shared: SharedMemory, access: Access, what: str, at: int
) -> Values:
    index, pattern = locate_shared(mask, address, shared, access)
    try:
        check_written(shared, index, pattern, access)
    except Fault as fault:
        _note_unwritten(w, fault)
    cta = w.cta
    tally = cta.units.get(Tally) or cta.unit(Tally)
    key = (what, pattern, index & 127)
    tally[key] = tally.get(key, 0) + 1
    monitor = cta.launch.machine.monitor
    if monitor is not None:
        monitor.shared_accessed(w, at, shared, index, pattern, READ)
    if pattern.same:
        return _finish(access.unpack(shared.raw, index), access)
    return _columns(gather(shared.data, index, pattern, access), mask, access)


def _note_unwritten(w: Warp, fault: Fault) -> None:
    """Note a load of shared memory that nothing wrote, and go on. Raises the fault if a copy is under way there."""
    if fault.kind != "uninitialised":
        raise fault
    w.cta.launch.report(fault.kind, fault.message, hint=fault.hint)


def _columns(data: NDArray[Any], mask: int, access: Access) -> Values:
    """The active lanes' items as register values: widened, in their lanes, element by element."""
    bits, count = access.bits, access.elements
    if bits == 128:
        return _columns_128(data, mask)
    elements = data.view(_SIGNED[bits] if access.signed else _UNSIGNED[bits])
    if count > 1:
        elements = elements.reshape(-1, count).T
    register = access.register
    if register != bits:
        elements = elements.astype(_SIGNED[register] if access.signed else _UNSIGNED[register])
    if access.signed:
        elements = np.ascontiguousarray(elements).view(_UNSIGNED[register])
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


def _finish(found: tuple[int, ...], access: Access) -> Values:
    """Elements of one address as register values."""
    if access.bits == 128:
        return found[0] | found[1] << 64
    if access.signed:
        narrow = (1 << access.register) - 1
        found = tuple(value & narrow for value in found)
    return found[0] if access.elements == 1 else found


def _join(parts: list[tuple[int, Values]], access: Access) -> Values:
    """Loads of several parts of a mask as one."""
    if len(parts) == 1:
        return parts[0][1]
    register = access.register
    mask, whole = parts[0]
    for part, values in parts[1:]:
        if isinstance(whole, tuple):
            assert isinstance(values, tuple)
            whole = tuple(lanes.merge(part, new, old, register) for new, old in zip(values, whole, strict=True))
        else:
            whole = lanes.merge(part, values, whole, register)  # type: ignore[arg-type]
        mask |= part
    return whole


def _refuse_written(region: Region, offset: int, size: int, access: Access) -> None:
    assert region.owner is not None
    unit = region.owner_bytes
    part = region.owner[offset // unit : (offset + size - 1) // unit + 1]
    if part.max(initial=-1) >= region.launch_base:
        writer = int(part.max()) - region.launch_base
        raise Fault(
            "non-coherent",
            f"{access.opcode}: reads {region.say(region.start + offset)}, which CTA {writer} of this launch wrote",
            hint="the non-coherent path (.nc) is for memory that nobody writes while the kernel runs",
        )


READERS = {
    "global": read_global,
    "shared": read_shared,
    "cluster": read_cluster,
    "local": read_local,
    "generic": read_generic,
}
