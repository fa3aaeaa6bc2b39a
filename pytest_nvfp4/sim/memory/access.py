"""How a warp reads and writes memory: one address for all lanes, or one a lane, in any state space.

``read`` and ``write`` take an ``Access``, which is what the opcode says (space, width, count of elements, sign); they
check bounds by tensor, alignment (PTX ISA, "Addresses as Operands": naturally aligned to the size of the whole
access, vectors included), read-only regions, bytes that nothing wrote, bytes of mbarriers and lanes of one store that
meet with different values; they count the access (``tally``) and note the writers of watched outputs (``coverage``).

Generic addresses (PTX ISA, "Generic Addressing"): the shared window from ``SHARED_WINDOW`` on, local memory from
``LOCAL_WINDOW``, all else global. ``.shared::cta`` addresses are the CTA's own; ``.shared::cluster`` ones any CTA's
of the cluster.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.coverage import note_scatter, note_write
from pytest_nvfp4.sim.memory.local import LOCAL_WINDOW, LocalMemory
from pytest_nvfp4.sim.memory.pattern import Pattern, pattern_of
from pytest_nvfp4.sim.memory.shared import RANK_SHIFT, SharedMemory
from pytest_nvfp4.sim.memory.tally import Tally

if TYPE_CHECKING:
    from pytest_nvfp4.sim.memory.globals import Region
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = [
    "READERS",
    "SHARED_WINDOW",
    "WRITERS",
    "Access",
    "Values",
    "by_region",
    "check_written",
    "gather",
    "locate_global",
    "locate_shared",
    "mark_written",
    "misaligned",
    "note_store",
    "read",
    "scatter",
    "shared_byte",
    "write",
]

SHARED_WINDOW = 0xFFFF_0000_0000_0000
"""Generic addresses from here on are shared; the low 32 bits are the shared address."""

_CODES = {8: "B", 16: "H", 32: "I", 64: "Q"}
_ITEMS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
    16: np.dtype(np.complex128),  # 16 bytes that numpy moves whole and fast
    32: np.dtype("V32"),
}
_ONES = {size: np.frombuffer(b"\1" * size, item)[0] for size, item in _ITEMS.items()}
_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}

Values = lanes.Bits | tuple[lanes.Bits, ...]


class Access:
    """What an opcode accesses.

    Args:
        opcode: For messages.
        space: ``global``, ``shared`` (the CTA's own), ``cluster`` (shared::cluster), ``local`` or ``generic``.
        bits: Width of an element: 8 to 128.
        count: Elements a lane: 1, 2, 4 or 8.
        signed: Sign-extend a loaded element.
        register: Width of the destination registers; 0 for a store.
        read_only: A load of the non-coherent path: nothing of this launch may have written the bytes.
    """

    __slots__ = (
        "bits", "count", "elements", "item", "known", "load", "loads", "opcode", "pack", "read_only", "register",
        "signed", "size", "space", "store", "stores", "unpack",
    )  # fmt: skip

    def __init__(
        self,
        opcode: str,
        space: str,
        bits: int,
        count: int = 1,
        *,
        signed: bool = False,
        register: int = 0,
        read_only: bool = False,
    ) -> None:
        self.opcode = opcode
        self.space = space
        self.bits = bits
        self.count = count
        self.signed = signed
        self.register = register
        self.read_only = read_only
        self.size = bits * count // 8
        wide = bits == 128
        self.elements = 2 * count if wide else count
        code = "Q" if wide else _CODES[bits]
        plain = struct.Struct(f"<{self.elements}{code}")
        self.unpack = struct.Struct(f"<{self.elements}{code.lower() if signed else code}").unpack_from
        self.pack = plain.pack_into
        self.known = plain.unpack(b"\1" * self.size)
        self.item = _ITEMS[self.size]
        self.loads = ("shared.load", self.size)
        self.stores = ("shared.store", self.size)
        self.load = ("global.load", self.size)
        self.store = ("global.store", self.size)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.opcode, self.space, self.bits, self.count, self.signed, self.register, self.read_only)


def _restore(opcode: str, space: str, bits: int, count: int, signed: bool, register: int, read_only: bool) -> Access:
    return Access(opcode, space, bits, count, signed=signed, register=register, read_only=read_only)


def misaligned(access: Access, address: int, lane: int | None, said: str) -> Fault:
    """The fault of an address that is not a multiple of the access's size."""
    who = "" if lane is None else f" of lane {lane}"
    return Fault(
        "misaligned",
        f"{access.opcode}: address {address:#x}{who} is not a multiple of {access.size} ({said})",
        hint=f"an access of {access.count} x {access.bits} bits must be aligned to {access.size} bytes",
    )


# ---- reading -----------------------------------------------------------------------------------------------------


def read(w: Warp, mask: int, address: lanes.Bits, access: Access, at: int) -> Values:
    """Load: the register's value (a tuple for a vector). Raises Fault."""
    return READERS[access.space](w, mask, address, access, at)


def read_global(w: Warp, mask: int, address: lanes.Bits, access: Access, at: int) -> Values:
    """``ld.global``, ``ld.const`` and ``ld.param`` of an address."""
    if address.__class__ is not int:
        return _read_global_lanes(w, mask, address, access, at)  # type: ignore[arg-type]
    size = access.size
    memory = w.cta.launch.machine.memory
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
    found = access.unpack(region.raw, offset)
    if access.elements == 1 and not access.signed:
        return found[0]  # type: ignore[no-any-return]
    return _finish(found, access)


def read_shared(w: Warp, mask: int, address: lanes.Bits, access: Access, at: int) -> Values:
    """``ld.shared``: the CTA's own shared memory."""
    cta = w.cta
    shared = cta.shared
    if address.__class__ is not int:
        return _read_shared_lanes(w, mask, address, shared, access, "shared.load")  # type: ignore[arg-type]
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
        shared.read(index, size, what=access.opcode)
    tally = cta.units.get(Tally) or cta.unit(Tally)
    key = access.loads
    tally[key] = tally.get(key, 0) + 1
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
        shared.read(index, access.size, what=access.opcode)
        _count(w, "cluster.load", access.size)
        return _finish(access.unpack(shared.raw, index), access)
    parts = []
    for owner, part in _by_rank(address, mask):  # type: ignore[arg-type]
        if owner == rank:
            parts.append((part, _read_shared_lanes(w, part, address, w.cta.shared, access, "shared.load")))  # type: ignore[arg-type]
        else:
            shared = w.cta.peer(owner, what=access.opcode).shared
            parts.append((part, _read_shared_lanes(w, part, address, shared, access, "cluster.load")))  # type: ignore[arg-type]
    return _join(parts, access)


def read_local(w: Warp, mask: int, address: lanes.Bits, access: Access, at: int) -> Values:
    """``ld.local``: each thread's own bytes, so the result differs by lane even at one address."""
    local = w.unit(LocalMemory)
    where = lanes.spread(address, 64)
    active = lanes.lanes(mask)
    data = b"".join(local.read(int(where[lane]), access.size, lane, what=access.opcode) for lane in active)
    _count(w, "local.load", access.size)
    return _columns(np.frombuffer(data, np.uint8), mask, access)


def read_generic(w: Warp, mask: int, address: lanes.Bits, access: Access, at: int) -> Values:
    """``ld`` of a generic address: by window, lane by lane."""
    if address.__class__ is int:
        if address < LOCAL_WINDOW:
            return read_global(w, mask, address, access, at)
        if address >= SHARED_WINDOW:
            return read_cluster(w, mask, address & 0xFFFF_FFFF, access, at)
        return read_local(w, mask, address, access, at)
    return _join(
        [(part, reader(w, part, where, access, at)) for reader, part, where in _by_space(address, mask, READERS)],  # type: ignore[arg-type]
        access,
    )


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


def by_region(w: Warp, mask: int, address: NDArray[Any], access: Access, *, write: bool) -> list[int]:
    """The lanes of each region that an access touches. Raises Fault for a lane outside all of them."""
    memory = w.cta.launch.machine.memory
    parts: dict[int, int] = {}
    for lane in lanes.lanes(mask):
        where = int(address[lane])
        found = memory.find(where)
        if found is None or where + access.size > found.end:
            raise memory.outside(where, access.size, write=write, what=f"{access.opcode}, lane {lane}")
        parts[found.start] = parts.get(found.start, 0) | 1 << lane
    return list(parts.values())


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
    if pattern.same:
        return _finish(access.unpack(region.raw, offset), access)
    return _columns(gather(region.data, offset, pattern, access), mask, access)


def _read_shared_lanes(
    w: Warp, mask: int, address: NDArray[Any], shared: SharedMemory, access: Access, what: str
) -> Values:
    index, pattern = locate_shared(mask, address, shared, access)
    check_written(shared, index, pattern, access)
    cta = w.cta
    tally = cta.units.get(Tally) or cta.unit(Tally)
    key = (what, pattern, index & 127)
    tally[key] = tally.get(key, 0) + 1
    if pattern.same:
        return _finish(access.unpack(shared.raw, index), access)
    return _columns(gather(shared.data, index, pattern, access), mask, access)


def gather(data: NDArray[Any], offset: int, pattern: Pattern, access: Access) -> NDArray[Any]:
    """The lanes' items, as one array of their bytes that is not a view of memory."""
    if pattern.dense:
        return data[offset : offset + pattern.span].copy()
    items: NDArray[Any] = np.ndarray((pattern.items,), access.item, data, offset)[pattern.index]
    return items


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
    if part.max(initial=-1) >= 0:
        raise Fault(
            "read-only",
            f"{access.opcode}: reads {region.say(region.start + offset)}, which CTA {int(part.max())} of this launch "
            "wrote",
            hint="the non-coherent path (.nc) is for memory that nobody writes while the kernel runs",
        )


# ---- writing -----------------------------------------------------------------------------------------------------


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
    region = machine.memory.region(address, size, write=True, what=access.opcode)
    offset = address - region.start
    if address % size:
        raise misaligned(access, address, None, region.say(address))
    tally = cta.units.get(Tally) or cta.unit(Tally)
    key = access.store
    tally[key] = tally.get(key, 0) + 1
    access.pack(region.raw, offset, *_one(w, mask, values, access, region.say, address))
    if region.initialised is not None:
        region.initialised[offset : offset + size] = True
    if region.owner is not None:
        note_write(region, offset, size, cta.linear, at)


def write_shared(
    w: Warp, mask: int, address: lanes.Bits, values: tuple[lanes.Bits, ...], access: Access, at: int
) -> None:
    """``st.shared``: the CTA's own shared memory."""
    cta = w.cta
    cta.launch.machine.changes += 1
    shared = cta.shared
    if address.__class__ is not int:
        _write_shared_lanes(w, mask, address, values, shared, access, "shared.store")  # type: ignore[arg-type]
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
        w.cta.launch.machine.changes += 1
        shared = w.cta.owner_of(address, what=access.opcode).shared
        index = shared.index(address, access.size, what=access.opcode)
        if index % access.size:
            raise misaligned(access, address, None, f"byte {index} of CTA {shared.rank}'s shared memory")
        shared.refuse_opaque(index, index + access.size, what=access.opcode)
        _count(w, "cluster.store", access.size)
        access.pack(shared.raw, index, *_one(w, mask, values, access, shared_byte(shared), address))
        access.pack(shared.written_raw, index, *access.known)
        return
    w.cta.launch.machine.changes += 1
    for owner, part in _by_rank(address, mask):  # type: ignore[arg-type]
        shared = w.cta.shared if owner == rank else w.cta.peer(owner, what=access.opcode).shared
        what = "shared.store" if owner == rank else "cluster.store"
        _write_shared_lanes(w, part, address, values, shared, access, what)  # type: ignore[arg-type]


def write_local(
    w: Warp, mask: int, address: lanes.Bits, values: tuple[lanes.Bits, ...], access: Access, at: int
) -> None:
    """``st.local``: each thread's own bytes."""
    local = w.unit(LocalMemory)
    where = lanes.spread(address, 64)
    rows = _rows(mask, values, access).view(np.uint8).reshape(-1, access.size)
    for lane, row in zip(lanes.lanes(mask), rows, strict=True):
        local.write(int(where[lane]), row.tobytes(), lane, what=access.opcode)
    _count(w, "local.store", access.size)


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
    for writer, part, where in _by_space(address, mask, WRITERS):  # type: ignore[arg-type]
        writer(w, part, where, values, access, at)


def _write_global_lanes(
    w: Warp, mask: int, address: NDArray[Any], values: tuple[lanes.Bits, ...], access: Access, at: int
) -> None:
    located = locate_global(w, mask, address, access, write=True)
    if located is None:
        for part in by_region(w, mask, address, access, write=True):
            _write_global_lanes(w, part, address, values, access, at)
        return
    region, offset, pattern, low = located
    cta = w.cta
    tally = cta.units.get(Tally) or cta.unit(Tally)
    key = ("global.store", pattern, low & 31)
    tally[key] = tally.get(key, 0) + 1
    rows = _rows(mask, values, access)
    scatter(region.data, offset, pattern, rows, access)
    if pattern.distinct != pattern.index.size:
        _check_lanes(w, region.data, offset, pattern, rows, access, region.say, low)
    note_store(region, offset, pattern, access, cta.linear, at)


def note_store(region: Region, offset: int, pattern: Pattern, access: Access, cta: int, at: int) -> None:
    """What a store leaves behind besides the bytes: initialised bytes, and writers of a watched output."""
    if region.initialised is not None:
        np.ndarray((pattern.items,), access.item, region.initialised, offset)[pattern.index] = _ONES[access.size]
    if region.owner is not None:
        if pattern.dense:
            note_write(region, offset, pattern.span, cta, at)
        else:
            note_scatter(region, offset + pattern.offsets, access.size, cta, at)


def _write_shared_lanes(
    w: Warp,
    mask: int,
    address: NDArray[Any],
    values: tuple[lanes.Bits, ...],
    shared: SharedMemory,
    access: Access,
    what: str,
) -> None:
    index, pattern = locate_shared(mask, address, shared, access)
    cta = w.cta
    tally = cta.units.get(Tally) or cta.unit(Tally)
    key = (what, pattern, index & 127)
    tally[key] = tally.get(key, 0) + 1
    rows = _rows(mask, values, access)
    scatter(shared.data, index, pattern, rows, access)
    mark_written(shared, index, pattern, access)
    if pattern.distinct != pattern.index.size:
        _check_lanes(w, shared.data, index, pattern, rows, access, shared_byte(shared), index + shared.base)


def mark_written(shared: SharedMemory, index: int, pattern: Pattern, access: Access) -> None:
    """The lanes' items are initialised from now on."""
    if pattern.dense:
        shared.written[index : index + pattern.span] = True
    else:
        np.ndarray((pattern.items,), access.item, shared.written, index)[pattern.index] = _ONES[access.size]


def scatter(data: NDArray[Any], offset: int, pattern: Pattern, rows: NDArray[Any], access: Access) -> None:
    """Write the lanes' items."""
    if pattern.dense:
        data[offset : offset + pattern.span] = rows.view(np.uint8).reshape(-1)
    else:
        np.ndarray((pattern.items,), access.item, data, offset)[pattern.index] = rows.view(access.item).reshape(-1)


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


# ---- by parts ----------------------------------------------------------------------------------------------------


def _by_rank(address: NDArray[Any], mask: int) -> list[tuple[int, int]]:
    """CTA ranks of shared::cluster addresses, with the lanes of each."""
    ranks = address >> address.dtype.type(RANK_SHIFT)
    active = lanes.bools(mask)
    return [(int(rank), lanes.bits_of((ranks == rank) & active)) for rank in np.unique(ranks[active])]


def _by_space(address: NDArray[Any], mask: int, table: Any) -> list[tuple[Any, int, NDArray[Any]]]:
    """Generic addresses by window: the function of the space, the lanes, their addresses."""
    shared = lanes.bits_of(address >= np.uint64(SHARED_WINDOW)) & mask
    local = lanes.bits_of(address >= np.uint64(LOCAL_WINDOW)) & mask & ~shared
    parts = []
    if rest := mask & ~shared & ~local:
        parts.append((table["global"], rest, address))
    if shared:
        parts.append((table["cluster"], shared, address & np.uint64(0xFFFF_FFFF)))
    if local:
        parts.append((table["local"], local, address))
    return parts


def _count(w: Warp, what: str, size: int) -> None:
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


READERS = {
    "global": read_global,
    "shared": read_shared,
    "cluster": read_cluster,
    "local": read_local,
    "generic": read_generic,
}
WRITERS = {
    "global": write_global,
    "shared": write_shared,
    "cluster": write_cluster,
    "local": write_local,
    "generic": write_generic,
}
