"""The detector's hooks for the warps' own accesses, and for ``cp.async``.

``cp.async`` writes through the generic proxy, unlike the bulk copies, but by an agent of its own: its writes are
ordered before what follows only by ``cp.async.wait_group`` (PTX ISA, "cp.async.wait_group"; the groups of one thread
complete in order), and are visible to the async proxy only behind a proxy fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.memory.access import READ, WRITE
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.memory.shared import SharedMemory
from pytest_nvfp4.sim.races.access import STRONG, Access, make_access
from pytest_nvfp4.sim.races.access_pair import RACE
from pytest_nvfp4.sim.races.agents import Commit, WarpAgent
from pytest_nvfp4.sim.races.hooks import Hooks, has_started, shared_footprint
from pytest_nvfp4.sim.races.lane_order import make_items
from pytest_nvfp4.sim.races.region_shadow import RegionShadow, item_rows
from pytest_nvfp4.sim.races.ticks import ASYNC_SHARED
from pytest_nvfp4.sim.races.users import part_of
from pytest_nvfp4.sim.races.warp_lanes import PLAIN, GlobalLaneAccess, SharedLaneAccess
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.mbarrier import Mbarrier


class MemoryHooks(Hooks):
    """The detector's hooks for the warps' own accesses, and for ``cp.async``.

    ``where`` is the pattern of the lanes' items, the lowest at ``index`` or ``offset``, or the size of a single item.
    ``mask`` is the lanes of an access to a single item, 0 for a pattern.
    """

    def shared_accessed(
        self, w: Warp, at: int, shared: SharedMemory, index: int, where: Pattern | int, kind: int, mask: int = 0
    ) -> None:
        """Check and record a warp's access to shared memory."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        cta = w.cta
        if shared is not cta.shared:
            cta = cta.cluster.ctas[shared.rank]
        launch = agent.launch
        memory = self._memory(cta)
        footprint = launch.shared.find((index, where)) or shared_footprint(launch, index, where)
        order = launch.order[at]
        which = mask or (where.mask if where.__class__ is not int else 0)  # type: ignore[union-attr]
        if which and launch.matrix[at] == PLAIN:
            number = agent.lane_order.access(which)
            items = make_items((index, where, which))
        else:
            number, items = agent.number, None
        access = make_access((number, agent.epoch(), STRONG if order.strong else 0, at, agent.id, items, None))
        ticks = agent.clock.ticks
        if kind == READ:
            agent.loaded[at] = access.tick
            memory.shared.read(footprint.parts, access, ticks)
        else:
            self.storing = shared.data if kind == WRITE and not order.strong else None
            memory.shared.write(footprint.parts, access, ticks)
            self.storing = None
        if cta is not w.cta:
            memory.peer_accesses.last[agent.number] = access
            if not has_started(agent, cta):
                self._not_started(agent, cta, at)
        writes = kind != READ
        if mask or where.__class__ is not int:
            high = index + (where if where.__class__ is int else where.span)  # type: ignore[union-attr]
            race = agent.lanes.shared_access(
                SharedLaneAccess(index, high, shared.rank, where, mask, launch.matrix[at], order.strong, at),
                writes=writes,
            )
            if race is not None:
                place = f"shared memory bytes [{race.access.low}, {race.access.high})"
                launch.lanes_conflict(agent, race, access, place, writes=writes)
        if order.strong:
            if order.acquires:
                agent.lanes.synchronise()
            with agent.lane_order.releasing(which or w.live, w.live, at):
                for offset in (0,) if where.__class__ is int else set(where.offsets.tolist()):  # type: ignore[union-attr]
                    address = (agent.id.cluster, cta.rank, index + offset)
                    launch.variables.access(address, agent, agent.fences, agent.id, order, write=writes)

    @staticmethod
    def _not_started(agent: WarpAgent, cta: Cta, at: int) -> None:
        """Report a warp's first access to another CTA's shared memory that is not ordered behind that CTA's start."""
        agent.launch.reporter.other(
            RACE,
            f"{agent.launch.grid.place(at)} in {agent.id} accesses shared memory of CTA rank {cta.rank} of its "
            "cluster, and nothing orders it after the start of that CTA, whose memory may not exist yet",
            "barrier.cluster.arrive and .wait, a <barrier.cluster> that may be relaxed, in all CTAs before the first "
            "access to a peer's shared memory",
            warp=agent.id,
            at=at,
        )

    def global_accessed(
        self, w: Warp, at: int, region: Region, offset: int, where: Pattern | int, kind: int, mask: int = 0
    ) -> None:
        """Check and record a warp's access to global memory."""
        if not region.writable:
            region.read_at = at
            return
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        order = launch.order[at]
        if order.strong:
            polled = at, offset, where, mask, w.cta.launch.machine.changes
            if agent.polled is not None and agent.repeats(polled):
                return
        memory = launch.memory
        shadow = memory.shadow(region)
        writes = kind != READ
        if not writes and (users := launch.users[at]) is not None:
            using = users[w.index] & (mask or (where.mask if where.__class__ is not int else w.live))  # type: ignore[union-attr]
            if not using:
                return
            if where.__class__ is int:
                mask = using
            elif using != where.mask:  # type: ignore[union-attr]
                distance, where = part_of(where, using)
                offset += distance
                if where.same:
                    where, mask = where.size, using
        lanes = agent.lanes
        key = offset, where
        early = False
        if not shadow.written:
            if writes:
                memory.settle(shadow)
            elif not order.strong:
                early = True
                if launch.overlap is None and not shadow.records_read(key, lanes):
                    return
        alone = shadow.written and not (order.strong or shadow.maps or launch.non_coherent[at])
        if alone and launch.overlap is None:
            sole = shadow.sole.get(key)
            if sole is not None and sole.lanes is lanes and sole.mask == mask:
                sole.touch(agent.epoch(), at, writes=writes)
                return
        access = make_access((agent.number, agent.epoch(), STRONG if order.strong else 0, at, agent.id, None, None))
        if launch.overlap is not None:
            launch.overlap.check(agent, region, partial(item_rows, offset, where), access, writes=writes)
        if early:
            shadow.read_early(key, mask, lanes, access)
            return
        memory.sync_count, memory.settled, memory.again, memory.held = lanes.sync_count, order.acquires, False, False
        if alone and memory.touch_own(shadow, key, mask, lanes, access, writes=writes):
            pass
        elif not writes:
            units = shadow.items(offset, where)
            if launch.non_coherent[at]:
                self._check_constant(agent, at, shadow, units)
            memory.read(shadow, units, access, agent.clock)
        else:
            self.storing = region.data if kind == WRITE else None
            memory.write_items(shadow, offset, where, access, agent.clock)
            self.storing = None
        memory.sync_count, memory.settled = 0, False
        if memory.held:
            return
        # An access that the lanes are synchronised behind is compared, and need not be recorded.
        if (mask or where.__class__ is not int) and (memory.again or not order.acquires):
            low = region.start + offset
            high = low + (where if where.__class__ is int else where.span)  # type: ignore[union-attr]
            lane_access = GlobalLaneAccess(low, high, where, mask, order.strong, at, writes)
            race = lanes.global_access(lane_access, again=memory.again)
            if race is not None:
                place = f"global memory at {region.place(race.byte)}"
                launch.lanes_conflict(agent, race, access, place, writes=writes)
        if order.strong:
            if order.acquires:
                lanes.synchronise()
            which = mask or (where.mask if where.__class__ is not int else w.live)  # type: ignore[union-attr]
            with agent.lane_order.releasing(which, w.live, at):
                for item in (0,) if where.__class__ is int else set(where.offsets.tolist()):  # type: ignore[union-attr]
                    address = region.start + offset + item
                    if order.returns:
                        memory.observe(shadow, offset + item, access)
                    launch.variables.access(address, agent, agent.fences, agent.id, order, write=writes)
            agent.polled = None if writes else (polled, agent.version, lanes.sync_count)

    @staticmethod
    def _check_constant(agent: WarpAgent, at: int, shadow: RegionShadow, units: NDArray[np.intp] | slice) -> None:
        """Report a non-coherent load of what the launch has written, whatever orders the two."""
        launch = agent.launch
        found = launch.memory.written(shadow, units)
        if found is None:
            return
        old, offset = found
        place = launch.grid.place
        launch.reporter.other(
            RACE,
            f"{place(at)} in {agent.id} reads "
            f"{shadow.region.place(shadow.region.start + offset)}, which {place(old.at)} in {old.warp} has written in "
            "this launch: it may return what was there before",
            # PTX ISA, "ld.global.nc": the memory is read-only for the duration of the kernel.
            "a plain load (no __ldg, and no const __restrict__ pointer to memory that is written): the non-coherent "
            "path (.nc) is for memory that no thread writes while the kernel runs",
            warp=agent.id,
            at=at,
        )

    def async_copied(
        self, w: Warp, at: int, index: int, target: Pattern, sources: Sequence[tuple[Region, int, Pattern | int]]
    ) -> None:
        """Check and record a ``cp.async``."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        copies = agent.agents.copies[agent]
        copies.issued += 1
        access = Access(copies.number, copies.issued, 0, at, agent.id)
        footprint = launch.shared.find((index, target)) or shared_footprint(launch, index, target)
        agent.memory.shared.write(footprint.parts, access, agent.clock.ticks)
        for region, offset, where in sources:
            if region.writable:
                rows = partial(item_rows, offset, where)
                if launch.overlap is not None:
                    launch.overlap.check(agent, region, rows, access, writes=False)
                shadow = launch.memory.shadow(region)
                launch.memory.read(shadow, shadow.units(*rows()), access, agent.clock)
            else:
                region.read_at = at

    def async_committed(self, w: Warp) -> None:
        """Commit the ``cp.async`` of a warp as a group."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        copies = agent.agents.copies[agent]
        copies.groups.append(copies.issued)

    def async_waited(self, w: Warp, allowed: int | None) -> None:
        """Order all but the ``allowed`` youngest groups (None: all copies) of ``cp.async`` before what follows."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        copies = agent.agents.copies[agent]
        done = copies.done(allowed)
        if done:
            agent.complete_generic(copies.number, done)

    def async_arrives(self, w: Warp, at: int, barrier: Mbarrier) -> None:
        """Record what an arrive of ``cp.async`` will release: the warp's past and the copies issued so far."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        state = agent.agents.barriers[barrier]
        self._use(agent, state, barrier, at)
        copies = agent.agents.copies[agent]
        snapshot = agent.snapshot()
        snapshot[agent.clocks.number][:ASYNC_SHARED, copies.number] = copies.issued
        state.commits.append(Commit(snapshot, near=barrier.cta is w.cta))
        agent.advance()

    def stored_async(
        self, w: Warp, at: int, shared: SharedMemory, index: int, where: Pattern, barrier: Mbarrier
    ) -> None:
        """Check and record a ``st.async`` or ``red.async``: a write that completes at an mbarrier."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        state = agent.agents.barriers[barrier]
        self._use(agent, state, barrier, at)
        state.join(agent)
        flags = STRONG if w.cta.launch.kernel.instructions[at].root == "red" else 0
        access = Access(state.number, barrier.phase + 1, flags, at, agent.id)
        footprint = launch.shared.find((index, where)) or shared_footprint(launch, index, where)
        memory = self._memory(w.cta.cluster.ctas[shared.rank])
        memory.shared.write(footprint.parts, access, agent.clock.ticks)
