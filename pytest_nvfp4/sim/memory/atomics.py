"""Atomics: ``atom``, ``red``, ``red.async`` (PTX ISA, "atom", "red", "red.async").

Lanes with one address are applied in lane order, which is one of the orders that the ISA allows. In a vector, each
element is atomic by itself. Memory order and scope change nothing (see ``forms``). An atomic that leaves its bytes
unchanged (a failed ``cas``, an ``exch`` of the same value) does not count as a change of memory, so a warp that spins
on a lock which is never released returns to the same state and is recognised as spinning. A reduction into a watched
output sets the owner of its elements without a conflict.

Counters: ``global.atomic.requests`` and ``.lanes``, the same under ``shared`` and ``cluster``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import DTYPES, Bits
from pytest_nvfp4.sim.memory.access import ATOMIC, Access, Values, by_rank, by_space, join
from pytest_nvfp4.sim.memory.coverage import note_reduce
from pytest_nvfp4.sim.memory.locate import (
    AsyncTarget,
    by_region,
    locate_async,
    locate_global,
    locate_shared,
    mark_written,
    unwritten,
)
from pytest_nvfp4.sim.memory.operations import INTEGER, integer_arrays, real
from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.run.undefined import loaded_undefined
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync import mbarrier

Operands = tuple[Any, ...]
"""Values of an operand's registers, each an int or an array of 32."""


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """An atomic operation.

    Attributes:
        name: Name in ``operations``.
        kind: Floating-point format, or empty for integers.
        returns: Whether the instruction has a result (``atom``, not ``red``).
    """

    access: Access
    name: str
    kind: str
    returns: bool


def atomic(w: Warp, mask: int, address: Bits, b: Operands, c: Operands, op: Operation, at: int) -> Values:
    """Apply the operation at each lane's address and return the old values (0 in inactive lanes). Raises Fault."""
    where = lanes.spread(address, 32 if op.access.space in ("shared", "cluster") else 64)
    if op.access.space != "generic":
        return _in_space(w, mask, where, b, c, op, op.access.space, at)
    parts = by_space(where, mask, {space: space for space in ("global", "cluster", "local")})
    if parts[-1][0] == "local":
        # PTX ISA, "atom": operations are defined on the global and shared state spaces only.
        raise Fault("out-of-bounds", f"{op.access.opcode}: the address is in local memory, which has no atomics")
    return join(
        [(part, _in_space(w, part, place, b, c, op, space, at)) for space, part, place in parts], op.access.bits
    )


def _in_space(
    w: Warp, mask: int, where: NDArray[Any], b: Operands, c: Operands, op: Operation, space: str, at: int
) -> Values:
    counters = w.cta.launch.counters
    monitor = w.cta.launch.machine.monitor
    if space == "global":
        located = locate_global(w, mask, where, op.access, write=True)
        if located is None:
            masks = by_region(w, mask, where, op.access, write=True)
            return join([(part, _in_space(w, part, where, b, c, op, space, at)) for part in masks], op.access.bits)
        region, offset, pattern, _ = located
        memory = w.cta.launch.machine.memory
        if memory.recent_read is not region:
            memory.enter(region, write=False)
        if region.owner is not None:
            for part in pattern.offsets.tolist():
                note_reduce(region, offset + part, op.access.size, w.cta.linear)
        if region.initialised is not None:
            if (missing := unwritten(region.initialised, offset, pattern, op.access)) is not None:
                fault = region.uninitialised(missing.byte, what=f"{op.access.opcode}, lane {missing.lane}")
                if op.name == "exch":  # it replaces the old value, which may have no use
                    loaded_undefined(w, at, missing.mask, fault)
                else:
                    w.cta.launch.report_fault(fault)
            mark_written(region.initialised, offset, pattern, op.access)
        data = region.data
        if monitor is not None:
            monitor.global_accessed(w, at, region, offset, pattern, ATOMIC)
    else:
        cta = w.cta
        if space == "cluster":
            ranks = by_rank(where, mask)
            if len(ranks) > 1:
                return join(
                    [(part, _in_space(w, part, where, b, c, op, space, at)) for _, part in ranks], op.access.bits
                )
            cta = cta.peer(ranks[0][0], what=op.access.opcode)
            space = "shared" if cta is w.cta else "cluster"
        offset, pattern = locate_shared(mask, where, cta.shared, op.access)
        if (missing := unwritten(cta.shared.written, offset, pattern, op.access)) is not None:
            fault = cta.shared.uninitialised(missing.byte, what=f"{op.access.opcode}, lane {missing.lane}")
            if op.name != "exch" or fault.kind != "uninitialised":
                raise fault
            loaded_undefined(w, at, missing.mask, fault)
            mark_written(cta.shared.written, offset, pattern, op.access)
        if monitor is not None:
            monitor.shared_accessed(w, at, cta.shared, offset, pattern, ATOMIC)
        data = cta.shared.data
    counters[f"{space}.atomic.requests"] += 1
    counters[f"{space}.atomic.lanes"] += mask.bit_count()
    # PTX ISA, "atom": add.f32 flushes subnormals on global memory and preserves them on shared memory.
    flush = op.kind == "f32" and space == "global"
    values: Values
    if not op.kind and op.access.count == 1 and (pattern.same or op.access.bits == 128):
        values, changed = _one_by_one(data, offset, pattern.offsets, mask, b[0], c[0] if c else 0, op)
    else:
        values, changed = _together(data, offset, pattern, mask, b, c, op, flush=flush)
    w.cta.launch.machine.changes += changed
    w.cta.launch.machine.updates += changed
    return values


def _one_by_one(
    data: NDArray[np.uint8], offset: int, places: NDArray[Any], mask: int, b: Any, c: Any, op: Operation
) -> tuple[Bits, bool]:
    """Apply an integer operation lane by lane; return the old values and whether any byte changed."""
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
    result = np.zeros(32, DTYPES[bits])
    result[list(active)] = before
    return result, changed


def _together(
    data: NDArray[np.uint8],
    offset: int,
    pattern: Pattern,
    mask: int,
    b: Operands,
    c: Operands,
    op: Operation,
    *,
    flush: bool,
) -> tuple[Values, bool]:
    """Apply the operation to lanes with distinct addresses at once; lanes that share an address take several rounds.

    Returns the old values and whether any byte changed.
    """
    access = op.access
    dtype = np.dtype(DTYPES[access.bits])
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
    """Group lanes by the number of lower lanes with the same index, so that a group holds each index at most once."""
    order = np.argsort(index, kind="stable")
    ranked = index[order]
    starts = np.concatenate(([True], ranked[1:] != ranked[:-1]))
    position = np.arange(index.size)
    nth = np.empty(index.size, np.intp)
    nth[order] = position - np.maximum.accumulate(np.where(starts, position, 0))
    return [np.flatnonzero(nth == number) for number in range(int(nth.max()) + 1)]


def _operands(values: Operands, mask: int, access: Access) -> NDArray[Any]:
    rows = np.zeros((32, access.count), DTYPES[access.bits])
    for column, value in enumerate(values):
        rows[:, column] = value
    return rows[lanes.bools(mask)]


def reduce_async(w: Warp, mask: int, address: Bits, b: Operands, barrier: Bits, op: Operation, at: int) -> None:
    """Execute ``red.async``: reduce each lane's value, then signal its bytes to the lane's mbarrier. Raises Fault."""
    machine = w.cta.launch.machine
    counters = w.cta.launch.counters
    access = op.access
    for target in locate_async(w, mask, address, barrier, access, at, written=True):

        def action(target: AsyncTarget = target) -> None:
            shared, start, where, signalled = target
            _one_by_one(shared.data, start, where.offsets, where.mask, b[0], 0, op)
            machine.changes += 1
            mbarrier.complete_lanes(signalled, access.size, where.active.size, source=(w, at))

        counters["cluster.atomic.requests"] += 1
        counters["cluster.atomic.lanes"] += target.where.active.size
        machine.asynchronous.submit(("red.async", w), action, what=access.opcode)
