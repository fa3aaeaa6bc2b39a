"""The detector's hooks for fences and barriers, which create the edges of the causality order.

PTX ISA, "Memory Consistency Model", "Release and Acquire Patterns" and "Synchronizes-with": an mbarrier's arrive is a
release and a wait that returns true an acquire, at CTA or cluster scope, unless ``.relaxed``. ``bar.sync``,
``barrier.cluster`` and named barriers are both. A fence turns relaxed operations around it into a pattern.
"""

# ruff: noqa: ARG002 - every event has the instruction and its lanes
from __future__ import annotations

import numpy as np

from pytest_nvfp4.sim.races.access import Access
from pytest_nvfp4.sim.races.access_pair import RACE
from pytest_nvfp4.sim.races.agents import BarrierState, ClusterAgents, FailedTest, RoundState, WarpAgent
from pytest_nvfp4.sim.races.clocks import Clock, Epoch, PendingLoads
from pytest_nvfp4.sim.races.hooks import Hooks
from pytest_nvfp4.sim.races.orders import CLUSTER, CTA, fence_scope, is_sc
from pytest_nvfp4.sim.races.scopes import NarrowScope
from pytest_nvfp4.sim.races.ticks import INITS, ISSUED, TENSOR
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.cluster import ClusterBarrier
from pytest_nvfp4.sim.sync.mbarrier import Actor, Mbarrier
from pytest_nvfp4.sim.sync.named import NamedBarrier


class SyncHooks(Hooks):
    """The detector's hooks for fences and barriers."""

    # ---- fences --------------------------------------------------------------------------------------------------

    def fence(self, w: Warp, mask: int, kind: str, at: int) -> None:
        """Execute a fence of any kind, or a tcgen05 wait; ``kind`` is the opcode, of a fence without its root."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        if not w.live & ~mask:
            agent.lane_order.meet(mask)
        if kind.startswith("tcgen05."):
            _fence_tcgen05(agent, kind)
        elif kind.startswith("proxy.async"):
            everywhere = kind == "proxy.async"
            agent.fence_proxy(shared=not kind.endswith(".global"), everywhere=everywhere)
        elif kind.startswith("mbarrier_init"):
            agent.fence_inits()
            for state in agent.agents.barriers.values():
                if state.init is not None and state.init.agent == agent.number:
                    state.fenced = True
        else:
            scope = fence_scope(kind.removeprefix("proxy.tensormap::generic."))
            if scope is not None:
                if is_sc(kind):
                    agent.fence_sc()
                with agent.lane_order.releasing(mask, w.live, at):
                    agent.fences.fence(agent, scope)
                agent.lanes.synchronise()

    def warp_met(self, w: Warp, mask: int, at: int) -> None:
        """Order the lanes of a warp."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        agent.lanes.synchronise()
        agent.lane_order.meet(mask | ~w.live)

    def grid_waited(self, w: Warp, mask: int, at: int) -> None:
        """Order the launches that this one depends on before what follows."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        if agent.launch.overlap is not None:
            agent.launch.overlap.waited(agent)

    # ---- mbarriers -----------------------------------------------------------------------------------------------

    def mbarrier_initialised(self, barrier: Mbarrier, who: Actor) -> None:
        """Begin the history of an mbarrier."""
        assert not isinstance(who, str)
        agent = self._warp(who[0])
        state = BarrierState(agent.clocks, barrier)
        state.repeated = barrier in agent.agents.barriers
        agent.agents.barriers[barrier] = state
        state.init = Epoch(agent.number, agent.epoch())
        state.at = who[1]
        state.warp = agent.id
        agent.initialised.add(state.number)

    def mbarrier_arrived(self, barrier: Mbarrier, who: Actor, count: int, lanes: int) -> None:
        """Release to an mbarrier."""
        if isinstance(who, str):  # the arrive of a commit or of cp.async, which recorded what it releases
            state = barrier.cta.cluster.unit(ClusterAgents).barriers[barrier]
            if state.commits:
                state.perform_commit()
            return
        w, at = who
        agent = w.units.get(WarpAgent) or self._warp(w)
        state = agent.agents.barriers[barrier]
        if state.number not in agent.initialised:
            self._use(agent, state, barrier, at)
        if barrier.cta is not w.cta:
            arrive = Access(agent.number, agent.epoch(), 0, at, agent.id)
            self._memory(barrier.cta).peer_accesses.last[agent.number] = arrive
            state.separate()
        if state.commits and w.cta.launch.kernel.instructions[at].opcode.startswith("cp.async"):
            state.perform_commit()
        else:
            with agent.lane_order.releasing(lanes, w.live, at):
                _release(agent, state, at, barrier)
        if (loads := agent.launch.pending_loads.get(at)) is not None:
            _note_pending(agent, loads)

    def mbarrier_bytes(self, barrier: Mbarrier, who: Actor, size: int) -> None:
        """Make the data of the phase's copies visible to waiters, in all proxies.

        PTX ISA, "cp.async.bulk": the complete-tx operation has release semantics at cluster scope.
        """
        state = barrier.cta.cluster.unit(ClusterAgents).barriers[barrier]
        state.arrived.ticks[:, state.number] = barrier.phase + 1

    def mbarrier_completed(self, barrier: Mbarrier) -> None:
        """Complete the phase of an mbarrier."""
        barrier.cta.cluster.unit(ClusterAgents).barriers[barrier].finish()

    def mbarrier_waited(self, w: Warp, mask: int, barrier: Mbarrier, at: int) -> None:
        """Acquire from an mbarrier's last complete phase, if any: the one before ``barrier.phase``."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        state = agent.agents.barriers[barrier]
        if state.number not in agent.initialised:
            self._use(agent, state, barrier, at)
        if agent.failed_tests:
            self._check_parity(agent, mask, state, barrier, at)
        complete = state.complete
        if complete is not None:
            launch = agent.launch
            if state.near_complete is not None and (launch.relaxed[at] or launch.acquires_in_cta[at]):
                agent.fences.observe(CLUSTER, {agent.clocks.number: complete.ticks.copy()})
            if launch.relaxed[at]:
                agent.fences.observe(CTA, state.near_snapshot())
                _pass_tensor_work(complete, agent.clock)
                agent.version += 1
                agent.memory.peer_accesses.observe(complete)
            else:
                if state.near_complete is not None and launch.acquires_in_cta[at]:
                    launch.narrow_scopes.add(NarrowScope(at, agent.id, barrier.cta.rank, acquires=True))
                    agent.acquire_snapshot(state.near_snapshot())
                else:
                    agent.acquire(complete)
                agent.lanes.synchronise()
            if state.performed is not None:
                launch.relaxed_arrives.observe(agent.id, agent.memory.peer_accesses, state.performed)

    def mbarrier_refused(self, w: Warp, mask: int, barrier: Mbarrier, at: int) -> None:
        """Record a test for the current phase that returned false."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        agent.failed_tests[agent.agents.barriers[barrier].number] = FailedTest(barrier.phase, at, mask)

    @staticmethod
    def _check_parity(agent: WarpAgent, mask: int, state: BarrierState, barrier: Mbarrier, at: int) -> None:
        """Report a test of the wrong parity, which failed in this run.

        A test of parity P returns true iff the current phase's parity is not P. A warp that tests for the current
        phase and then proceeds with the previous one did not need the first test. It failed harmlessly here; but while
        the mbarrier is one phase behind, as for a warp that comes early, the same test returns true for the phase
        before, and is no wait at all. In its first phase a barrier cannot be behind.
        """
        test = agent.failed_tests.pop(state.number, None)
        if test is None or test.phase != barrier.phase or not test.phase or not test.lanes & mask:
            return
        grid = agent.launch.grid
        agent.launch.reporter.other(
            RACE,
            f"{grid.place(test.at)} in {agent.id} tests parity {test.phase & 1} of the {barrier.name}, whose phase "
            f"{test.phase} is incomplete, and {grid.place(at)} then accepts the previous phase: if the warp comes "
            "before that one is complete, the test returns true for the phase before it, and the guarded code runs too "
            "early",
            f"the parity that {grid.place(at)} waits for; check the phase of the pipeline's state and its initial "
            "value",
            warp=agent.id,
            at=test.at,
        )

    # ---- other barriers ------------------------------------------------------------------------------------------

    def barrier_arrived(self, w: Warp, mask: int, barrier: NamedBarrier | ClusterBarrier, at: int) -> None:
        """Release to the round of a named barrier or the cluster barrier."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        state = agent.agents.rounds[barrier]
        if (
            state.passed.get(agent.id) is not state.complete[None]
            and isinstance(barrier, NamedBarrier)
            and not agent.has_seen(state.number, state.rounds)
        ):
            _report_mixed(agent, state, barrier, at)
        state.coming[agent.id] = at
        if not (agent.lane_order.open or agent.launch.relaxed[at]):
            state.join(agent)
        else:
            with agent.lane_order.releasing(mask, w.live, at):
                if agent.launch.relaxed[at]:
                    _release_relaxed(agent, state, at, scope=CLUSTER)
                else:
                    state.join(agent)
        if (loads := agent.launch.pending_loads.get(at)) is not None:
            _note_pending(agent, loads)

    def barrier_completed(self, barrier: NamedBarrier | ClusterBarrier) -> None:
        """Complete the round."""
        cluster = barrier.cta.cluster if isinstance(barrier, NamedBarrier) else barrier.cluster
        cluster.unit(ClusterAgents).rounds[barrier].finish()

    def barrier_passed(self, w: Warp, mask: int, barrier: NamedBarrier | ClusterBarrier, at: int) -> None:
        """Acquire from the round."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        state = agent.agents.rounds[barrier]
        state.acquire(agent)
        agent.lanes.synchronise()
        if state.performed is not None:
            agent.launch.relaxed_arrives.observe(agent.id, agent.memory.peer_accesses, state.performed)
        if not isinstance(barrier, NamedBarrier):
            agent.memory.cluster_ticks.setdefault(agent.number, agent.epoch())


def _report_mixed(agent: WarpAgent, state: RoundState, barrier: NamedBarrier, at: int) -> None:
    """Report an arrival at a named barrier that may count in the round before: nothing orders it behind that one."""
    place = agent.launch.grid.place
    earlier, where = next(reversed(state.last.items()))
    agent.launch.reporter.other(
        RACE,
        f"{place(at)} in {agent.id} arrives at barrier {barrier.number}, and nothing orders it behind the last round "
        f"of that barrier, in which {place(where)} in {earlier} arrived: if it comes first, it counts in that round, "
        "and releases warps too early",
        "a thread count of all threads that meet, or a barrier number for each group of warps that meets by itself",
        warp=agent.id,
        at=at,
        group=("rounds", barrier.number),
    )


def _release(agent: WarpAgent, state: BarrierState, at: int, barrier: Mbarrier) -> None:
    """Release to an mbarrier."""
    launch = agent.launch
    near = barrier.cta.rank == agent.id.rank
    if launch.relaxed[at]:
        _release_relaxed(agent, state, at, scope=CTA if near else CLUSTER)
        if near and state.near is not None:
            _release_fenced(agent, state.near, CTA)
    elif near:
        state.join(agent)
    else:
        in_cta = launch.arrives_in_cta[at]
        if in_cta:
            launch.narrow_scopes.add(NarrowScope(at, agent.id, barrier.cta.rank, acquires=False))
            _release_fenced(agent, state.arrived, CLUSTER)
        state.join_peer(agent, visible=not in_cta)


def _note_pending(agent: WarpAgent, loads: frozenset[int]) -> None:
    """Note the loads that may be pending at an arrive; a later release, which may wait for them, ends another tick."""
    known, tick = agent.clocks.pending, agent.tick
    for load in loads & agent.loaded.keys():
        known.setdefault((agent.id, agent.loaded[load]), PendingLoads(agent.number, {})).last[load] = tick
    agent.advance()
    agent.epoch()


def _release_relaxed(agent: WarpAgent, state: BarrierState | RoundState, at: int, *, scope: int) -> None:
    """Release, by a relaxed arrive, what a fence before it covered, the initialised mbarriers, and tcgen05 work.

    Observers of the arrive know everything before it as performed (``cta_exit``).
    """
    agent.launch.relaxed_arrives.add(agent.id, agent.tick, at)
    clock = state.arrived
    _release_fenced(agent, clock, scope)
    row = clock.ticks[INITS]
    np.maximum(row, agent.clock.ticks[INITS], out=row)
    _pass_tensor_work(agent.clock, clock)
    if state.performed is None:
        state.performed = agent.clocks.clock()
    state.performed.join(agent.clock)
    agent.advance()


def _release_fenced(agent: WarpAgent, clock: Clock, scope: int) -> None:
    """Release what a fence of at least a scope has covered."""
    fenced = agent.fences.fenced.get(scope)
    if fenced is not None:
        clock.join_snapshot(agent.clocks.number, fenced)


def _pass_tensor_work(source: Clock, target: Clock) -> None:
    """Pass on the tcgen05 work before a synchronisation, which may be relaxed."""
    rows = target.ticks[TENSOR : ISSUED + 1]
    np.maximum(rows, source.ticks[TENSOR : ISSUED + 1], out=rows)


def _fence_tcgen05(agent: WarpAgent, kind: str) -> None:
    if kind.endswith("after_thread_sync"):
        agent.fence_after_sync()
    elif kind.endswith("before_thread_sync"):
        agent.fence_before_sync()
    elif kind.endswith("wait::st"):
        if agent.st >= 0:
            agent.st_waited = agent.st_issued
            agent.complete(agent.st, agent.st_issued)
    elif kind.endswith("wait::ld"):
        agent.ld_waited = agent.ld_issued
        if agent.ld >= 0:
            agent.complete(agent.ld, agent.ld_issued)
