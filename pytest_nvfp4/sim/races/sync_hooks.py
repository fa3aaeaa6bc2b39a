"""The part of the detector that hears of fences and barriers: who is ordered after whom."""

# ruff: noqa: ARG002 - the signatures are those of sim.monitor
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_nvfp4.sim.races.access import Access
from pytest_nvfp4.sim.races.agents import BarrierState, ClusterAgents, WarpAgent
from pytest_nvfp4.sim.races.clocks import INITS, ISSUED, TENSOR, Clock
from pytest_nvfp4.sim.races.findings import RACE
from pytest_nvfp4.sim.races.orders import CLUSTER, CTA, fence_of, is_sc
from pytest_nvfp4.sim.races.sync_variables import Known

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp
    from pytest_nvfp4.sim.sync.mbarrier import Mbarrier, Who

from pytest_nvfp4.sim.races.hooks import Hooks

__all__ = ["SyncHooks"]


class SyncHooks(Hooks):
    """The part of the detector that hears of fences and barriers: who is ordered after whom."""

    # ---- fences --------------------------------------------------------------------------------------------------

    def fence(self, w: Warp, mask: int, kind: str, at: int) -> None:
        """A fence of any kind, or a tcgen05 wait."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        if kind.startswith("tcgen05."):
            _fence_tcgen05(agent, kind)
        elif kind.startswith("proxy.async"):
            everywhere = kind == "proxy.async"
            agent.fence_proxy(shared=not kind.endswith(".global"), everywhere=everywhere)
        elif kind.startswith("mbarrier_init"):
            agent.fence_inits()
            for state in agent.agents.barriers.values():
                if state.init is not None and state.init[0] == agent.number:
                    state.fenced = True
        else:
            scope = fence_of(kind)
            if scope is not None:
                if is_sc(kind):
                    agent.fence_sc()
                agent.thread.fence(agent, scope)
                agent.lanes.meet()

    def warp_met(self, w: Warp, mask: int, at: int) -> None:
        """The lanes of a warp are ordered."""
        (w.units.get(WarpAgent) or self._warp(w)).lanes.meet()

    def grid_waited(self, w: Warp, mask: int, at: int) -> None:
        """The launches that this one depends on are complete."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        if agent.launch.overlap is not None:
            agent.launch.overlap.waited(agent)

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
        if barrier.cta is not w.cta:
            visit = Access(agent.number, agent.epoch(), 0, at, agent.who)
            self._memory(barrier.cta).visits.last[agent.number] = visit
        if state.commits and w.cta.launch.kernel.instructions[at].opcode.startswith("cp.async"):
            _arrive_known(state, state.commits.popleft())
        elif agent.launch.relaxed(at):
            _release_relaxed(agent, state.arrived)
            state.loose = _performed(agent, state.loose)
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
        if agent.refused:
            self._contented(agent, mask, state, barrier, at)
        complete = state.complete
        if complete is not None:
            if agent.launch.relaxed(at):
                known: Known = {agent.clocks.number: complete.ticks.copy()}
                agent.thread.seen[id(known)] = (CTA if barrier.cta is w.cta else CLUSTER, known)
                _tensor_work(agent.clock, complete)
                agent.version += 1
                agent.memory.visits.performed(complete)
            else:
                agent.acquire(complete)
                agent.lanes.meet()
            if state.loose is not None:
                agent.memory.visits.performed(state.loose)

    def mbarrier_refused(self, w: Warp, mask: int, barrier: Mbarrier, at: int) -> None:
        """A test for the phase that goes on did not hold."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        agent.refused[agent.agents.barrier(barrier).number] = (barrier.phase, at, mask)

    @staticmethod
    def _contented(agent: WarpAgent, mask: int, state: BarrierState, barrier: Mbarrier, at: int) -> None:
        """Who asked for a phase and is then content with the one before asked for the wrong parity.

        Nobody goes on by that test here. Where the barrier is one phase behind, as it is when the thread comes early,
        the same test holds for the phase before, and is no wait at all; in its first phase it cannot be behind.
        """
        phase, first, lanes = agent.refused.pop(state.number, (-1, -1, 0))
        if phase != barrier.phase or not phase or not lanes & mask:
            return
        grid = barrier.cta.launch
        agent.launch.reporter.other(
            RACE,
            f"{grid.say(first)} in {agent.who} asks for parity {phase & 1} of the {barrier.name}, whose phase {phase} "
            f"is under way, and {grid.say(at)} is then content with the phase before: where the warp comes before that "
            "one is complete, the test holds for the phase before it, and what it guards goes on too early",
            f"the parity that {grid.say(at)} waits for; look at the phase of the pipeline's state and where it starts",
            who=agent.who,
            at=first,
        )

    # ---- other barriers ------------------------------------------------------------------------------------------

    def barrier_arrived(self, w: Warp, mask: int, barrier: Any, at: int) -> None:
        """A release into the round."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        round_ = agent.agents.round(barrier)
        if agent.launch.relaxed(at):
            _release_relaxed(agent, round_.arrived)
            round_.loose = _performed(agent, round_.loose)
        else:
            agent.release(round_.arrived)

    def barrier_completed(self, barrier: Any) -> None:
        """What was released so far is there for whoever leaves."""
        cluster = barrier.cluster if hasattr(barrier, "cluster") else barrier.cta.cluster
        cluster.unit(ClusterAgents).round(barrier).finish()

    def barrier_passed(self, w: Warp, mask: int, barrier: Any, at: int) -> None:
        """An acquire of the round."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        round_ = agent.agents.round(barrier)
        agent.acquire(round_.complete)
        agent.lanes.meet()
        agent.memory.visits.performed(round_.loose)
        if hasattr(barrier, "cluster"):
            agent.memory.gathered.setdefault(agent.number, agent.epoch())


def _release_relaxed(agent: WarpAgent, clock: Clock) -> None:
    """A relaxed arrive releases what a fence before it has covered, the initialised barriers, and tcgen05 work."""
    fenced = agent.thread.fenced.get(CLUSTER)
    if fenced is not None:
        for number, ticks in fenced.items():
            if number == agent.clocks.number:
                clock.join_snapshot(ticks)
            else:
                clock.learn({number: ticks})
    row = clock.ticks[INITS]
    np.maximum(row, agent.clock.ticks[INITS], out=row)
    _tensor_work(clock, agent.clock)


def _performed(agent: WarpAgent, loose: Clock | None) -> Clock:
    """What a relaxed arrive comes after, for those who only need to know that it has been performed."""
    if loose is None:
        loose = agent.clocks.clock()
    loose.join(agent.clock)
    agent.advance()
    return loose


def _tensor_work(clock: Clock, known: Clock) -> None:
    """Hand on the tcgen05 work that was put before a synchronisation, which may be relaxed."""
    rows = clock.ticks[TENSOR : ISSUED + 1]
    np.maximum(rows, known.ticks[TENSOR : ISSUED + 1], out=rows)


def _arrive_known(state: BarrierState, known: Known) -> None:
    for number, ticks in known.items():
        if number == state.clocks.number:
            state.arrived.join_snapshot(ticks)
        else:
            state.arrived.learn({number: ticks})


def _fence_tcgen05(agent: WarpAgent, kind: str) -> None:
    if kind.endswith("after_thread_sync"):
        agent.after_sync()
    elif kind.endswith("before_thread_sync"):
        agent.before_sync()
    elif kind.endswith("wait::st"):
        if agent.st >= 0:
            agent.st_known = agent.st_issued
            agent.learn(agent.st, agent.st_issued)
    elif kind.endswith("wait::ld"):
        agent.ld_known = agent.ld_issued
        if agent.ld >= 0:
            agent.learn(agent.ld, agent.ld_issued)
