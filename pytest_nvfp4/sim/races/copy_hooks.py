"""The part of the detector that hears of bulk copies and tensor copies."""

# ruff: noqa: ARG002 - the signatures are those of sim.monitor
from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.lanes import lanes
from pytest_nvfp4.sim.races.access import ASYNC, STRONG, Access
from pytest_nvfp4.sim.races.agents import BulkThread, WarpAgent
from pytest_nvfp4.sim.races.launch import CtaMemory

if TYPE_CHECKING:
    from pytest_nvfp4.sim.memory.globals import Region
    from pytest_nvfp4.sim.run.warp import Warp
    from pytest_nvfp4.sim.sync.mbarrier import Mbarrier
    from pytest_nvfp4.sim.tma.box import TmaBox
    from pytest_nvfp4.sim.tma.issue import Target

from pytest_nvfp4.sim.races.hooks import ONE, Hooks, bytes_of, make, shared_footprint

__all__ = ["CopyHooks"]


class CopyHooks(Hooks):
    """The part of the detector that hears of bulk copies and tensor copies."""

    # ---- copies --------------------------------------------------------------------------------------------------

    def copy_in(
        self, w: Warp, at: int, targets: Sequence[Target], size: int, order: NDArray[np.intp] | None = None,
        box: TmaBox | None = None,
    ) -> None:  # fmt: skip
        """A copy to shared memory: asynchronous writes that complete at the targets' barriers."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        agents = agent.agents
        ticks = agent.clock.ticks
        flags = ASYNC | STRONG if launch.order(at).strong else ASYNC
        for cta, index, barrier in targets:
            state = agents.barrier(barrier)
            if state.number not in agent.met or (self.warnings and not state.fenced):
                self._use_beside(agent, state, barrier, at)
            state.join(agent)
            if order is None:
                key: Hashable = (index, size)
                footprint = launch.shared.find(key) or shared_footprint(launch, index, size)
            else:
                key = (index, order.tobytes())
                footprint = launch.shared.find(key) or launch.shared.footprint(key, bytes_of(order, index))
            access = make((state.number, barrier.phase + 1, flags, at, agent.who, box, None))
            memory = cta.units.get(CtaMemory) or cta.unit(CtaMemory)
            memory.shared.write(footprint.parts, access, ticks)
            if barrier.cta is not cta:
                memory.visits.last[state.number] = access
            ticks = agent.clock.ticks

    def copy_read(self, w: Warp, at: int, barrier: Mbarrier, index: int, size: int) -> None:
        """A copy to another CTA reads the own shared memory."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        state = agent.agents.barrier(barrier)
        footprint = launch.shared.find((index, size)) or shared_footprint(launch, index, size)
        access = Access(state.number, barrier.phase + 1, ASYNC, at, agent.who)
        agent.memory.shared.read(footprint.parts, access, agent.clock.ticks)

    def copy_out(self, w: Warp, at: int, lane: int, index: int, size: int) -> None:
        """A bulk store reads shared memory."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        thread = agent.agents.bulk_thread(agent, lane)
        thread.issued += 1
        thread.open += 1
        footprint = launch.shared.find((index, size)) or shared_footprint(launch, index, size)
        access = Access(thread.read, thread.issued, ASYNC, at, agent.who)
        agent.memory.shared.read(footprint.parts, access, agent.clock.ticks)

    def global_copied_in(self, w: Warp, at: int, barrier: Mbarrier, boxes: Sequence[TmaBox]) -> None:
        """A tensor copy reads boxes."""
        agent: WarpAgent | None = None
        for box in boxes:
            region = box.region
            if region is None:
                continue
            if not region.writable:
                region.read_at = at
                continue
            if agent is None:
                agent = w.units.get(WarpAgent) or self._warp(w)
                launch = agent.launch
                state = agent.agents.barrier(barrier)
                access = Access(state.number, barrier.phase + 1, ASYNC, at, agent.who)
            if launch.overlap is not None:
                launch.overlap.check(agent, region, box.rows, access, writes=False)
            cut = None if box.cut is None else tuple((part.start, part.stop) for part in box.cut)
            key = (box.tile, box.offset, cut)
            launch.memory.read_box(launch.memory.shadow(region), key, box.rows, access, agent.clock)

    def global_read_in(self, w: Warp, at: int, barrier: Mbarrier, region: Region, offset: int, size: int) -> None:
        """A bulk copy reads global memory."""
        if not region.writable:
            region.read_at = at
            return
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        state = agent.agents.barrier(barrier)
        access = Access(state.number, barrier.phase + 1, ASYNC, at, agent.who)
        if launch.overlap is not None:
            launch.overlap.check(agent, region, lambda: (ONE + offset, size), access, writes=False)
        launch.memory.read_box(
            launch.memory.shadow(region), (offset, size), lambda: (ONE + offset, size), access, agent.clock
        )

    def global_copied_out(self, w: Warp, at: int, lane: int, boxes: Sequence[TmaBox], reduces: bool) -> None:
        """A tensor store writes boxes."""
        for box in boxes:
            if box.region is not None:
                offsets, size = box.rows()
                self._written_out(w, at, lane, box.region, offsets, size, reduces=reduces)

    def global_written_out(
        self, w: Warp, at: int, lane: int, region: Region, offset: int, size: int, reduces: bool
    ) -> None:
        """A bulk store writes global memory."""
        self._written_out(w, at, lane, region, ONE + offset, size, reduces=reduces)

    def _written_out(
        self, w: Warp, at: int, lane: int, region: Region, offsets: NDArray[np.intp], size: int, *, reduces: bool
    ) -> None:
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        thread = agent.agents.bulk_thread(agent, lane)
        flags = ASYNC | STRONG if reduces else ASYNC
        access = Access(thread.write, thread.issued, flags, at, agent.who)
        if launch.overlap is not None:
            launch.overlap.check(agent, region, lambda: (offsets, size), access, writes=True)
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
        maps = agent.agents.map_reads.get(agent.number)
        if maps is not None:
            done = maps.done(allowed)
            if done:
                agent.learn(maps.number, done)
