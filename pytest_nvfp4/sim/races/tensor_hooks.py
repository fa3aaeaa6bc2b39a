"""The detector's hooks for the tensor core and for ``wgmma``.

The operations of a tcgen05 pipe are one agent: PTX ISA, "tcgen05 memory consistency model", pipelined instructions.
Their operands in shared memory are read through the async proxy. ``tensor_order`` has the rules of tensor memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pytest_nvfp4.sim.monitor import CtaAccesses, PipeAccesses, TmemBox
from pytest_nvfp4.sim.races.access import ASYNC, Access, TensorUse, make_access
from pytest_nvfp4.sim.races.access_pair import RACE
from pytest_nvfp4.sim.races.agents import Commit, CtaMemory, WarpAgent
from pytest_nvfp4.sim.races.clocks import Agent, Epoch
from pytest_nvfp4.sim.races.hooks import Hooks, box_footprint, has_started, units_footprint
from pytest_nvfp4.sim.races.launch import LaunchRaces, TensorParts
from pytest_nvfp4.sim.races.names import AgentInfo, AgentKind
from pytest_nvfp4.sim.races.ticks import Snapshot
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.mbarrier import Mbarrier
from pytest_nvfp4.sim.wgmma.operation import WgmmaOperation
from pytest_nvfp4.sim.wgmma.unit import Warpgroup

if TYPE_CHECKING:
    from pytest_nvfp4.sim.tcgen05.copy_plan import CopyPlan
    from pytest_nvfp4.sim.tcgen05.mma_plan import MmaPlan


class TensorHooks(Hooks):
    """The detector's hooks for the tensor core and for ``wgmma``."""

    # ---- the tensor core -----------------------------------------------------------------------------------------

    def _use_of(self, agent: WarpAgent, at: int, touches: PipeAccesses | None = None) -> TensorUse:
        """How an instruction uses tensor memory; ``touches`` is what an MMA or a copy does there."""
        key = touches or at
        found = agent.uses.get(key)
        if found is None:
            kind, of = agent.launch.tensor_kind[at]
            found = agent.uses[key] = TensorUse(kind, agent, None, (of, touches.writes if touches is not None else ()))
        return found

    def _pipe(self, agent: WarpAgent, queue: Hashable, w: Warp) -> Agent:
        pipes = agent.agents.pipes
        if queue not in pipes:
            info = AgentInfo("pipe", f"the tensor core of CTA rank {w.cta.rank}")
            pipes[queue] = Agent(agent.clocks, info, asynchronous=True)
        agent.pipe, agent.queue = pipes[queue], queue
        return pipes[queue]

    def tensor_issued(
        self,
        w: Warp,
        at: int,
        queue: Hashable,
        touched: tuple[CtaAccesses, ...],
        plan: MmaPlan | CopyPlan,  # noqa: ARG002 - the event's argument
    ) -> None:
        """Check and record what an MMA or copy touches in each CTA that it works on, in the order of its pipe."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        pipe = agent.pipe if agent.queue is queue else self._pipe(agent, queue, w)
        assert pipe is not None
        now = (agent.number, agent.version)
        if pipe.joined != now:
            agent.release(pipe.clock)
            pipe.joined = now
        else:
            agent.advance()
        launch = agent.launch
        number, tick, warp = pipe.number, pipe.tick, agent.id
        # The accumulator decides only about warnings.
        touches = touched[0][1] if self.warnings else None
        use = agent.uses.get(touches or at) or self._use_of(agent, at, touches)
        tensor = make_access((number, tick, 0, at, warp, None, use))
        ticks = pipe.clock.ticks
        known = launch.tensor_parts
        for cta, operands in touched:
            memory = cta.units.get(CtaMemory) or cta.unit(CtaMemory)
            shared, reads, writes = known.get(operands) or _parts_of(launch, operands)
            if shared:
                memory.shared.read(shared, make_access((number, tick, ASYNC, at, warp, None, None)), ticks)
            if reads:
                memory.tmem.read(reads, tensor, ticks)
            if writes:
                memory.tmem.write(writes, tensor, ticks)
            if cta is not w.cta:
                memory.peer_accesses.last[number] = tensor

    def tensor_committed(self, w: Warp, at: int, queue: Hashable, barriers: tuple[Mbarrier, ...]) -> None:
        """Record what the arrives of a ``tcgen05.commit`` will release: everything issued to the pipe before.

        PTX ISA, "tcgen05.commit": the arrive has an implicit ``fence::before_thread_sync``.
        """
        agent = w.units.get(WarpAgent) or self._warp(w)
        agents = agent.agents
        pipe = self._pipe(agent, queue, w)
        now = (agent.number, agent.version)
        if pipe.joined != now:
            pipe.clock.join(agent.clock)
            pipe.joined = now
        snapshot: Snapshot = {agents.clocks.number: pipe.clock.ticks.copy()}
        for barrier in barriers:
            state = agents.barriers[barrier]
            self._use_beside(agent, state, barrier, at)
            state.commits.append(Commit(snapshot, near=barrier.cta is w.cta))
            if barrier.cta is not w.cta:
                arrive = Access(pipe.number, pipe.tick, 0, at, agent.id)
                self._memory(barrier.cta).peer_accesses.last[pipe.number] = arrive
        pipe.next_tick()
        agent.advance()

    def tmem_accessed(self, w: Warp, at: int, boxes: tuple[TmemBox, ...], write: bool) -> None:
        """Check and record a ``tcgen05.ld`` or ``tcgen05.st``."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        shadow = agent.memory.tmem
        ticks = agent.clock.ticks
        if write:
            if agent.st < 0:
                agent.st = _add_agent(agent, "tmem-store", "tcgen05.st")
                ticks = agent.clock.ticks
            agent.st_issued += 1
            access = Access(agent.st, agent.st_issued, 0, at, agent.id, None, self._use_of(agent, at))
            if agent.st_waited < agent.st_issued - 1:
                # Stores of one warp to the same place count as ordered here; `tensor_order` warns of them.
                ticks = ticks.copy()
                ticks[:, agent.st] = agent.st_issued
        else:
            use = self._use_of(agent, at)
            if self.warnings:
                if agent.ld < 0:
                    agent.ld = _add_agent(agent, "tmem-load", "tcgen05.ld")
                    ticks = agent.clock.ticks
                agent.ld_issued += 1
                launch.check_early_use(agent.id, at)
                use = use._replace(load=Epoch(agent.ld, agent.ld_issued))
            access = Access(agent.number, agent.epoch(), 0, at, agent.id, None, use)
            agent.loaded[at] = access.tick
            if agent.st_waited < agent.st_issued:
                # The same for its stores and loads: NVIDIA's kernels omit the wait::st between them.
                ticks = ticks.copy()
                ticks[:, agent.st] = agent.st_issued
        loaded = 0
        for box in boxes:
            parts = (launch.tmem.find(box) or box_footprint(launch, box)).parts
            if write:
                shadow.write(parts, access, ticks)
            else:
                shadow.read(parts, access, ticks)
                if agent.st_waited < agent.st_issued:
                    stored = [old.tick for part in parts if (old := shadow.writes[part]) and old.agent == agent.st]
                    loaded = max(loaded, *stored, 0)
        if loaded:
            agent.complete(agent.st, loaded)  # a value that a load of the warp has read is stored

    def tmem_allocated(self, w: Warp, at: int, column: int, count: int, *, pair: bool) -> None:
        """Clear the history of allocated columns, and check that the allocation of a pair follows the peer's start.

        PTX ISA, "tcgen05.alloc": with ``.cta_group::2``, the issuing warp must make sure that the peer CTA is launched.
        """
        agent = w.units.get(WarpAgent) or self._warp(w)
        if pair and not has_started(agent, w.cta.cluster.ctas[w.cta.rank ^ 1]):
            launch = agent.launch
            launch.reporter.other(
                RACE,
                f"{launch.grid.place(at)} in {agent.id} allocates tensor memory in both CTAs of a pair, and nothing "
                f"orders it after the start of the peer, CTA rank {w.cta.rank ^ 1} of its cluster",
                "barrier.cluster.arrive and .wait, a <barrier.cluster> that may be relaxed, in both CTAs before "
                "tcgen05.alloc.cta_group::2",
                warp=agent.id,
                at=at,
                group=("pair", w.cta.cluster.index),
                note=f"the same for {agent.id}",
            )
        agent.memory.tmem.forget(box_footprint(agent.launch, TmemBox(column, count, 0, 128)).parts)

    def tmem_freed(self, w: Warp, at: int, column: int, count: int) -> None:
        """Check that all use of freed columns has ended, and clear their history."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        access = Access(agent.number, agent.epoch(), 0, at, agent.id, None, self._use_of(agent, at))
        parts = box_footprint(agent.launch, TmemBox(column, count, 0, 128)).parts
        shadow = agent.memory.tmem
        shadow.write(parts, access, agent.clock.ticks)
        shadow.forget(parts)

    # ---- wgmma ---------------------------------------------------------------------------------------------------

    def wgmma_fenced(self, w: Warp) -> None:
        """Do nothing: ``wgmma.fence`` orders registers and accesses of the issuing threads, which are in order here."""

    def wgmma_issued(self, w: Warp, group: Warpgroup, operation: WgmmaOperation, at: int) -> None:
        """Check and record the reads of an operation when the last of the four warps has issued it.

        Each warp multiplies its own rows of A with all of B (PTX ISA, "Asynchronous wgmma"), and only a barrier orders
        one warp behind another: all four warps must be ordered behind the writes of B, and one behind those of A. So
        the clocks are joined for A, and intersected for B.
        """
        agent = w.units.get(WarpAgent) or self._warp(w)
        agents = agent.agents
        number = agents.warpgroup(group, agent.id)
        if operation.arrived != 0xF:
            return
        clocks = [self._warp(other).clock.ticks for other in w.cta.warps[group.first : group.first + 4]]
        access = Access(number, operation.number + 1, ASYNC, at, agent.id)
        shared = agent.memory.shared
        for units, combine in ((operation.a_units, np.maximum), (operation.b_units, np.minimum)):
            if units is not None:
                shared.read(units_footprint(agent.launch, units).parts, access, combine.reduce(clocks))

    def wgmma_waited(self, w: Warp, group: Warpgroup, done: int) -> None:
        """Order complete operations before what follows in a warp."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        agent.complete(agent.agents.warpgroup(group, agent.id), done)


def _add_agent(agent: WarpAgent, kind: AgentKind, opcode: str) -> int:
    return agent.clocks.agent(AgentInfo(kind, f"{opcode} of {agent.id}", agent.id))


def _parts_of(launch: LaunchRaces, touches: PipeAccesses) -> TensorParts:
    """Return the parts that an operation of the tensor core touches, and cache them with the launch."""
    shared = units_footprint(launch, touches.shared).parts if touches.shared.size else []
    # Boxes that are also written (accumulators) are left out: the check of a write includes that of a read.
    reads = tuple([box for box in touches.reads if box not in touches.writes])
    parts = TensorParts(shared, _union(launch, reads), _union(launch, touches.writes))
    # Beyond the capacity of the divisions, footprints do not follow later splits.
    if not launch.shared.full and not launch.tmem.full:
        launch.tensor_parts[touches] = parts
    return parts


def _union(launch: LaunchRaces, boxes: tuple[TmemBox, ...]) -> Sequence[int]:
    footprints = [box_footprint(launch, box) for box in boxes]
    if len(footprints) < 2:
        return footprints[0].parts if footprints else []
    return (launch.tmem.find(boxes) or launch.tmem.union(boxes, footprints)).parts
