"""The part of the detector that hears of the warps' own accesses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pytest_nvfp4.sim.monitor import READ, WRITE
from pytest_nvfp4.sim.races.access import STRONG, Access
from pytest_nvfp4.sim.races.agents import WarpAgent
from pytest_nvfp4.sim.races.clocks import BEFORE
from pytest_nvfp4.sim.races.findings import RACE
from pytest_nvfp4.sim.races.global_shadow import item_rows
from pytest_nvfp4.sim.races.sync_variables import known_by
from pytest_nvfp4.sim.races.warp_lanes import GlobalTouch, Touch

if TYPE_CHECKING:
    from pytest_nvfp4.sim.memory.globals import Region
    from pytest_nvfp4.sim.memory.pattern import Pattern
    from pytest_nvfp4.sim.memory.shared import SharedMemory
    from pytest_nvfp4.sim.run.cta import Cta
    from pytest_nvfp4.sim.run.warp import Warp
    from pytest_nvfp4.sim.sync.mbarrier import Mbarrier

from pytest_nvfp4.sim.races.hooks import ONE, Hooks, make, shared_footprint

__all__ = ["MemoryHooks"]


class MemoryHooks(Hooks):
    """The part of the detector that hears of the warps' own accesses."""

    # ---- the warps' own accesses ---------------------------------------------------------------------------------

    def shared_accessed(
        self, w: Warp, at: int, shared: SharedMemory, index: int, where: Pattern | int, kind: int, mask: int = 0
    ) -> None:
        """A warp accesses shared memory."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        cta = w.cta
        if shared is not cta.shared:
            cta = cta.cluster.ctas[shared.rank]
        launch = agent.launch
        memory = self._memory(cta)
        footprint = launch.shared.find((index, where)) or shared_footprint(launch, index, where)
        order = launch.order(at)
        access = make((agent.number, agent.epoch(), STRONG if order.strong else 0, at, agent.who, None, None))
        ticks = agent.clock.ticks
        if kind == READ:
            memory.shared.read(footprint.parts, access, ticks)
        else:
            memory.shared.write(footprint.parts, access, ticks)
        if cta is not w.cta:
            memory.visits.last[agent.number] = access
            if cta.rank not in agent.started:
                self._reach(agent, cta, at)
        if mask or where.__class__ is not int:
            self._lanes(agent, access, Touch(
                index, index + (where if where.__class__ is int else where.span), shared.rank, where, mask,  # type: ignore[union-attr]
                launch.matrix(at), order.strong, at,
            ), writes=kind != READ)  # fmt: skip
        if order.strong:
            if order.acquires:
                agent.lanes.meet()
            for offset in (0,) if where.__class__ is int else set(where.offsets.tolist()):  # type: ignore[union-attr]
                launch.variables.access(
                    (agent.who.cluster, cta.rank, index + offset), agent, agent.thread, agent.who, order,
                    write=kind != READ,
                )  # fmt: skip

    @staticmethod
    def _reach(agent: WarpAgent, cta: Cta, at: int) -> None:
        """Whoever touches another CTA's shared memory knows that this CTA has started."""
        agent.started.add(cta.rank)
        before = agent.clock.ticks[BEFORE]
        theirs = (warp.units.get(WarpAgent) for warp in cta.warps)
        if any(one is not None and before[one.number] for one in theirs):
            return
        if any(number == agent.number or before[number] >= tick for number, tick in agent.memory.gathered.items()):
            return
        agent.launch.reporter.other(
            RACE,
            f"{agent.launch.grid.say(at)} in {agent.who} accesses shared memory of CTA rank {cta.rank} of its cluster, "
            "and nothing orders it after the start of that CTA, whose memory need not be there yet",
            "barrier.cluster.arrive and barrier.cluster.wait (cute.arch.cluster_arrive, cluster_wait; both may be "
            "relaxed) in all CTAs before the first access to a peer's shared memory",
            who=agent.who,
            at=at,
        )

    def _lanes(self, agent: WarpAgent, access: Access, touch: Touch, *, writes: bool) -> None:
        """Compare the lanes of a warp with each other."""
        found = agent.lanes.access(touch, writes=writes)
        if found is not None:
            old, wrote = found
            agent.launch.lanes_conflict(agent, old, access, (wrote, writes))

    def global_accessed(
        self, w: Warp, at: int, region: Region, offset: int, where: Pattern | int, kind: int, mask: int = 0
    ) -> None:
        """A warp accesses global memory."""
        if not region.writable:
            region.read_at = at
            return
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        order = launch.order(at)
        memory = launch.memory
        shadow = memory.shadow(region)
        early = kind == READ and not shadow.written and not order.strong
        if early and launch.overlap is None and not memory.wants(
            shadow, offset, where, agent.who.cluster, agent.number
        ):  # fmt: skip
            return
        access = make((agent.number, agent.epoch(), STRONG if order.strong else 0, at, agent.who, None, None))
        if launch.overlap is not None:
            launch.overlap.check(agent, region, partial(item_rows, offset, where), access, writes=kind != READ)
        lanes = agent.lanes
        memory.met, memory.again = lanes.met, False
        if early:
            memory.read_early(shadow, offset, where, access)
        elif kind == READ:
            memory.read_items(shadow, offset, where, access, agent.clock)
        else:
            self.storing = kind == WRITE
            memory.write_items(shadow, offset, where, access, agent.clock)
            self.storing = False
        memory.met = 0
        if mask or where.__class__ is not int:
            low = region.start + offset
            high = low + (where if where.__class__ is int else where.span)  # type: ignore[union-attr]
            touch = GlobalTouch(low, high, where, mask, order.strong, at, kind != READ)
            found = lanes.touch(touch, again=memory.again)
            if found is not None:
                launch.lanes_conflict_there(agent, region, found, touch, access)
        if order.strong:
            if order.acquires:
                agent.lanes.meet()
            items = [offset] if where.__class__ is int else set((where.offsets + offset).tolist())  # type: ignore[union-attr]
            for one in items:
                launch.variables.access(region.start + one, agent, agent.thread, agent.who, order, write=kind != READ)

    def async_copied(
        self, w: Warp, at: int, index: int, target: Pattern, sources: Sequence[tuple[Region, int, Pattern | int]]
    ) -> None:
        """``cp.async``: a write in the generic proxy, by an agent of its own."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        copies = agent.agents.copies_of(agent)
        copies.issued += 1
        access = Access(copies.number, copies.issued, 0, at, agent.who)
        footprint = launch.shared.find((index, target)) or shared_footprint(launch, index, target)
        agent.memory.shared.write(footprint.parts, access, agent.clock.ticks)
        for region, offset, where in sources:
            if region.writable:
                if launch.overlap is not None:
                    launch.overlap.check(agent, region, partial(item_rows, offset, where), access, writes=False)
                if where.__class__ is int:
                    offsets, size = ONE + offset, where
                else:
                    offsets, size = where.offsets + offset, where.size  # type: ignore[union-attr]
                launch.memory.read(launch.memory.shadow(region), offsets, size, access, agent.clock)
            else:
                region.read_at = at

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
        footprint = launch.shared.find((index, size)) or shared_footprint(launch, index, size)
        memory = self._memory(w.cta.cluster.ctas[shared.rank])
        memory.shared.write(footprint.parts, access, agent.clock.ticks)


def _learn_generic(agent: WarpAgent, number: int, tick: int) -> None:
    """Work of the generic proxy is complete: visible to the async proxy only behind a fence."""
    ticks = agent.clock.ticks
    if ticks[BEFORE, number] < tick:
        ticks[BEFORE, number] = tick
        agent.version += 1
