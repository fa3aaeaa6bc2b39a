"""Asynchronous copies of 4, 8 or 16 bytes per lane from global to shared memory: ``cp.async``.

PTX ISA, "Data Movement and Conversion Instructions: Non-bulk copy", "cp.async", "cp.async.commit_group",
"cp.async.wait_group / wait_all", "cp.async.mbarrier.arrive".

- Both addresses are multiples of the size; ``.cg`` copies 16 bytes only. A smaller source size, or ``ignore-src``,
  reads only the source size and fills the rest of the destination with zeros.
- A group holds the copies that one thread issued since its last commit, so groups are tracked per lane. ``wait_group
  N`` waits until at most the N youngest groups of each lane are pending, ``wait_all`` until no copy is pending,
  committed or not. Empty groups count.
- ``cp.async.mbarrier.arrive`` arrives once per lane when the lane's earlier copies are complete; without ``.noinc`` it
  first increments the barrier's pending count by one per lane.

Addresses are checked at issue. Bytes are read and written when the copy runs, which a lazy schedule delays; until then
the destination counts as never written, so that a missing wait is found even if older bytes are there. Copies of one
warp run in issue order (the ISA guarantees none; the lazy schedule delays but does not reorder). A wait orders only the
copies of the waiting thread. Two lanes of one instruction that copy different sources to one destination are a finding;
equal sources are not, because NVIDIA's kernels do so where a tile has fewer elements than threads.

Counters: ``cp_async.requests``, ``cp_async.bytes`` (read from global memory), ``cp_async.sectors``,
``cp_async.sectors_least``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.finding import UNWRITTEN_SOURCE
from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.memory.access import Access
from pytest_nvfp4.sim.memory.forms import PREFETCHES
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.memory.locate import (
    by_region,
    gather,
    locate_global,
    locate_shared,
    mark_written,
    scatter,
    unwritten,
)
from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.memory.shared import InFlight, SharedMemory
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Immediate, Instruction, Register
from pytest_nvfp4.sim.run.waiting import wake_all
from pytest_nvfp4.sim.run.warp import Group, Warp
from pytest_nvfp4.sim.sync import mbarrier
from pytest_nvfp4.sim.sync.addresses import shared_address, shared_operand


@dataclass(slots=True, eq=False)
class _Copy:
    """One issued copy: the lanes that have not committed it, and whether it has run."""

    mask: int
    done: bool = False


class _CopyGroup(NamedTuple):
    """Committed copies: the lanes that committed, and each copy with the lanes that issued it."""

    members: int
    copies: list[tuple[int, _Copy]]


class CopyGroups:
    """A warp's asynchronous copies: ``pending`` are not committed, ``groups`` are committed, oldest first."""

    def __init__(self, warp: Warp) -> None:
        self.warp = warp
        self.pending: list[_Copy] = []
        self.groups: list[_CopyGroup] = []
        self.waiters: list[Group] = []

    def finish(self, copy: _Copy) -> None:
        """Mark a copy as done and wake the waiters."""
        copy.done = True
        wake_all(self)

    def commit(self, mask: int) -> None:
        """Commit the pending copies of these lanes as their youngest group."""
        copies = [(copy.mask & mask, copy) for copy in self.pending if copy.mask & mask and not copy.done]
        self.groups.append(_CopyGroup(mask, copies))
        for copy in self.pending:
            copy.mask &= ~mask
        self.pending = [copy for copy in self.pending if copy.mask and not copy.done]
        while self.groups and all(copy.done for _, copy in self.groups[0].copies):
            # Copies run in order, so completed groups are the oldest, and dropping them changes no count.
            self.groups.pop(0)

    def waits(self, mask: int, allowed: int | None) -> bool:
        """Return whether lanes have unfinished copies beyond their ``allowed`` youngest groups (None: any copies)."""
        if allowed is None:
            if any(copy.mask & mask and not copy.done for copy in self.pending):
                return True
            allowed = 0
        younger = np.zeros(32, np.intp)
        for members, copies in reversed(self.groups):
            old = lanes.bits_of(younger >= allowed) & members & mask
            if old and any(issuers & old and not copy.done for issuers, copy in copies):
                return True
            younger += lanes.bools(members)
        return False

    def waiting_for(self) -> str:
        """Describe the outstanding copies, for the report of a deadlock."""
        groups = [sum(not copy.done for _, copy in group.copies) for group in self.groups]
        return f"cp.async groups with {groups} outstanding copies, and {len(self.pending)} not committed"


class _Source(NamedTuple):
    """Lanes that read whole items from one region."""

    mask: int
    region: Region
    offset: int
    pattern: Pattern


class _ShortSource(NamedTuple):
    """A lane that reads fewer bytes than the copy's size."""

    lane: int
    region: Region
    offset: int
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class _CopyPlan:
    """A copy with checked addresses: ``sources`` and ``short`` are read, ``target`` at ``index`` is written."""

    sources: tuple[_Source, ...]
    short: tuple[_ShortSource, ...]
    mask: int
    index: int
    target: Pattern


def copy(
    w: Warp, mask: int, target: lanes.Bits, source: lanes.Bits, source_size: lanes.Bits, access: Access, at: int
) -> None:
    """Issue ``cp.async``: ``source_size`` of ``access.size`` bytes in each lane, then zeros. Raises Fault."""
    plan = _plan(w, mask, lanes.spread(target, 32), lanes.spread(source, 64), source_size, access)
    cta = w.cta
    machine = cta.launch.machine
    unit = w.unit(CopyGroups)
    issued = _Copy(mask)
    if machine.monitor is not None:
        sources: list[tuple[Region, int, Pattern | int]] = [(s.region, s.offset, s.pattern) for s in plan.sources]
        sources.extend((short.region, short.offset, short.size) for short in plan.short)
        machine.monitor.async_copied(w, at, plan.index, plan.target, sources)

    def action() -> None:
        _move(cta.shared, plan, access)
        if cta.shared.in_flight:
            for start, _ in _runs(plan.target.offsets, access.size):
                cta.shared.in_flight.pop((issued, start), None)
        machine.changes += 1
        unit.finish(issued)

    machine.asynchronous.submit(("cp.async", w), action, what=access.opcode)
    if not issued.done:
        unit.pending.append(issued)
        mark_written(cta.shared.written, plan.index, plan.target, access, value=False)
        for start, stop in _runs(plan.target.offsets, access.size):
            cta.shared.in_flight[issued, start] = InFlight(plan.index + start, stop - start, access.opcode)


def _plan(
    w: Warp, mask: int, target: NDArray[Any], source: NDArray[Any], source_size: lanes.Bits, access: Access
) -> _CopyPlan:
    size = access.size
    index, pattern = locate_shared(mask, target, w.cta.shared, access)
    if pattern.distinct != pattern.index.size:
        _check_lanes(w, pattern, source, source_size, access)
    short: list[_ShortSource] = []
    whole = mask
    if source_size.__class__ is not int or source_size != size:
        sizes = lanes.spread(source_size, 32)
        memory = w.cta.launch.machine.memory
        for lane in lanes.lanes(mask):
            many = int(sizes[lane])
            if many == size:
                continue
            whole &= ~(1 << lane)
            if many > size:
                raise Fault("cp.async", f"{access.opcode}: lane {lane}'s source size is {many}, above {size}")
            where = int(source[lane])
            if where % size:
                raise Fault(
                    "misaligned", f"{access.opcode}: lane {lane}'s source {where:#x} is not a multiple of {size}"
                )
            if many:
                what = f"{access.opcode}, lane {lane}"
                region = memory.region(where, many, write=False, what=what)
                if fault := region.unwritten(where - region.start, many, what=what, kind=UNWRITTEN_SOURCE):
                    w.cta.launch.report_fault(fault)
                short.append(_ShortSource(lane, region, where - region.start, many))
                _count(w, many, 1, 1)
    sources: list[_Source] = []
    parts = [whole] if whole else []
    while parts:
        part = parts.pop()
        located = locate_global(w, part, source, access, write=False)
        if located is None:
            parts.extend(by_region(w, part, source, access, write=False))
        else:
            region, offset, shape, low = located
            if region.initialised is not None and (missing := unwritten(region.initialised, offset, shape, access)):
                what = f"{access.opcode}, lane {missing.lane}"
                w.cta.launch.report_fault(region.uninitialised(missing.byte, what=what, kind=UNWRITTEN_SOURCE))
            sources.append(_Source(part, region, offset, shape))
            _count(w, shape.bytes_touched, shape.sectors(low), shape.least_sectors)
    w.does.add("load")
    w.cta.launch.counters["cp_async.requests"] += 1
    return _CopyPlan(tuple(sources), tuple(short), mask, index, pattern)


def _check_lanes(w: Warp, pattern: Pattern, source: NDArray[Any], source_size: lanes.Bits, access: Access) -> None:
    """Report two lanes that copy different sources to one destination."""
    sizes = lanes.spread(source_size, 32)
    seen: dict[int, int] = {}
    for lane, place in zip(pattern.active.tolist(), pattern.index.tolist(), strict=True):
        other = seen.setdefault(place, lane)
        if sizes[lane] != sizes[other] or (sizes[lane] and source[lane] != source[other]):
            w.cta.launch.report(
                "lanes-race",
                f"{access.opcode}: lanes {other} and {lane} of the warp copy from different addresses to the same "
                "bytes of shared memory; which of them remains is undefined",
                hint="check the layout of the threads over the tile",
            )
            return


def _count(w: Warp, size: int, sectors: int, least: int) -> None:
    counters = w.cta.launch.counters
    counters["cp_async.bytes"] += size
    counters["cp_async.sectors"] += sectors
    counters["cp_async.sectors_least"] += least


def _runs(offsets: NDArray[Any], size: int) -> list[tuple[int, int]]:
    """Return the runs of bytes [start, stop) that items of ``size`` bytes at the offsets cover."""
    runs: list[tuple[int, int]] = []
    for start in np.unique(offsets).tolist():
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], start + size)
        else:
            runs.append((start, start + size))
    return runs


def _move(shared: SharedMemory, plan: _CopyPlan, access: Access) -> None:
    size = access.size
    if len(plan.sources) == 1 and plan.sources[0].mask == plan.mask:
        _, region, offset, pattern = plan.sources[0]
        data = gather(region.data, offset, pattern, access)
    else:
        rows = np.zeros((32, size), np.uint8)
        for part, region, offset, pattern in plan.sources:
            rows[lanes.bools(part)] = gather(region.data, offset, pattern, access).view(np.uint8).reshape(-1, size)
        for lane, region, offset, many in plan.short:
            rows[lane, :many] = region.data[offset : offset + many]
        data = rows[lanes.bools(plan.mask)]
    shared.refuse_opaque(plan.index, plan.index + plan.target.span, what=access.opcode)
    scatter(shared.data, plan.index, plan.target, data, access)
    mark_written(shared.written, plan.index, plan.target, access)


def copy_unless(
    w: Warp, mask: int, target: lanes.Bits, source: lanes.Bits, ignored: lanes.Predicate, access: Access, at: int
) -> None:
    """Issue ``cp.async`` with ``ignore-src``: zeros in the lanes where the predicate holds. Raises Fault."""
    size = access.size
    many: lanes.Bits
    if isinstance(ignored, (bool, np.bool_)):
        many = 0 if ignored else size
    else:
        many = np.where(ignored, np.uint32(0), np.uint32(size))
    copy(w, mask, target, source, many, access, at)


def commit(w: Warp, mask: int) -> None:
    """Execute ``cp.async.commit_group``."""
    w.unit(CopyGroups).commit(mask)
    monitor = w.cta.launch.machine.monitor
    if monitor is not None:
        monitor.async_committed(w)


def wait(w: Warp, mask: int, allowed: int | None) -> bool | None:
    """Execute ``cp.async.wait_group`` (``allowed`` groups may be pending) or ``wait_all`` (None).

    Returns True once the wait is satisfied, None after the group was suspended.
    """
    unit = w.unit(CopyGroups)
    if not unit.waits(mask, allowed):
        monitor = w.cta.launch.machine.monitor
        if monitor is not None:
            monitor.async_waited(w, allowed)
        return True
    w.wait_for(unit)
    return None


def arrive(w: Warp, mask: int, address: lanes.Bits, increment: bool, generic: bool, opcode: str, at: int) -> None:
    """Execute ``cp.async.mbarrier.arrive``: one arrival per lane after the lane's copies. Raises Fault."""
    arrivals: Counter[mbarrier.Mbarrier] = Counter()
    for lane in lanes.lanes(mask):
        place = shared_address(lanes.value_in(address, lane), generic=generic, what=opcode)
        arrivals[mbarrier.resolve(w, place, cluster=False, what=f"{opcode}, lane {lane}")] += 1
    machine = w.cta.launch.machine
    for barrier, number in arrivals.items():
        if increment:
            if barrier.pending + number > mbarrier.COUNT_LIMIT:
                raise Fault("mbarrier", f"{opcode}: the pending count of the {barrier.name} exceeds its limit")
            barrier.pending += number
        if machine.monitor is not None:
            machine.monitor.async_arrives(w, at, barrier)

        def action(barrier: mbarrier.Mbarrier = barrier, number: int = number) -> None:
            mbarrier.arrive(barrier, number, who=(w, at))
            machine.changes += 1

        machine.asynchronous.submit(("cp.async", w), action, what=opcode)


# ---- lowering ----------------------------------------------------------------------------------------------------


def _cp_async(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins, 2)
    cache = read.one("ca", "cg")
    read.one("shared", "shared::cta")
    read.one("global")
    hinted = read.has("L2::cache_hint")
    read.maybe(*PREFETCHES)
    operands = list(read.end(3, 4, 5) if hinted else read.end(3, 4))
    if hinted and len(operands) > 3:
        e.value(operands.pop(), 64)
    target, source, many = operands[:3]
    sizes = (16,) if cache == "cg" else (4, 8, 16)
    if not isinstance(many, Immediate) or many.value not in sizes:
        raise read.refuse(f"the size must be one of {sizes}")
    access = e.constant(Access(ins.opcode, "global", 32, many.value // 4), "access")
    where = (shared_operand(e, target), e.address(source))
    last = operands[3] if len(operands) == 4 else None
    if isinstance(last, Register) and last.bits == 1:
        e.line(e.call(copy_unless, "w", e.mask, *where, e.predicate(last), access, str(e.at)))
        return
    size = str(many.value) if last is None else e.value(last, 32)
    e.line(e.call(copy, "w", e.mask, *where, size, access, str(e.at)))


def _commit(ins: Instruction, e: Emitter) -> None:
    OpcodeReader(ins, 3).end(0)
    e.line(e.call(commit, "w", e.mask))


def _wait(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins, 3)
    allowed = "None"
    if ins.parts[2] == "wait_group":
        allowed = str(read.immediate(read.end(1)[0], "the number of groups"))
    else:
        read.end(0)
    e.park_if_none(e.temporary(e.call(wait, "w", e.mask, allowed)))


def _arrive(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins, 4)
    increment = not read.has("noinc")
    generic = not read.has("shared", "shared::cta")
    read.one("b64")
    (barrier,) = read.end(1)
    e.line(e.call(arrive, "w", e.mask, e.address(barrier), str(increment), str(generic), repr(ins.opcode), str(e.at)))


LOWERINGS: Mapping[str, Lowering] = {
    "cp.async": _cp_async,
    "cp.async.commit_group": _commit,
    "cp.async.wait_group": _wait,
    "cp.async.wait_all": _wait,
    "cp.async.mbarrier.arrive": _arrive,
}
BLOCKING = frozenset({"cp.async.wait_group", "cp.async.wait_all"})
