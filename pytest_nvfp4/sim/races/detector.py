"""The race detector: a monitor that orders every access of a launch by happens-before.

Rules, with where they come from:

- An access is checked against the past of whoever *issues* it. The operations of a tcgen05 pipe follow each other
  (PTX ISA, "tcgen05 memory consistency model", pipelined instructions); copies do not, even on one mbarrier.
- Edges: mbarrier arrive (release) to a wait that succeeds (acquire), unless ``.relaxed``; complete-tx at a barrier makes
  the copy's data visible to who waits for the phase; ``tcgen05.commit`` arrives when all before it in the pipe is done;
  named barriers and the cluster barrier; the ``wait_group`` of ``cp.async``, of bulk stores (``.read``: of their reads)
  and of ``wgmma``; ``tcgen05.wait::st``; release and acquire patterns through memory (``sync_variables``).
- What one warp does in program order is ordered; lanes that race inside one instruction are found by ``memory``.
- The async proxy sees a generic write only behind a ``fence.proxy.async`` ("Proxies"). A generic read before an
  asynchronous write needs none, and neither does an asynchronous write that was waited for: no kernel of NVIDIA's has
  one there.
- ``mbarrier.init`` happens before every other use of the barrier.
- Not errors, because official kernels do without: ``tcgen05.wait::ld`` before the arrive that gives an accumulator
  away, and the ``fence.mbarrier_init`` or proxy fence behind ``mbarrier.init``. With ``warnings`` they are told.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.lanes import lanes
from pytest_nvfp4.sim.monitor import READ
from pytest_nvfp4.sim.races.access import ASYNC, STRONG, Access
from pytest_nvfp4.sim.races.agents import BarrierState, BulkThread, ClusterAgents, WarpAgent
from pytest_nvfp4.sim.races.clocks import ASYNC_SHARED, BEFORE, INITS, Agent, Clock
from pytest_nvfp4.sim.races.findings import RACE, WARNING
from pytest_nvfp4.sim.races.launch import LANES_A_UNIT, CtaMemory, LaunchRaces, Step
from pytest_nvfp4.sim.races.orders import CLUSTER, CTA, fence_of
from pytest_nvfp4.sim.races.partition import Footprint
from pytest_nvfp4.sim.races.sync_variables import Known, known_by

if TYPE_CHECKING:
    from pytest_nvfp4.sim.memory.globals import Region
    from pytest_nvfp4.sim.memory.pattern import Pattern
    from pytest_nvfp4.sim.memory.shared import SharedMemory
    from pytest_nvfp4.sim.run.cta import Cta
    from pytest_nvfp4.sim.run.grid import Grid
    from pytest_nvfp4.sim.run.warp import Warp
    from pytest_nvfp4.sim.sync.mbarrier import Mbarrier, Who
    from pytest_nvfp4.sim.tcgen05.monitor import Box, Touched
    from pytest_nvfp4.sim.tma import tile
    from pytest_nvfp4.sim.tma.issue import Target
    from pytest_nvfp4.sim.wgmma.operation import Operation
    from pytest_nvfp4.sim.wgmma.unit import Warpgroup

__all__ = ["Detector"]

_ONE = np.zeros(1, np.intp)
_make = partial(tuple.__new__, Access)
"""An ``Access`` of a tuple of all its fields, in half the time."""


class Detector:
    """The monitor. It keeps nothing itself: what it knows lies with the launch, its clusters, CTAs and warps.

    Args:
        warnings: Tell also what official kernels leave out.
    """

    def __init__(self, *, warnings: bool = False) -> None:
        self.warnings = warnings

    # ---- where things are ----------------------------------------------------------------------------------------

    def launched(self, grid: Grid) -> None:
        """Make the launch's part before processes fork."""
        grid.unit(LaunchRaces)

    def _warp(self, w: Warp) -> WarpAgent:
        found: WarpAgent | None = w.units.get(WarpAgent)
        if found is None:
            memory = w.cta.unit(CtaMemory)
            found = w.units[WarpAgent] = WarpAgent(memory.agents, w)
            found.launch, found.memory = memory.launch, memory
        return found

    @staticmethod
    def _memory(cta: Cta) -> CtaMemory:
        return cta.units.get(CtaMemory) or cta.unit(CtaMemory)

    # ---- fences --------------------------------------------------------------------------------------------------

    def fence(self, w: Warp, mask: int, kind: str, at: int) -> None:
        """A fence of any kind, or a tcgen05 wait."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        if kind.startswith("proxy.async"):
            everywhere = kind == "proxy.async"
            agent.fence_proxy(shared=not kind.endswith(".global"), everywhere=everywhere)
        elif kind.startswith("tcgen05."):
            if kind.endswith("wait::st"):
                if agent.st >= 0:
                    agent.st_known = agent.st_issued
                    agent.learn(agent.st, agent.st_issued)
            elif kind.endswith("wait::ld") and agent.ld >= 0:
                agent.learn(agent.ld, agent.ld_issued)
        elif kind.startswith("mbarrier_init"):
            agent.fence_inits()
            for state in agent.agents.barriers.values():
                if state.init is not None and state.init[0] == agent.number:
                    state.fenced = True
        else:
            scope = fence_of(kind)
            if scope is not None:
                agent.thread.fence(agent, scope)

    def warp_met(self, w: Warp, mask: int, at: int) -> None:
        """A warp is one agent: its lanes are ordered anyway."""

    # ---- mbarriers -----------------------------------------------------------------------------------------------

    def mbarrier_initialised(self, barrier: Mbarrier, who: Who) -> None:
        """The barrier's history begins."""
        assert not isinstance(who, str)
        agent = self._warp(who[0])
        state = BarrierState(agent.clocks, barrier)
        agent.agents.barriers[barrier] = state
        state.init = (agent.number, agent.epoch())
        state.at = who[1]
        state.who = agent.who
        agent.met.add(state.number)

    def _use(self, agent: WarpAgent, state: BarrierState, barrier: Mbarrier, at: int) -> None:
        """Whoever uses a barrier knows of its initialisation."""
        if state.number in agent.met:
            return
        agent.met.add(state.number)
        ticks = agent.clock.ticks
        if state.init is None or max(ticks[BEFORE, state.init[0]], ticks[INITS, state.init[0]]) >= state.init[1]:
            return
        grid = barrier.cta.launch
        self._launch_of(barrier).reporter.other(
            RACE,
            f"{grid.say(at)} in {agent.who} uses the {barrier.name}, and nothing orders it after the initialisation at "
            f"{grid.say(state.at)} in {state.who}",
            "a barrier of the CTA (or of the cluster, for a peer's) between mbarrier.init and the first use",
            who=agent.who,
            at=at,
        )

    def _use_beside(self, agent: WarpAgent, state: BarrierState, barrier: Mbarrier, at: int) -> None:
        """The async proxy, or another CTA, uses a barrier."""
        self._use(agent, state, barrier, at)
        if not self.warnings or state.init is None or state.fenced:
            return
        number, tick = state.init
        if agent.clock.ticks[ASYNC_SHARED, number] < tick:
            state.fenced = True
            grid = barrier.cta.launch
            self._launch_of(barrier).reporter.other(
                WARNING,
                f"{grid.say(at)} in {agent.who} uses the {barrier.name} through the async proxy, and no "
                f"fence.mbarrier_init or fence.proxy.async follows its initialisation at {grid.say(state.at)}",
                "cute.arch.mbarrier_init_fence() after the barriers are initialised",
                who=agent.who,
                at=at,
            )

    @staticmethod
    def _launch_of(barrier: Mbarrier) -> LaunchRaces:
        return barrier.cta.launch.unit(LaunchRaces)

    def mbarrier_arrived(self, barrier: Mbarrier, who: Who, count: int) -> None:
        """A release into the barrier."""
        if isinstance(who, str):
            self._arrived_beside(barrier)
            return
        w, at = who
        agent = w.units.get(WarpAgent) or self._warp(w)
        state = agent.agents.barrier(barrier)
        if state.number not in agent.met:
            self._use(agent, state, barrier, at)
        if state.commits and w.cta.launch.kernel.instructions[at].opcode.startswith("cp.async"):
            _arrive_known(state, state.commits.popleft())
        elif agent.launch.relaxed(at):
            _release_relaxed(agent, state.arrived)
        else:
            state.join(agent)

    def _arrived_beside(self, barrier: Mbarrier) -> None:
        state = barrier.cta.cluster.unit(ClusterAgents).barrier(barrier)
        if state.commits:
            _arrive_known(state, state.commits.popleft())

    def mbarrier_bytes(self, barrier: Mbarrier, who: Who, size: int) -> None:
        """The data of the phase's copies are visible to whoever waits for it."""
        state = barrier.cta.cluster.unit(ClusterAgents).barrier(barrier)
        state.arrived.ticks[:, state.number] = barrier.phase + 1

    def mbarrier_completed(self, barrier: Mbarrier) -> None:
        """What was released so far is there for waiters."""
        barrier.cta.cluster.unit(ClusterAgents).barrier(barrier).finish()

    def mbarrier_waited(self, w: Warp, mask: int, barrier: Mbarrier, at: int) -> None:
        """An acquire from the barrier's last complete phase."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        state = agent.agents.barrier(barrier)
        if state.number not in agent.met:
            self._use(agent, state, barrier, at)
        complete = state.complete
        if complete is not None:
            if agent.launch.relaxed(at):
                known: Known = {agent.clocks.number: complete.ticks.copy()}
                agent.thread.seen[id(known)] = (CTA if barrier.cta is w.cta else CLUSTER, known)
            else:
                agent.acquire(complete)

    # ---- other barriers ------------------------------------------------------------------------------------------

    def barrier_arrived(self, w: Warp, mask: int, barrier: Any, at: int) -> None:
        """A release into the round."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        arrived = agent.agents.round(barrier).arrived
        if agent.launch.relaxed(at):
            _release_relaxed(agent, arrived)
        else:
            agent.release(arrived)

    def barrier_completed(self, barrier: Any) -> None:
        """What was released so far is there for whoever leaves."""
        cluster = barrier.cluster if hasattr(barrier, "cluster") else barrier.cta.cluster
        cluster.unit(ClusterAgents).round(barrier).finish()

    def barrier_passed(self, w: Warp, mask: int, barrier: Any, at: int) -> None:
        """An acquire of the round."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        agent.acquire(agent.agents.round(barrier).complete)

    # ---- the warps' own accesses ---------------------------------------------------------------------------------

    def shared_accessed(
        self, w: Warp, at: int, shared: SharedMemory, index: int, where: Pattern | int, kind: int
    ) -> None:
        """A warp accesses shared memory."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        cta = w.cta
        if shared is not cta.shared:
            cta = cta.cluster.ctas[shared.rank]
        launch = agent.launch
        memory = self._memory(cta)
        footprint = launch.shared.find((index, where)) or _shared_footprint(launch, index, where)
        order = launch.order(at)
        access = _make((agent.number, agent.epoch(), STRONG if order.strong else 0, at, agent.who, None, None))
        ticks = agent.clock.ticks
        if kind == READ:
            memory.shared.read(footprint.parts, access, ticks)
        else:
            memory.shared.write(footprint.parts, access, ticks)
        if order.strong:
            for offset in (0,) if where.__class__ is int else set(where.offsets.tolist()):  # type: ignore[union-attr]
                launch.variables.access(
                    (agent.who.cluster, cta.rank, index + offset), agent, agent.thread, agent.who, order,
                    write=kind != READ,
                )  # fmt: skip

    def global_accessed(self, w: Warp, at: int, region: Region, offset: int, where: Pattern | int, kind: int) -> None:
        """A warp accesses global memory."""
        if not region.writable:
            return
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        order = launch.order(at)
        access = _make((agent.number, agent.epoch(), STRONG if order.strong else 0, at, agent.who, None, None))
        memory = launch.memory
        shadow = memory.shadow(region)
        if kind == READ and not shadow.written and not order.strong:
            memory.read_early(shadow, offset, where, access)
            return
        if where.__class__ is int:
            offsets: NDArray[np.intp] = _ONE + offset
            size: int = where  # type: ignore[assignment]
        elif where.dense:  # type: ignore[union-attr]
            offsets, size = _ONE + offset, where.span  # type: ignore[union-attr]
        else:
            offsets, size = where.offsets + offset, where.size  # type: ignore[union-attr]
        if kind == READ:
            memory.read(shadow, offsets, size, access, agent.clock)
        else:
            memory.write(shadow, offsets, size, access, agent.clock)
        if order.strong:
            items = [offset] if where.__class__ is int else set((where.offsets + offset).tolist())  # type: ignore[union-attr]
            for one in items:
                launch.variables.access(
                    region.start + one, agent, agent.thread, agent.who, order, write=kind != READ
                )

    def async_copied(
        self, w: Warp, at: int, index: int, target: Pattern, sources: Sequence[tuple[Region, int, Pattern | int]]
    ) -> None:
        """``cp.async``: a write in the generic proxy, by an agent of its own."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        copies = agent.agents.copies_of(agent)
        copies.issued += 1
        access = Access(copies.number, copies.issued, 0, at, agent.who)
        footprint = launch.shared.find((index, target)) or _shared_footprint(launch, index, target)
        agent.memory.shared.write(footprint.parts, access, agent.clock.ticks)
        for region, offset, where in sources:
            if region.writable:
                if where.__class__ is int:
                    offsets, size = _ONE + offset, where
                else:
                    offsets, size = where.offsets + offset, where.size  # type: ignore[union-attr]
                launch.memory.read(launch.memory.shadow(region), offsets, size, access, agent.clock)  # type: ignore[arg-type]

    def async_committed(self, w: Warp) -> None:
        """A group of ``cp.async``."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        copies = agent.agents.copies_of(agent)
        copies.groups.append(copies.issued)

    def async_waited(self, w: Warp, allowed: int | None) -> None:
        """Groups of ``cp.async`` are complete."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        copies = agent.agents.copies_of(agent)
        if allowed is None:
            done = copies.issued
        else:
            count = len(copies.groups) - allowed
            done = copies.groups[count - 1] if count > 0 else 0
        if done:
            _learn_generic(agent, copies.number, done)

    def async_arrives(self, w: Warp, at: int, barrier: Mbarrier) -> None:
        """What is in the barrier once the copies issued so far are complete."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        state = agent.agents.barrier(barrier)
        self._use(agent, state, barrier, at)
        copies = agent.agents.copies_of(agent)
        known = known_by(agent)
        known[agent.clocks.number][BEFORE, copies.number] = copies.issued
        state.commits.append(known)
        agent.advance()

    def stored_async(self, w: Warp, at: int, shared: SharedMemory, index: int, size: int, barrier: Mbarrier) -> None:
        """``st.async``, ``red.async``: a write that completes at a barrier."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        state = agent.agents.barrier(barrier)
        self._use(agent, state, barrier, at)
        state.join(agent)
        flags = STRONG if w.cta.launch.kernel.instructions[at].root == "red" else 0
        access = Access(state.number, barrier.phase + 1, flags, at, agent.who)
        footprint = launch.shared.find((index, size)) or _shared_footprint(launch, index, size)
        memory = self._memory(w.cta.cluster.ctas[shared.rank])
        memory.shared.write(footprint.parts, access, agent.clock.ticks)

    # ---- copies --------------------------------------------------------------------------------------------------

    def copy_in(
        self, w: Warp, at: int, targets: Sequence[Target], size: int, order: NDArray[np.intp] | None = None,
        box: tile.Box | None = None,
    ) -> None:  # fmt: skip
        """A copy to shared memory: asynchronous writes that complete at the targets' barriers."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        agents = agent.agents
        ticks = agent.clock.ticks
        flags = ASYNC | STRONG if launch.order(at).strong else ASYNC
        for cta, index, barrier in targets:
            state = agents.barrier(barrier)
            if state.number not in agent.met or self.warnings:
                self._use_beside(agent, state, barrier, at)
            state.join(agent)
            if order is None:
                key: Hashable = (index, size)
                footprint = launch.shared.find(key) or _shared_footprint(launch, index, size)
            else:
                key = (index, order.tobytes())
                footprint = launch.shared.find(key) or launch.shared.footprint(key, _bytes_of(order, index))
            access = _make((state.number, barrier.phase + 1, flags, at, agent.who, box, None))
            memory = cta.units.get(CtaMemory) or cta.unit(CtaMemory)
            memory.shared.write(footprint.parts, access, ticks)
            ticks = agent.clock.ticks

    def copy_read(self, w: Warp, at: int, barrier: Mbarrier, index: int, size: int) -> None:
        """A copy to another CTA reads the own shared memory."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        state = agent.agents.barrier(barrier)
        footprint = launch.shared.find((index, size)) or _shared_footprint(launch, index, size)
        access = Access(state.number, barrier.phase + 1, ASYNC, at, agent.who)
        agent.memory.shared.read(footprint.parts, access, agent.clock.ticks)

    def copy_out(self, w: Warp, at: int, lane: int, index: int, size: int) -> None:
        """A bulk store reads shared memory."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        thread = agent.agents.bulk_thread(agent, lane)
        thread.issued += 1
        thread.open += 1
        footprint = launch.shared.find((index, size)) or _shared_footprint(launch, index, size)
        access = Access(thread.read, thread.issued, ASYNC, at, agent.who)
        agent.memory.shared.read(footprint.parts, access, agent.clock.ticks)

    def global_copied_in(self, w: Warp, at: int, barrier: Mbarrier, boxes: Sequence[tile.Box]) -> None:
        """A tensor copy reads boxes."""
        agent: WarpAgent | None = None
        for box in boxes:
            region = box.region
            if region is None or not region.writable:
                continue
            if agent is None:
                agent = w.units.get(WarpAgent) or self._warp(w)
                launch = agent.launch
                state = agent.agents.barrier(barrier)
                access = Access(state.number, barrier.phase + 1, ASYNC, at, agent.who)
            cut = None if box.cut is None else tuple((part.start, part.stop) for part in box.cut)
            key = (box.tile, box.offset, cut)
            launch.memory.read_box(launch.memory.shadow(region), key, box.rows, access, agent.clock)

    def global_read_in(self, w: Warp, at: int, barrier: Mbarrier, region: Region, offset: int, size: int) -> None:
        """A bulk copy reads global memory."""
        if not region.writable:
            return
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        state = agent.agents.barrier(barrier)
        access = Access(state.number, barrier.phase + 1, ASYNC, at, agent.who)
        launch.memory.read_box(
            launch.memory.shadow(region), (offset, size), lambda: (_ONE + offset, size), access, agent.clock
        )

    def global_copied_out(self, w: Warp, at: int, lane: int, boxes: Sequence[tile.Box], reduces: bool) -> None:
        """A tensor store writes boxes."""
        for box in boxes:
            if box.region is not None:
                offsets, size = box.rows()
                self._written_out(w, at, lane, box.region, offsets, size, reduces=reduces)

    def global_written_out(
        self, w: Warp, at: int, lane: int, region: Region, offset: int, size: int, reduces: bool
    ) -> None:
        """A bulk store writes global memory."""
        self._written_out(w, at, lane, region, _ONE + offset, size, reduces=reduces)

    def _written_out(
        self, w: Warp, at: int, lane: int, region: Region, offsets: NDArray[np.intp], size: int, *, reduces: bool
    ) -> None:
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        thread = agent.agents.bulk_thread(agent, lane)
        flags = ASYNC | STRONG if reduces else ASYNC
        access = Access(thread.write, thread.issued, flags, at, agent.who)
        launch.memory.write(launch.memory.shadow(region), offsets, size, access, agent.clock)

    def _bulk_threads(self, agent: WarpAgent, mask: int) -> list[BulkThread]:
        bulk = agent.agents.bulk
        return [bulk[agent.number, lane] for lane in lanes(mask) if (agent.number, lane) in bulk] if bulk else []

    def bulk_commit(self, w: Warp, mask: int, at: int) -> None:
        """Groups of bulk stores."""
        for thread in self._bulk_threads(self._warp(w), mask):
            thread.commit()

    def bulk_wait(self, w: Warp, mask: int, at: int, allowed: int, read: bool) -> None:
        """Groups of bulk stores have read, or are complete."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        for thread in self._bulk_threads(agent, mask):
            done = thread.done(allowed)
            if done:
                agent.learn(thread.read, done)
                if not read:
                    agent.learn(thread.write, done)

    def map_changed(self, w: Warp, at: int, address: int, shared: bool) -> None:
        """A tensor map in global memory: who uses it is checked by ``sync.fences``."""

    # ---- the tensor core -----------------------------------------------------------------------------------------

    def _pipe(self, agent: WarpAgent, queue: object, w: Warp) -> Agent:
        """The pipe of a queue."""
        agent.pipe = agent.agents.pipe(queue, w.cta.rank)  # type: ignore[arg-type]
        agent.queue = queue
        return agent.pipe

    def tensor_issued(self, w: Warp, at: int, queue: object, touched: tuple[Touched, ...]) -> None:
        """An MMA or copy: what it touches, in the order of its pipe."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        pipe = agent.pipe if agent.queue is queue else self._pipe(agent, queue, w)
        now = (agent.number, agent.version)
        if pipe.joined != now:  # type: ignore[union-attr]
            agent.release(pipe.clock)  # type: ignore[union-attr]
            pipe.joined = now  # type: ignore[union-attr]
        else:
            agent.advance()
        launch = agent.launch
        number, tick, who = pipe.number, pipe.tick, agent.who
        operand = _make((number, tick, ASYNC, at, who, None, None))
        tensor = _make((number, tick, 0, at, who, None, None))
        ticks = pipe.clock.ticks
        for one in touched:
            memory = one.cta.units.get(CtaMemory) or one.cta.unit(CtaMemory)
            steps = memory.operations.get(one) or _operation_steps(launch, memory, one)
            for step, parts, of_shared in steps:
                step(parts, operand if of_shared else tensor, ticks)

    def tensor_committed(self, w: Warp, at: int, queue: object, barriers: tuple[Mbarrier, ...]) -> None:
        """The barriers will know all that the pipe has been given."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        agents = agent.agents
        pipe = self._pipe(agent, queue, w)
        now = (agent.number, agent.version)
        if pipe.joined != now:
            pipe.clock.join(agent.clock)
            pipe.joined = now
        known: Known = {agents.clocks.number: pipe.clock.ticks.copy()}
        for barrier in barriers:
            state = agents.barrier(barrier)
            self._use_beside(agent, state, barrier, at)
            state.commits.append(known)
        pipe.tick += 1
        pipe.clock.ticks[:, pipe.number] = pipe.tick
        agent.advance()

    def tmem_accessed(self, w: Warp, at: int, boxes: tuple[Box, ...], write: bool) -> None:
        """``tcgen05.ld`` and ``tcgen05.st``."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        shadow = agent.memory.tmem
        ticks = agent.clock.ticks
        if write:
            if agent.st < 0:
                agent.st = agent.clocks.agent(_lagging("tmem-store", agent))
                ticks = agent.clock.ticks
            agent.st_issued += 1
            access = Access(agent.st, agent.st_issued, 0, at, agent.who)
            if agent.st_known < agent.st_issued - 1:
                # Stores of one warp to the same place follow each other.
                ticks = ticks.copy()
                ticks[:, agent.st] = agent.st_issued
        else:
            lag = None
            if self.warnings:
                if agent.ld < 0:
                    agent.ld = agent.clocks.agent(_lagging("tmem-load", agent))
                    ticks = agent.clock.ticks
                agent.ld_issued += 1
                lag = (agent.ld, agent.ld_issued)
            access = Access(agent.number, agent.epoch(), 0, at, agent.who, None, lag)
        for box in boxes:
            parts = (launch.tmem.find(box) or _box_footprint(launch, box)).parts
            if write:
                shadow.write(parts, access, ticks)
            else:
                shadow.read(parts, access, ticks)

    def tmem_allocated(self, w: Warp, at: int, column: int, count: int) -> None:
        """The columns have no history."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        box = (column, count, 0, 128)
        agent.memory.tmem.forget((launch.tmem.find(box) or _box_footprint(launch, box)).parts)

    def tmem_freed(self, w: Warp, at: int, column: int, count: int) -> None:
        """All use of the columns must have ended."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        box = (column, count, 0, 128)
        access = Access(agent.number, agent.epoch(), 0, at, agent.who)
        parts = (launch.tmem.find(box) or _box_footprint(launch, box)).parts
        shadow = agent.memory.tmem
        shadow.write(parts, access, agent.clock.ticks)
        shadow.forget(parts)

    # ---- wgmma ---------------------------------------------------------------------------------------------------

    def wgmma_fenced(self, w: Warp) -> None:
        """Orders registers only."""

    def wgmma_issued(self, w: Warp, group: Warpgroup, operation: Operation, at: int) -> None:
        """The operation reads once the last of the four warps has issued it."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        agents = agent.agents
        number = agents.warpgroup(group, agent.who)
        if operation.arrived != 0xF:
            return
        ticks = agent.clock.ticks.copy()
        for other in w.cta.warps[group.first : group.first + 4]:
            if other is not w:
                theirs = self._warp(other).clock.ticks
                np.maximum(ticks, theirs, out=ticks)
        access = Access(number, operation.number + 1, ASYNC, at, agent.who)
        launch = agent.launch
        memory = agent.memory
        for units in (operation.a_units, operation.b_units):
            if units is not None:
                memory.shared.read(_units_footprint(launch, units).parts, access, ticks)

    def wgmma_waited(self, w: Warp, group: Warpgroup, done: int) -> None:
        """Operations are complete for a warp."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        agent.learn(agent.agents.warpgroup(group, agent.who), done)


def _release_relaxed(agent: WarpAgent, clock: Clock) -> None:
    """A relaxed arrive releases what a fence before it has covered, and the initialised barriers."""
    fenced = agent.thread.fenced.get(CLUSTER)
    if fenced is not None:
        for number, ticks in fenced.items():
            if number == agent.clocks.number:
                clock.join_snapshot(ticks)
            else:
                clock.learn({number: ticks})
    row = clock.ticks[INITS]
    np.maximum(row, agent.clock.ticks[INITS], out=row)


def _arrive_known(state: BarrierState, known: Known) -> None:
    for number, ticks in known.items():
        if number == state.clocks.number:
            state.arrived.join_snapshot(ticks)
        else:
            state.arrived.learn({number: ticks})


def _learn_generic(agent: WarpAgent, number: int, tick: int) -> None:
    """Work of the generic proxy is complete: visible to the async proxy only behind a fence."""
    ticks = agent.clock.ticks
    if ticks[BEFORE, number] < tick:
        ticks[BEFORE, number] = tick
        agent.version += 1


def _lagging(kind: str, agent: WarpAgent) -> Any:
    from pytest_nvfp4.sim.races.agents import Owner

    return Owner(kind, f"{'tcgen05.st' if kind == 'tmem-store' else 'tcgen05.ld'} of {agent.who}", agent.who)


def _shared_footprint(launch: LaunchRaces, index: int, where: Pattern | int) -> Footprint:
    """Bytes from an index, or of a pattern's items."""
    if isinstance(where, int):
        return launch.shared.footprint((index, where), slice(index, index + where))
    if where.dense:
        return launch.shared.footprint((index, where), slice(index, index + where.span))
    units = np.unique((np.unique(where.offsets)[:, None] + np.arange(where.size)).ravel()) + index
    return launch.shared.footprint((index, where), units)


def _bytes_of(units: NDArray[np.intp], index: int) -> NDArray[np.intp]:
    return (np.unique(units)[:, None] * 16 + np.arange(16)).ravel() + index


def _box_footprint(launch: LaunchRaces, box: Box) -> Footprint:
    column, columns, lane, count = box
    per = 128 // LANES_A_UNIT
    first, last = lane // LANES_A_UNIT, (lane + count - 1) // LANES_A_UNIT + 1
    if last - first == per:
        return launch.tmem.footprint(box, slice(column * per, (column + columns) * per))
    units = (np.arange(column, column + columns)[:, None] * per + np.arange(first, last)).ravel()
    return launch.tmem.footprint(box, units)


def _operation_steps(launch: LaunchRaces, memory: CtaMemory, touched: Touched) -> list[Step]:
    """What an operation of the tensor core does to the shadows, kept with its plan."""
    steps: list[Step] = []
    if touched.shared.size:
        steps.append((memory.shared.read, _units_footprint(launch, touched.shared).parts, True))
    for box in touched.reads:
        if box in touched.writes:
            continue  # the write looks at more
        steps.append((memory.tmem.read, (launch.tmem.find(box) or _box_footprint(launch, box)).parts, False))
    for box in touched.writes:
        steps.append((memory.tmem.write, (launch.tmem.find(box) or _box_footprint(launch, box)).parts, False))
    memory.operations[touched] = steps
    return steps


def _units_footprint(launch: LaunchRaces, units: NDArray[np.intp]) -> Footprint:
    key = units.tobytes()
    return launch.shared.find(key) or launch.shared.footprint(key, _bytes_of(units.ravel(), 0))
