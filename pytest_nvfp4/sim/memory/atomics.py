"""Atomics: ``atom``, ``red``, ``red.async`` (PTX ISA, "atom", "red", "red.async").

Lanes that name one address apply in the order of lanes, one legal order of those the ISA allows. Vectors are element by
element: only the elements are atomic. Memory order and scope change nothing (see ``forms``). An atomic that leaves its
bytes as they were (a ``cas`` that fails, an ``exch`` of the same value) is no change that another warp may see: a spin
on a lock that nobody releases then comes back to the same state. A reduction into a watched output claims its elements
and makes no conflict.

Counters: ``global.atomic.requests`` and ``.lanes``, the same under ``shared`` and ``cluster``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.access import Access, Values
from pytest_nvfp4.sim.memory.coverage import note_reduce
from pytest_nvfp4.sim.memory.local import LOCAL_WINDOW
from pytest_nvfp4.sim.memory.locate import by_region, check_written, locate_global, locate_shared
from pytest_nvfp4.sim.memory.operations import INTEGER, integer_arrays, real
from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.memory.shared import RANK_SHIFT, SHARED_WINDOW
from pytest_nvfp4.sim.monitor import ATOMIC
from pytest_nvfp4.sim.sync import mbarrier

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["Operation", "atomic", "reduce_async"]


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """An atomic operation: ``name`` as in ``operations``, ``kind`` empty for integers or the floating-point format.

    ``returns`` is False for ``red``.
    """

    access: Access
    name: str
    kind: str
    returns: bool


def atomic(
    w: Warp, mask: int, address: lanes.Bits, b: tuple[Any, ...], c: tuple[Any, ...], op: Operation, at: int
) -> Values:
    """Apply to each lane's address; the values before (zeros in lanes that are not active). Raises Fault."""
    return _in_space(w, mask, address, b, c, op, op.access.space, at)


def _in_space(
    w: Warp,
    mask: int,
    address: lanes.Bits,
    b: tuple[Any, ...],
    c: tuple[Any, ...],
    op: Operation,
    space: str,
    at: int,
) -> Values:
    if space == "generic":
        return _generic(w, mask, address, b, c, op, at)
    where = (
        address
        if isinstance(address, np.ndarray)
        else np.full(32, address, np.uint64 if space == "global" else np.uint32)
    )
    counters = w.cta.launch.counters
    monitor = w.cta.launch.machine.monitor
    if space == "global":
        located = locate_global(w, mask, where, op.access, write=True)
        if located is None:
            parts = by_region(w, mask, where, op.access, write=True)
            return _join([_in_space(w, part, where, b, c, op, space, at) for part in parts], parts)
        region, offset, pattern, _ = located
        if region.initialised is not None or region.owner is not None:
            for part in pattern.offsets.tolist():
                if region.initialised is not None:
                    memory = w.cta.launch.machine.memory
                    memory.check_initialised(region, offset + part, op.access.size, what=op.access.opcode)
                note_reduce(region, offset + part, op.access.size, w.cta.linear)
        data = region.data
        if monitor is not None:
            monitor.global_accessed(w, at, region, offset, pattern, ATOMIC)
    else:
        cta = w.cta
        if space == "cluster":
            owners: NDArray[Any] = np.right_shift(where, np.array(RANK_SHIFT, where.dtype))
            ranks = np.unique(owners[lanes.bools(mask)])
            if len(ranks) > 1:
                parts = [lanes.bits_of(owners == rank) & mask for rank in ranks]
                return _join([_in_space(w, part, where, b, c, op, space, at) for part in parts], parts)
            cta = cta.peer(int(ranks[0]), what=op.access.opcode)
            space = "shared" if cta is w.cta else "cluster"
        offset, pattern = locate_shared(mask, where, cta.shared, op.access)
        check_written(cta.shared, offset, pattern, op.access)
        if monitor is not None:
            monitor.shared_accessed(w, at, cta.shared, offset, pattern, ATOMIC)
        data = cta.shared.data
    counters[f"{space}.atomic.requests"] += 1
    counters[f"{space}.atomic.lanes"] += mask.bit_count()
    flush = op.kind == "f32" and space == "global"
    values: Values
    if not op.kind and op.access.count == 1 and (pattern.same or op.access.bits == 128):
        values, changed = _one_by_one(data, offset, pattern.offsets, mask, b[0], c[0] if c else 0, op)
    else:
        values, changed = _together(data, offset, pattern, mask, b, c, op, flush=flush)
    w.cta.launch.machine.changes += changed
    return values


def _one_by_one(
    data: NDArray[np.uint8], offset: int, places: NDArray[Any], mask: int, b: Any, c: Any, op: Operation
) -> tuple[lanes.Bits, bool]:
    """Integers, lane after lane: the values before, and whether any byte is another now."""
    size, bits = op.access.size, op.access.bits
    function = INTEGER[op.name]
    active = lanes.lanes(mask)
    first: Any = b if b.__class__ is int else b.tolist()
    second: Any = c if c.__class__ is int else c.tolist()
    held: dict[int, int] = {}
    before: list[int] = []
    for lane, place in zip(active, places.tolist(), strict=True):
        old = held.get(place, -1)
        if old < 0:
            old = int.from_bytes(data[offset + place : offset + place + size].tobytes(), "little")
        held[place] = function(
            old,
            first if first.__class__ is int else first[lane],
            second if second.__class__ is int else second[lane],
            bits,
        )
        before.append(old)
    changed = False
    for place, new in held.items():
        part = data[offset + place : offset + place + size]
        written = new.to_bytes(size, "little")
        if part.tobytes() != written:
            part[:] = np.frombuffer(written, np.uint8)
            changed = True
    if len(before) == 1:
        return before[0], changed
    result = np.zeros(32, lanes.DTYPES[bits])
    result[list(active)] = before
    return result, changed


def _together(
    data: NDArray[np.uint8],
    offset: int,
    pattern: Pattern,
    mask: int,
    b: tuple[Any, ...],
    c: tuple[Any, ...],
    op: Operation,
    *,
    flush: bool,
) -> tuple[Values, bool]:
    """All lanes whose address is theirs alone at once; those that share one in as many rounds as share it.

    The values before, and whether any round left other bytes.
    """
    access = op.access
    dtype = np.dtype(lanes.DTYPES[access.bits])
    index = pattern.index
    items: NDArray[Any] = np.ndarray((pattern.items, access.count), dtype, data, offset)
    first, second = _operands(b, mask, access), _operands(c, mask, access)
    before = np.empty_like(first)
    alone = pattern.distinct == index.size
    changed = False
    for chosen in (slice(None),) if alone else _rounds(index):
        old = items[index[chosen]]
        before[chosen] = old
        if op.kind:
            halves = old.view(np.uint16) if access.bits == 32 and op.kind in ("f16", "bf16") else old
            operand = first[chosen].view(halves.dtype)
            new = real(op.name, op.kind, halves, operand, flush=flush).view(dtype)
        else:
            new = integer_arrays(op.name, old, first[chosen], second[chosen])
        changed = changed or bool((new != old).any())
        items[index[chosen]] = new
    whole = np.zeros((access.count, 32), dtype)
    whole[:, lanes.bools(mask)] = before.T
    return whole[0] if access.count == 1 else tuple(whole), changed


def _rounds(index: NDArray[Any]) -> list[NDArray[Any]]:
    """Lanes by how many lower lanes have the same index: each round names every index at most once."""
    order = np.argsort(index, kind="stable")
    ranked = index[order]
    starts = np.concatenate(([True], ranked[1:] != ranked[:-1]))
    position = np.arange(index.size)
    nth = np.empty(index.size, np.intp)
    nth[order] = position - np.maximum.accumulate(np.where(starts, position, 0))
    return [np.flatnonzero(nth == number) for number in range(int(nth.max()) + 1)]


def _operands(values: tuple[Any, ...], mask: int, access: Access) -> NDArray[Any]:
    rows = np.zeros((32, access.count), lanes.DTYPES[access.bits])
    for column, value in enumerate(values):
        rows[:, column] = value
    return rows[lanes.bools(mask)]


def _generic(
    w: Warp, mask: int, address: lanes.Bits, b: tuple[Any, ...], c: tuple[Any, ...], op: Operation, at: int
) -> Values:
    where = address if isinstance(address, np.ndarray) else np.full(32, address, np.uint64)
    shared = lanes.bits_of(where >= np.uint64(SHARED_WINDOW)) & mask
    local = lanes.bits_of(where >= np.uint64(LOCAL_WINDOW)) & mask & ~shared
    if local:
        raise Fault("out-of-bounds", f"{op.access.opcode}: an atomic on local memory, which has none")
    parts: list[int] = []
    values: list[Values] = []
    if mask & ~shared:
        parts.append(mask & ~shared)
        values.append(_in_space(w, mask & ~shared, where, b, c, op, "global", at))
    if shared:
        low = (where & np.uint64(0xFFFF_FFFF)).astype(np.uint32)
        parts.append(shared)
        values.append(_in_space(w, shared, low, b, c, op, "cluster", at))
    return _join(values, parts)


def _join(values: list[Values], parts: list[int]) -> Values:
    whole = values[0]
    for part, new in zip(parts[1:], values[1:], strict=True):
        if isinstance(whole, tuple):
            assert isinstance(new, tuple)
            whole = tuple(np.where(lanes.bools(part), n, o) for n, o in zip(new, whole, strict=True))
        else:
            assert not isinstance(new, tuple)
            whole = np.where(lanes.bools(part), new, whole)
    return whole


def reduce_async(
    w: Warp, mask: int, address: lanes.Bits, b: tuple[Any, ...], barrier: lanes.Bits, op: Operation, at: int
) -> None:
    """``red.async``: each lane's reduction, then its bytes on its mbarrier. Raises Fault."""
    machine = w.cta.launch.machine
    access = op.access
    for lane in lanes.lanes(mask):
        target = address if isinstance(address, int) else int(address[lane])
        place = barrier if isinstance(barrier, int) else int(barrier[lane])
        owner = w.cta.owner_of(target, what=access.opcode)
        index = owner.shared.index(target, access.size, what=f"{access.opcode}, lane {lane}", align=access.size)
        owner.shared.refuse_opaque(index, index + access.size, what=access.opcode)
        owner.shared.read(index, access.size, what=access.opcode)
        if place >> RANK_SHIFT != target >> RANK_SHIFT:
            raise Fault(
                "mbarrier",
                f"{access.opcode}: the data are in CTA rank {target >> RANK_SHIFT}, the mbarrier is in rank "
                f"{place >> RANK_SHIFT}",
                hint="data and mbarrier of red.async must be in the shared memory of one CTA",
            )
        found = mbarrier.resolve(w, place, cluster=True, what=access.opcode)
        if machine.monitor is not None:
            machine.monitor.stored_async(w, at, owner.shared, index, access.size, found)
        value = b[0] if b[0].__class__ is int else int(b[0][lane])

        def action(data=owner.shared.data, index=index, value=value, found=found) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
            _one_by_one(data, index, np.zeros(1, np.intp), 1, value, 0, op)
            machine.changes += 1
            mbarrier.complete_tx(found, access.size, who=(w, at))

        w.cta.launch.counters["cluster.atomic.requests"] += 1
        w.cta.launch.counters["cluster.atomic.lanes"] += 1
        machine.asynchronous.submit(("red.async", w), action, what=access.opcode)
