"""The race detector's state of one launch: divisions of its memories, synchronisation variables, findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from functools import partial as partial_of
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.sim.lanes import FULL
from pytest_nvfp4.sim.monitor import PipeAccesses
from pytest_nvfp4.sim.races.access import ASYNC, Access
from pytest_nvfp4.sim.races.access_pair import ALLOC_FENCE, COPY_FENCE, PENDING_LD, PROXY, RACE, WARNING, AccessPair
from pytest_nvfp4.sim.races.clocks import Agent, Clocks
from pytest_nvfp4.sim.races.dead_reads import DeadReads, RacingRead
from pytest_nvfp4.sim.races.early_use import early_uses
from pytest_nvfp4.sim.races.findings import Reporter
from pytest_nvfp4.sim.races.global_shadow import GlobalConflict, GlobalShadow
from pytest_nvfp4.sim.races.joins import Joins
from pytest_nvfp4.sim.races.lane_order import LaneItems, LaneOrder, PartialRelease
from pytest_nvfp4.sim.races.launch_overlap import LaunchOverlap
from pytest_nvfp4.sim.races.map_findings import MapPair, pairs_of_processes, report_shared_map, report_unread_map
from pytest_nvfp4.sim.races.map_uses import MapAccesses, MapUses
from pytest_nvfp4.sim.races.memo import Memo
from pytest_nvfp4.sim.races.names import AgentInfo, WarpId
from pytest_nvfp4.sim.races.orders import Order, order_of
from pytest_nvfp4.sim.races.partition import Partition
from pytest_nvfp4.sim.races.pending_loads import pending_loads
from pytest_nvfp4.sim.races.relaxed_arrives import RelaxedArrives
from pytest_nvfp4.sim.races.scopes import NarrowScopes, acquires_in_cta, arrives_in_cta
from pytest_nvfp4.sim.races.shadow import Conflict
from pytest_nvfp4.sim.races.sync_variables import SyncVariables
from pytest_nvfp4.sim.races.tensor_order import Omissions, ordered_by_fences
from pytest_nvfp4.sim.races.ticks import ASYNC_GLOBAL, ASYNC_SHARED, BEFORE, VISIBLE, Ticks
from pytest_nvfp4.sim.races.touched import READ, STRONG_READ, TouchedBytes, TouchedExtent, TouchedRegion, TouchedUnits
from pytest_nvfp4.sim.races.users import ThreadGuards
from pytest_nvfp4.sim.races.warp_lanes import LaneRace, matrix_of, touching_lanes
from pytest_nvfp4.sim.run.grid import Grid

LANES_PER_UNIT = 16
"""Lanes of one TMEM unit: every shape of every instruction has a multiple of 16 lanes, or is alone in its 32."""
_COLUMNS = 512
"""TMEM capacity in columns (PTX ISA, "Tensor Memory Addressing": 128 lanes by 512 columns)."""
_UNITS_PER_COLUMN = 128 // LANES_PER_UNIT
_STORES = frozenset({"st", "stmatrix"})
"""Roots of the instructions that store registers."""


class TensorParts(NamedTuple):
    """The parts that an operation of the tensor core touches: of shared memory (read), of TMEM (read and written)."""

    shared: Sequence[int]
    reads: Sequence[int]
    writes: Sequence[int]


@dataclass(frozen=True, slots=True)
class ChildReport:
    """What a child process reports to the parent process.

    Attributes:
        findings: Its findings, by the keys of ``findings.Reporter``.
        touched: How it touched writable regions.
        read: By address of a read-only region, the last instruction that read it.
        maps: The last accesses to tensor maps.
    """

    findings: dict[tuple[object, ...], Finding]
    touched: list[TouchedUnits] = field(default_factory=list)
    read: dict[int, int] = field(default_factory=dict)
    maps: list[MapAccesses] = field(default_factory=list)


class LaunchRaces:
    """The detector's state of a launch: ``launch.unit(LaunchRaces)``.

    Attributes:
        warnings: Whether instructions that official kernels omit are reported.
        followed: Whether the launch is compared with work of other streams, so that what it touches is recorded.
        shared, tmem: Divisions of the memories.
        memory, variables: The accesses to global memory, and its flags and counters.
        infos: By cluster, the descriptions of its agents.
        lane_sets: By cluster and agent of a set of a warp's lanes, what the lanes release.
        omissions: The missing tcgen05 instructions that were reported.
        overlap: Check against the previous launch, if that may still run.
        maps: By address, the uses of the tensor maps in writable memory.
        unacquired_map_reported: Whether a map was reported that its CTA had not acquired.
        bulk_waits: By warp, how many of its tensor loads it had issued at its last wait for bulk groups.
        tensor_parts: The parts that operations of the tensor core touch.
        joins: Joins of copies of clocks.
        order, relaxed: By instruction, its memory order, and whether it is ``.relaxed``.
        non_coherent: By load, whether it is ``.nc``.
        arrives_in_cta, acquires_in_cta: By mbarrier instruction, whether its scope is ``.cta``.
        narrow_scopes: Those that were executed and leave out a CTA.
        relaxed_arrives: The arrives that were executed and order no memory.
        users: By weak load, the mask of the lanes that can use its value, by warp; None if all may (``users``).
        matrix: By instruction, how its lanes hold what they access in shared memory (``warp_lanes``).
        tensor_kind: By tcgen05 instruction, its operation (``mma``, ``cp``, ``ld`` ...), and the kind of an MMA.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.warnings = bool(getattr(grid.machine.monitor, "warnings", False))
        self.followed = bool(getattr(grid.machine.monitor, "followed", False))
        self.shared = Partition(max(1, grid.shared_bytes))
        self.tmem = Partition(_COLUMNS * _UNITS_PER_COLUMN)
        self.memory = GlobalShadow(self.global_conflict)
        self.joins = Joins()
        self.variables = SyncVariables(self.joins)
        self.reporter = Reporter(grid)
        self.dead_reads = DeadReads(grid, self.reporter)
        self.infos: dict[int, list[AgentInfo]] = {}
        self.lane_sets = Memo[int, dict[int, LaneOrder]](lambda _: {})
        self.omissions = Omissions()
        self.overlap: LaunchOverlap | None = None
        self.maps: dict[int, MapUses] = {}
        self.unacquired_map_reported = False
        self.bulk_waits: dict[WarpId, int] = {}
        self.tensor_parts: dict[PipeAccesses, TensorParts] = {}
        instructions = grid.kernel.instructions
        self.order = Memo[int, Order](lambda at: order_of(instructions[at]))
        self.non_coherent = Memo[int, bool](lambda at: "nc" in instructions[at].parts)
        self.relaxed = Memo[int, bool](lambda at: "relaxed" in instructions[at].parts)
        self.arrives_in_cta = Memo[int, bool](lambda at: arrives_in_cta(instructions[at]))
        self.acquires_in_cta = Memo[int, bool](lambda at: acquires_in_cta(instructions[at]))
        self.narrow_scopes = NarrowScopes(grid)
        self.relaxed_arrives = RelaxedArrives(grid)
        self.users = Memo[int, tuple[int, ...] | None](
            lambda at: None if self.order[at].strong else self._guards.users(grid.program.uses(at))
        )
        self.matrix = Memo[int, int](lambda at: matrix_of(instructions[at]))
        self.tensor_kind = Memo[int, tuple[str, str]](lambda at: _tensor_kind(instructions[at].parts))
        self._early_lines: set[str] = set()
        self._children: list[TouchedUnits] = []
        self._child_maps: list[MapAccesses] = []

    @cached_property
    def _early_uses(self) -> dict[int, int]:
        return early_uses(self.grid.program.flow)

    @cached_property
    def pending_loads(self) -> Mapping[int, frozenset[int]]:
        """By arrive, the loads of shared memory and TMEM that may be pending then."""
        return pending_loads(self.grid.program.flow, self.grid.program.liveness)

    @cached_property
    def _guards(self) -> ThreadGuards:
        return ThreadGuards(self.grid.kernel, self.grid.block)

    @cached_property
    def changes_maps(self) -> bool:
        """Whether the kernel modifies tensor maps, by instructions of their own or by stores and a proxy fence."""
        return any(
            instruction.root == "tensormap" or "tensormap::generic" in instruction.parts
            for instruction in self.grid.kernel.instructions
        )

    # ---- what the launch touches -------------------------------------------------------------------------------------

    def touched(self) -> list[TouchedBytes]:
        """Return the global memory that the launch has touched, in all of its processes."""
        regions = {region.start: region for region in self.grid.machine.memory}
        result: dict[int, TouchedRegion] = {}
        for units in (*self.memory.touched(), *self._children):
            if units.start in result:
                result[units.start].add(self._with_atomic_reads(units))
            elif units.start in regions:
                region = regions[units.start]
                result[units.start] = TouchedRegion(region, self._with_atomic_reads(units), self.grid.place)
        read = [
            TouchedExtent(Extent(region.start, region.size), READ, self.grid.place(region.read_at))
            for region in regions.values()
            if region.read_at >= 0 and not region.writable
        ]
        return [*result.values(), *read]

    def _with_atomic_reads(self, units: TouchedUnits) -> TouchedUnits:
        """Add the reads of ``atom`` instructions, which are recorded as writes only; a ``red`` does not read."""
        touching = np.flatnonzero(np.bincount(units.at)).tolist()
        atoms = [at for at in touching if at and self.grid.kernel.instructions[at - 1].root == "atom"]
        if not atoms:
            return units
        kinds = np.where(np.isin(units.at, atoms), units.kinds | STRONG_READ, units.kinds).astype(np.uint8)
        return units._replace(kinds=kinds)

    def settle(self) -> None:
        """Withdraw the races whose reads were never used."""
        self.reporter.settle()

    def begin_part(self) -> None:
        """Forget the findings in a forked process."""
        self.reporter.begin_part()

    def part(self) -> ChildReport:
        """Return the report of this child process."""
        report = ChildReport(self.reporter.part(), maps=self._map_accesses())
        if self.followed:
            report.touched.extend(units for units in self.memory.touched() if units.kinds.any())
            report.read.update(
                {region.start: region.read_at for region in self.grid.machine.memory if region.read_at >= 0}
            )
        return report

    def _map_accesses(self) -> list[MapAccesses]:
        return [MapAccesses(address, uses.write, uses.use) for address, uses in self.maps.items()]

    def absorb(self, report: ChildReport) -> None:
        """Add the report of a child process."""
        self.reporter.absorb(report.findings)
        self._child_maps = self._child_maps or self._map_accesses()
        for pair in pairs_of_processes(self._child_maps, report.maps):
            report_shared_map(self.reporter, self._map_name(pair.address), pair)
        self._child_maps += report.maps
        self._children += report.touched
        for region in self.grid.machine.memory:
            region.read_at = report.read.get(region.start, region.read_at)

    # ---- findings ----------------------------------------------------------------------------------------------------

    def shared_conflict(self, conflict: Conflict) -> None:
        """Report two accesses to shared memory that lack an order."""
        shadow, old = conflict.shadow, conflict.old
        low, high, size = self.shared.extent(conflict.part)
        lanes = self.lane_sets[shadow.clocks.number].get(old.agent)
        partial: PartialRelease | None = None
        pending = conflict.proxy and not conflict.old_writes
        if pending and (wrote := shadow.writes[conflict.part]) is not None and self._allocates(wrote.at):
            return  # Triton's code overwrites the address of TMEM by TMA, long after all warps have loaded it
        if lanes is not None and isinstance(old.detail, LaneItems) and not pending:
            touching = touching_lanes(old.detail, self.shared.units(conflict.part))
            proxy = conflict.old_writes and conflict.new.flags & ASYNC
            ordered = lanes.orders(
                conflict.ticks, old.agent, old.tick, touching, VISIBLE if conflict.old_writes else BEFORE
            )
            visible = not proxy or lanes.orders(conflict.ticks, old.agent, old.tick, touching, ASYNC_SHARED)
            if ordered and visible:
                return
            conflict = replace(conflict, proxy=ordered)
            partial = None if ordered else lanes.released(conflict.ticks, old.tick)
        place = f"{shadow.name} bytes [{low}, {high})" + ("" if size == high - low else f" ({size} bytes of them)")
        if conflict.proxy and shadow.clocks.infos[old.agent].kind == "cp.async":
            self._pair(conflict, WARNING, place, missing=(COPY_FENCE,))
        elif conflict.proxy and self._allocates(old.at):
            self._pair(conflict, WARNING, place, missing=(ALLOC_FENCE,))
        else:
            kind, read = PROXY if conflict.proxy else RACE, self._shared_read(conflict)
            again = partial_of(self._pair, conflict, RACE, place, partial=partial)
            if self._stores_again(old, conflict.new, writes=conflict.old_writes, then=again):
                return
            if not self._pair(conflict, kind, place, partial=partial, read=read):
                return
        if not pending:
            _count_as_ordered(shadow.clocks, conflict.ticks, old, ASYNC_SHARED if conflict.proxy else None)

    def _allocates(self, at: int) -> bool:
        return self.grid.kernel.instructions[at].root == "tcgen05"

    def tmem_conflict(self, conflict: Conflict) -> None:
        """Report two accesses to tensor memory that lack an order or a tcgen05 instruction."""
        shadow, old, new = conflict.shadow, conflict.old, conflict.new
        if not conflict.missing and not conflict.proxy and ordered_by_fences(old, new):
            return
        low, high, _ = self.tmem.extent(conflict.part)
        first, last = low // _UNITS_PER_COLUMN, (high - 1) // _UNITS_PER_COLUMN
        lane = low % _UNITS_PER_COLUMN * LANES_PER_UNIT
        place = f"{shadow.name} columns [{first}, {last + 1}) from lane {lane} on"
        if conflict.missing:
            self._pair(conflict, WARNING, place, missing=conflict.missing)
            return
        if conflict.proxy:
            self._pair(conflict, RACE, place, missing=(PENDING_LD,))
            return
        read = None if conflict.new_writes else RacingRead(new, earlier=False, lanes=self.dead_reads.lanes_now())
        if self._pair(conflict, RACE, place, read=read):
            _count_as_ordered(shadow.clocks, conflict.ticks, old, None)

    def _shared_read(self, conflict: Conflict) -> RacingRead | None:
        """Return the read of a conflict in shared memory that may be dead."""
        if not conflict.new_writes:
            detail = conflict.new.detail
            if isinstance(detail, LaneItems):
                touching = touching_lanes(detail, self.shared.units(conflict.part))
                return RacingRead(conflict.new, earlier=False, lanes=touching)
            return RacingRead(conflict.new, earlier=False, lanes=self.dead_reads.lanes_now())
        if conflict.old_writes or conflict.old.agent in conflict.shadow.mixed:
            return None
        return RacingRead(conflict.old, earlier=True, lanes=FULL)

    def lanes_conflict(self, agent: Agent, race: LaneRace, new: Access, place: str, *, writes: bool) -> None:
        """Report a race of two lanes of a warp."""
        old = Access(agent.number, new.tick, 0, race.access.at, new.warp)
        self.reporter.pair(AccessPair(RACE, place, old, new, agent.info, agent.info, race.writes, writes))

    def _map_conflict(self, conflict: GlobalConflict) -> None:
        """Report two accesses to a tensor map that lack an order."""
        old, new = conflict.old, conflict.new
        address = conflict.shadow.region.start + conflict.offset
        name = self._map_name(address)
        if old.warp.cta != new.warp.cta:
            pair = MapPair(address, old, conflict.old_writes, new, conflict.new_writes)
            report_shared_map(self.reporter, name, pair)
            return
        infos = self.infos[new.warp.cluster]
        if (
            infos[old.agent].kind == "map-load"
            and old.warp is new.warp
            and self.bulk_waits.get(old.warp, 0) >= old.tick
        ):
            report_unread_map(self.reporter, name, old, new)
        else:
            self.reporter.pair(
                AccessPair(
                    RACE, f"tensor map {name}", old, new, infos[old.agent], infos[new.agent], conflict.old_writes,
                    conflict.new_writes,
                )
            )  # fmt: skip
        _count_as_ordered(None, conflict.clock.ticks, old, None)

    def _map_name(self, address: int) -> str:
        region = self.grid.machine.memory.find(address)
        return region.place(address) if region is not None else f"{address:#x}"

    def check_early_use(self, warp: WarpId, at: int) -> None:
        """Report a use of the registers of an executed ``tcgen05.ld`` before a wait."""
        use = self._early_uses.pop(at, None)
        line = self.reporter.messages.line(at)
        if use is None or line in self._early_lines:
            return
        self._early_lines.add(line)
        self.reporter.other(
            WARNING,
            f"{self.grid.place(use)} in {warp} uses a register that {line} (tcgen05.ld) in {warp} loads, on a path "
            "without tcgen05.wait::ld: the PTX ISA respects this true dependency, so the value is right, but orders "
            "nothing else by it; official kernels omit the wait",
            f"<tcgen05.wait::ld> in {warp} after {line}",
            warp=warp,
            at=use,
        )

    def _stores_again(
        self,
        old: Access,
        new: Access,
        *,
        writes: bool,
        then: Callable[[], object],
        both: NDArray[np.intp] | None = None,
    ) -> bool:
        """Call ``then`` behind a store that changes bytes which another warp has stored by the same statement.

        Two warps that store equal values by the same statement are not reported: the bytes are the same in any order
        (PTX ISA, "Memory Consistency Model": a race of accesses of one size is not undefined). NVIDIA's kernels do so,
        and so does the code that Triton makes for warp specialisation and for tiles of which several warps hold copies.

        Args:
            old, new: The two accesses.
            writes: Whether the earlier one is a write.
            then: What to do.
            both: The bytes that both touch, by their offsets in the memory; None for those of the whole memory.

        Returns:
            Whether that decides.
        """
        monitor = self.grid.machine.monitor
        data = None if monitor is None else monitor.storing
        store = self.grid.kernel.instructions[new.at]
        same = writes and not old.flags and self.grid.place(old.at) == self.grid.place(new.at)
        if data is None or monitor is None or not same or store.root not in _STORES or "bulk" in store.opcode:
            return False
        where = slice(None) if both is None else both[both < data.size]
        before = data[where].copy()
        monitor.doubts.append(lambda: None if (data[where] == before).all() else then())
        return True

    def global_conflict(self, conflict: GlobalConflict) -> None:
        """Report two accesses to global memory that lack an order."""
        region, old, new = conflict.shadow.region, conflict.old, conflict.new
        instructions = self.grid.kernel.instructions
        if conflict.map_use or "tensormap" in (instructions[old.at].root, instructions[new.at].root):
            self._map_conflict(conflict)
            return
        foreign = old.warp.cluster != new.warp.cluster
        pair = AccessPair(
            PROXY if conflict.proxy else RACE,
            f"global memory at {region.place(region.start + conflict.offset)}",
            old,
            new,
            self.infos[old.warp.cluster][old.agent],
            self.infos[new.warp.cluster][new.agent],
            conflict.old_writes,
            conflict.new_writes,
            foreign=foreign,
            scope=None
            if foreign or not conflict.old_writes
            else self.narrow_scopes.missing(old, new, conflict.clock.ticks),
        )
        if self._stores_again(
            old, new, writes=conflict.old_writes, then=lambda: self.reporter.pair(pair), both=conflict.bytes
        ):
            return
        read = None if conflict.new_writes else RacingRead(new, earlier=False, lanes=self.dead_reads.lanes_now())
        if self.dead_reads.report(pair, read) and not foreign:
            _count_as_ordered(None, conflict.clock.ticks, old, ASYNC_GLOBAL if conflict.proxy else None)

    def _pair(
        self,
        conflict: Conflict,
        kind: str,
        place: str,
        *,
        missing: tuple[str, ...] = (),
        partial: PartialRelease | None = None,
        read: RacingRead | None = None,
    ) -> bool:
        """Report a conflict; ``read`` and the result are those of ``DeadReads.report``."""
        clocks, old, new = conflict.shadow.clocks, conflict.old, conflict.new
        witness = _witness(clocks, old, new) if kind == RACE else None
        narrow = kind == RACE and conflict.old_writes
        scope = self.narrow_scopes.missing(old, new, conflict.ticks) if narrow else None
        if narrow and scope is None and new.use is None:
            scope = self.relaxed_arrives.missing(old, new, threads=clocks.infos[old.agent].kind == "warp")
        copied = clocks.infos[old.agent].kind == "mbarrier"
        pair = AccessPair(
            kind, place, old, new, clocks.infos[old.agent], clocks.infos[new.agent], conflict.old_writes,
            conflict.new_writes, witness=witness, missing=missing, partial=partial,
            scope=scope, waited=int(conflict.ticks[BEFORE, old.agent]) if copied else 0,
        )  # fmt: skip
        return self.dead_reads.report(pair, read)


def _tensor_kind(parts: tuple[str, ...]) -> tuple[str, str]:
    return parts[1], next((part for part in parts if part.startswith("kind::")), "")


def _witness(clocks: Clocks, old: Access, new: Access) -> WarpId | None:
    """Return a warp that has waited for an asynchronous access: its issuer, or else one that did not make the later."""
    if clocks.infos[old.agent].kind == "warp":
        return None
    witnesses = [
        agent.info.warp
        for agent in clocks.agents.values()
        if agent.info.kind == "warp" and agent.info.warp is not new.warp and agent.has_seen(old.agent, old.tick)
    ]
    return next((warp for warp in witnesses if warp is old.warp), witnesses[0] if witnesses else None)


def _count_as_ordered(clocks: Clocks | None, ticks: Ticks, old: Access, row: int | None) -> None:
    """Order a reported access, and everything before it, before a clock, so that consequences are not reported.

    ``row`` restricts this to one row, for a missing proxy fence.
    """
    earlier = clocks.agents.get(old.agent) if clocks is not None and row is None else None
    if earlier is not None and earlier.clock.ticks.shape == ticks.shape:
        np.maximum(ticks, earlier.clock.ticks, out=ticks)
        if earlier.asynchronous:
            earlier.next_tick()
        else:
            earlier.advance()
    rows = slice(None) if row is None else slice(row, row + 1)
    column = ticks[rows, old.agent]
    np.maximum(column, old.tick, out=column)
