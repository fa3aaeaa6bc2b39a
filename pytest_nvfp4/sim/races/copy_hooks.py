"""The detector's hooks for bulk copies and tensor copies.

These copies go through the async proxy. A copy to shared memory is one agent per mbarrier: its writes are visible to a
thread that waits for the phase in which ``complete_tx`` counts its bytes (PTX ISA, "Async proxy"; "mbarrier",
"complete-tx operation"). Two copies are never ordered by each other, even on one mbarrier. A bulk store's reads and
writes are complete behind ``cp.async.bulk.wait_group`` (``groups``).
"""

# ruff: noqa: ARG002 - every event has the instruction and its lanes
from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.lanes import lanes
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.monitor import CopyTarget
from pytest_nvfp4.sim.races.access import ASYNC, STRONG, Access, make_access
from pytest_nvfp4.sim.races.agents import CtaMemory, WarpAgent
from pytest_nvfp4.sim.races.groups import BulkStores
from pytest_nvfp4.sim.races.hooks import ZERO, Hooks, bytes_of, shared_footprint
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.mbarrier import Mbarrier
from pytest_nvfp4.sim.tma.box import TmaBox


class CopyHooks(Hooks):
    """The detector's hooks for bulk copies and tensor copies; ``map_hooks`` has those for tensor maps."""

    def copy_in(
        self, w: Warp, at: int, targets: Sequence[CopyTarget], size: int, order: NDArray[np.intp] | None = None,
        box: TmaBox | None = None,
    ) -> None:  # fmt: skip
        """Record the asynchronous writes of a copy to shared memory, which complete at the targets' barriers.

        ``order`` is the 16-byte units that are written, if not all; ``box`` is the first box that a tensor copy reads.
        """
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        agents = agent.agents
        ticks = agent.clock.ticks
        flags = ASYNC | STRONG if launch.order[at].strong else ASYNC
        for cta, index, barrier in targets:
            state = agents.barriers[barrier]
            if state.number not in agent.initialised or (self.warnings and not state.fenced):
                self._use_beside(agent, state, barrier, at)
            if barrier.cta is w.cta:
                state.join(agent)
            else:
                state.join_peer(agent, visible=False)
            if order is None:
                key: Hashable = (index, size)
                footprint = launch.shared.find(key) or shared_footprint(launch, index, size)
            else:
                key = (index, order.tobytes())
                footprint = launch.shared.find(key) or launch.shared.footprint(key, bytes_of(order, index))
            access = make_access((state.number, barrier.phase + 1, flags, at, agent.id, box, None))
            memory = cta.units.get(CtaMemory) or cta.unit(CtaMemory)
            memory.shared.write(footprint.parts, access, ticks)
            if barrier.cta is not cta:
                memory.peer_accesses.last[state.number] = access
            ticks = agent.clock.ticks

    def copy_read(self, w: Warp, at: int, barrier: Mbarrier, index: int, size: int) -> None:
        """Record the read of a copy from the CTA's own shared memory to another CTA."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        state = agent.agents.barriers[barrier]
        footprint = launch.shared.find((index, size)) or shared_footprint(launch, index, size)
        access = Access(state.number, barrier.phase + 1, ASYNC, at, agent.id)
        agent.memory.shared.read(footprint.parts, access, agent.clock.ticks)
        if barrier.cta is not w.cta:
            # The copy completes at the other CTA, so that this one may end before its memory was read.
            agent.memory.peer_accesses.last[state.number] = access

    def copy_out(self, w: Warp, at: int, lane: int, index: int, size: int) -> None:
        """Record a bulk store's read of shared memory."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        stores = agent.agents.bulk[agent, lane]
        stores.issued += 1
        stores.open += 1
        footprint = launch.shared.find((index, size)) or shared_footprint(launch, index, size)
        access = Access(stores.read, stores.issued, ASYNC, at, agent.id)
        agent.memory.shared.read(footprint.parts, access, agent.clock.ticks)

    def global_copied_in(self, w: Warp, at: int, barrier: Mbarrier, boxes: Sequence[TmaBox]) -> None:
        """Record a tensor copy's reads of global memory."""
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
                state = agent.agents.barriers[barrier]
                access = Access(state.number, barrier.phase + 1, ASYNC, at, agent.id)
            if launch.overlap is not None:
                launch.overlap.check(agent, region, box.rows, access, writes=False)
            cut = None if box.cut is None else tuple((part.start, part.stop) for part in box.cut)
            key = (box.tile, box.offset, cut)
            launch.memory.read_box(launch.memory.shadow(region), key, box.rows, access, agent.clock)

    def global_read_in(self, w: Warp, at: int, barrier: Mbarrier, region: Region, offset: int, size: int) -> None:
        """Record a bulk copy's read of global memory."""
        if not region.writable:
            region.read_at = at
            return
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        state = agent.agents.barriers[barrier]
        access = Access(state.number, barrier.phase + 1, ASYNC, at, agent.id)

        def rows() -> tuple[NDArray[np.intp], int]:
            return ZERO + offset, size

        if launch.overlap is not None:
            launch.overlap.check(agent, region, rows, access, writes=False)
        launch.memory.read_box(launch.memory.shadow(region), (offset, size), rows, access, agent.clock)

    def global_copied_out(self, w: Warp, at: int, lane: int, boxes: Sequence[TmaBox], reduces: bool) -> None:
        """Record a tensor store's writes of global memory."""
        for box in boxes:
            if box.region is not None:
                offsets, size = box.rows()
                self._written_out(w, at, lane, box.region, offsets, size, reduces=reduces)

    def global_written_out(
        self, w: Warp, at: int, lane: int, region: Region, offset: int, size: int, reduces: bool
    ) -> None:
        """Record a bulk store's write of global memory."""
        self._written_out(w, at, lane, region, ZERO + offset, size, reduces=reduces)

    def _written_out(
        self, w: Warp, at: int, lane: int, region: Region, offsets: NDArray[np.intp], size: int, *, reduces: bool
    ) -> None:
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        stores = agent.agents.bulk[agent, lane]
        # Reductions are relaxed atomics at GPU scope (PTX ISA, "cp.reduce.async.bulk").
        flags = ASYNC | STRONG if reduces else ASYNC
        access = Access(stores.write, stores.issued, flags, at, agent.id)
        if launch.overlap is not None:
            launch.overlap.check(agent, region, lambda: (offsets, size), access, writes=True)
        launch.memory.write(launch.memory.shadow(region), offsets, size, access, agent.clock)

    def _bulk_stores(self, agent: WarpAgent, mask: int) -> list[BulkStores]:
        bulk = agent.agents.bulk
        return [bulk[agent, lane] for lane in lanes(mask) if (agent, lane) in bulk] if bulk else []

    def bulk_commit(self, w: Warp, mask: int, at: int) -> None:
        """Commit the bulk stores of some lanes as groups."""
        for stores in self._bulk_stores(self._warp(w), mask):
            stores.commit()

    def bulk_wait(self, w: Warp, mask: int, at: int, allowed: int, read: bool) -> None:
        """Order the reads of complete groups of bulk stores, and unless ``read`` their writes, before what follows."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        for stores in self._bulk_stores(agent, mask):
            done = stores.done(allowed)
            if done:
                agent.complete(stores.read, done)
                if not read:
                    agent.complete(stores.write, done)
        loads = agent.agents.map_loads.get(agent)
        if loads is not None:
            agent.launch.bulk_waits[agent.id] = loads.issued
        maps = agent.agents.map_reads.get(agent)
        if maps is not None:
            done = maps.done(allowed)
            if done:
                agent.complete(maps.number, done)
