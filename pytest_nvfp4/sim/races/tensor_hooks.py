"""The part of the detector that hears of the tensor core and of wgmma."""

# ruff: noqa: ARG002 - the signatures are those of sim.monitor
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_nvfp4.sim.races.access import ASYNC, Access
from pytest_nvfp4.sim.races.agents import WarpAgent
from pytest_nvfp4.sim.races.clocks import Agent
from pytest_nvfp4.sim.races.launch import CtaMemory, LaunchRaces, Parts
from pytest_nvfp4.sim.races.sync_variables import Known
from pytest_nvfp4.sim.races.tensor_order import TensorUse
from pytest_nvfp4.sim.tcgen05.monitor import TmemBox

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp
    from pytest_nvfp4.sim.sync.mbarrier import Mbarrier
    from pytest_nvfp4.sim.tcgen05.monitor import CtaAccesses, PipeAccesses
    from pytest_nvfp4.sim.wgmma.operation import Operation
    from pytest_nvfp4.sim.wgmma.unit import Warpgroup

from pytest_nvfp4.sim.races.hooks import Hooks, box_footprint, make, units_footprint

__all__ = ["TensorHooks"]


class TensorHooks(Hooks):
    """The part of the detector that hears of the tensor core and of wgmma."""

    # ---- the tensor core -----------------------------------------------------------------------------------------

    def _use_of(self, agent: WarpAgent, at: int, touches: PipeAccesses | None = None) -> TensorUse:
        """How an instruction uses tensor memory; ``touches`` is what an MMA or a copy does there."""
        key = touches or at
        found = agent.uses.get(key)
        if found is None:
            kind, of = agent.launch.tensor_kind(at)
            found = agent.uses[key] = TensorUse(kind, agent, None, (of, touches.writes if touches is not None else ()))
        return found

    def _pipe(self, agent: WarpAgent, queue: object, w: Warp) -> Agent:
        """The pipe of a queue."""
        agent.pipe = agent.agents.pipe(queue, w.cta.rank)
        agent.queue = queue
        return agent.pipe

    def tensor_issued(self, w: Warp, at: int, queue: object, touched: tuple[CtaAccesses, ...]) -> None:
        """An MMA or copy: what it touches, in the order of its pipe."""
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
        number, tick, who = pipe.number, pipe.tick, agent.who
        # The accumulator matters only to what official kernels leave out.
        touches = touched[0][1] if self.warnings else None
        use = agent.uses.get(touches or at) or self._use_of(agent, at, touches)
        tensor = make((number, tick, 0, at, who, None, use))
        ticks = pipe.clock.ticks
        known = launch.touches
        for cta, one in touched:
            memory = cta.units.get(CtaMemory) or cta.unit(CtaMemory)
            shared, reads, writes = known.get(one) or _parts_of(launch, one)
            if shared:
                memory.shared.read(shared, make((number, tick, ASYNC, at, who, None, None)), ticks)
            if reads:
                memory.tmem.read(reads, tensor, ticks)
            if writes:
                memory.tmem.write(writes, tensor, ticks)
            if cta is not w.cta:
                memory.visits.last[number] = tensor

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
            if barrier.cta is not w.cta:
                visit = Access(pipe.number, pipe.tick, 0, at, agent.who)
                self._memory(barrier.cta).visits.last[pipe.number] = visit
        pipe.next_tick()
        agent.advance()

    def tmem_accessed(self, w: Warp, at: int, boxes: tuple[TmemBox, ...], write: bool) -> None:
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
            access = Access(agent.st, agent.st_issued, 0, at, agent.who, None, self._use_of(agent, at))
            if agent.st_known < agent.st_issued - 1:
                # Stores of one warp to the same place follow each other.
                ticks = ticks.copy()
                ticks[:, agent.st] = agent.st_issued
        else:
            use = self._use_of(agent, at)
            if self.warnings:
                if agent.ld < 0:
                    agent.ld = agent.clocks.agent(_lagging("tmem-load", agent))
                    ticks = agent.clock.ticks
                agent.ld_issued += 1
                launch.loaded(agent.who, at)
                use = use._replace(lag=(agent.ld, agent.ld_issued))
            access = Access(agent.number, agent.epoch(), 0, at, agent.who, None, use)
            if agent.st_known < agent.st_issued:
                # So do its loads and its stores, in NVIDIA's kernels.
                ticks = ticks.copy()
                ticks[:, agent.st] = agent.st_issued
        loaded = 0
        for box in boxes:
            parts = (launch.tmem.find(box) or box_footprint(launch, box)).parts
            if write:
                shadow.write(parts, access, ticks)
            else:
                shadow.read(parts, access, ticks)
                if agent.st_known < agent.st_issued:
                    stored = [old.tick for part in parts if (old := shadow.writes[part]) and old.agent == agent.st]
                    loaded = max(loaded, *stored, 0)
        if loaded:
            agent.learn(agent.st, loaded)  # what a load of the warp has seen is stored

    def tmem_allocated(self, w: Warp, at: int, column: int, count: int) -> None:
        """The columns have no history."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        box = TmemBox(column, count, 0, 128)
        agent.memory.tmem.forget((launch.tmem.find(box) or box_footprint(launch, box)).parts)

    def tmem_freed(self, w: Warp, at: int, column: int, count: int) -> None:
        """All use of the columns must have ended."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        box = TmemBox(column, count, 0, 128)
        access = Access(agent.number, agent.epoch(), 0, at, agent.who, None, self._use_of(agent, at))
        parts = (launch.tmem.find(box) or box_footprint(launch, box)).parts
        shadow = agent.memory.tmem
        shadow.write(parts, access, agent.clock.ticks)
        shadow.forget(parts)

    # ---- wgmma ---------------------------------------------------------------------------------------------------

    def wgmma_fenced(self, w: Warp) -> None:
        """Orders registers only."""

    def wgmma_issued(self, w: Warp, group: Warpgroup, operation: Operation, at: int) -> None:
        """The operation reads once the last of the four warps has issued it.

        Each warp multiplies rows of A of its own with all of B (PTX ISA, "Asynchronous wgmma"), and nothing but a
        barrier orders one warp behind another: B must be known to all four, A to one of them.
        """
        agent = w.units.get(WarpAgent) or self._warp(w)
        agents = agent.agents
        number = agents.warpgroup(group, agent.who)
        if operation.arrived != 0xF:
            return
        clocks = [self._warp(other).clock.ticks for other in w.cta.warps[group.first : group.first + 4]]
        access = Access(number, operation.number + 1, ASYNC, at, agent.who)
        launch = agent.launch
        memory = agent.memory
        for units, known in ((operation.a_units, np.maximum), (operation.b_units, np.minimum)):
            if units is not None:
                memory.shared.read(units_footprint(launch, units).parts, access, known.reduce(clocks))

    def wgmma_waited(self, w: Warp, group: Warpgroup, done: int) -> None:
        """Operations are complete for a warp."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        agent.learn(agent.agents.warpgroup(group, agent.who), done)


def _lagging(kind: str, agent: WarpAgent) -> Any:
    from pytest_nvfp4.sim.races.agents import Owner

    return Owner(kind, f"{'tcgen05.st' if kind == 'tmem-store' else 'tcgen05.ld'} of {agent.who}", agent.who)


def _parts_of(launch: LaunchRaces, touches: PipeAccesses) -> Parts:
    """What an operation of the tensor core touches, in parts: kept with the launch."""
    shared = units_footprint(launch, touches.shared).parts if touches.shared.size else []
    # Of what it also writes, the write looks at more.
    reads = tuple([box for box in touches.reads if box not in touches.writes])
    found = shared, _together(launch, reads), _together(launch, touches.writes)
    if not launch.shared.full and not launch.tmem.full:
        launch.touches[touches] = found
    return found


def _together(launch: LaunchRaces, boxes: tuple[TmemBox, ...]) -> Sequence[int]:
    """The parts of several rectangles of TMEM."""
    footprints = [launch.tmem.find(box) or box_footprint(launch, box) for box in boxes]
    if len(footprints) < 2:
        return footprints[0].parts if footprints else []
    return (launch.tmem.find(boxes) or launch.tmem.union(boxes, footprints)).parts
