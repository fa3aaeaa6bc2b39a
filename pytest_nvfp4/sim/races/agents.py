"""The agents of a cluster (warps, tensor pipes, asynchronous copies), and the shadows of its CTAs' memories."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from pytest_nvfp4.sim.races.access import TensorUse
from pytest_nvfp4.sim.races.clocks import Agent, Clock, Clocks, Copy, Epoch
from pytest_nvfp4.sim.races.cta_exit import PeerAccesses
from pytest_nvfp4.sim.races.groups import BulkStores, CpAsyncCopies, MapLoads, MapReads
from pytest_nvfp4.sim.races.lane_order import LaneOrder
from pytest_nvfp4.sim.races.launch import LaunchRaces
from pytest_nvfp4.sim.races.memo import Memo
from pytest_nvfp4.sim.races.names import AgentInfo, WarpId
from pytest_nvfp4.sim.races.shadow import Shadow
from pytest_nvfp4.sim.races.sync_variables import FenceState
from pytest_nvfp4.sim.races.tensor_order import TensorShadow
from pytest_nvfp4.sim.races.ticks import BEFORE, ISSUED, TENSOR, VISIBLE, Snapshot, TickRow
from pytest_nvfp4.sim.races.warp_lanes import WarpLanes
from pytest_nvfp4.sim.run.cta import Cluster, Cta
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.mbarrier import Mbarrier

_MOST_ACQUIRED = 256
"""Most snapshots of a warp that are remembered as acquired."""


class FailedTest(NamedTuple):
    """A test of an mbarrier that returned false: the number of the phase, the instruction, and the lanes."""

    phase: int
    at: int
    lanes: int


class WarpAgent(Agent):
    """A warp.

    Attributes:
        id: Its identity in messages.
        launch, memory: The detector's state of its launch and of its CTA.
        fences: What its fences and strong accesses have left open.
        lanes: The accesses of its lanes since they were last synchronised.
        lane_order: What its lanes release to other warps.
        st, st_issued, st_waited: Agent of its ``tcgen05.st``, the number issued, and the number waited for.
        ld, ld_issued, ld_waited: The same for ``tcgen05.ld``.
        loaded: By load of shared memory or TMEM, the tick in which the warp executed it last.
        seen, seen_issued: See ``access.TensorIssuer``.
        uses: By instruction, its use of tensor memory.
        queue, pipe: The tcgen05 pipe that it issued to last.
        initialised: The mbarriers whose initialisation happened before now.
        failed_tests: By mbarrier, the last test that failed.
        started: The ranks of CTAs of the cluster that are known to have started.
        acquired: The snapshots acquired last, by identity.
    """

    __slots__ = (
        "__weakref__", "acquired", "agents", "failed_tests", "fences", "id", "initialised", "lane_order", "lanes",
        "launch", "ld", "ld_issued", "ld_waited", "loaded", "memory", "pipe", "polled", "queue", "seen", "seen_issued",
        "st", "st_issued", "st_waited", "started", "uses",
    )  # fmt: skip

    def __init__(self, memory: CtaMemory, w: Warp) -> None:
        agents = memory.agents
        self.id = WarpId(w, agents.clocks.number)
        super().__init__(agents.clocks, AgentInfo("warp", str(self.id), self.id))
        self.agents = agents
        self.memory = memory
        self.launch = memory.launch
        self.fences = FenceState()
        self.lanes = WarpLanes()
        self.lane_order = LaneOrder(self, self.launch.lane_sets[agents.clocks.number])
        self.st = self.ld = -1
        self.st_issued = self.st_waited = self.ld_issued = self.ld_waited = 0
        self.loaded: dict[int, int] = {}
        self.seen: TickRow | None = None
        self.seen_issued: TickRow | None = None
        self.uses: dict[object, TensorUse] = {}
        self.initialised: set[int] = set()
        self.failed_tests: dict[int, FailedTest] = {}
        self.started: set[int] = set()
        self.acquired: dict[int, Snapshot] = {}
        self.polled: tuple[tuple[object, ...], int, int] | None = None
        """The last strong access to global memory, if it was a read, and the versions of the clock and of the lanes."""
        self.queue: object = None
        self.pipe: Agent | None = None

    def acquire(self, clock: Clock) -> None:
        """Order everything in ``clock`` before the warp's next action."""
        super().acquire(clock)
        if self.lane_order.open:
            self.lane_order.acquire(clock.ticks[BEFORE])

    def acquire_copy(self, copy: Copy) -> None:
        """Order everything in a copy of a clock before the warp's next action."""
        self.clock.join_copy(copy)
        self.version += 1
        if self.lane_order.open:
            self.lane_order.acquire(copy.ticks[BEFORE])

    def acquire_snapshot(self, snapshot: Snapshot) -> None:
        """Order everything in ``snapshot`` before the warp's next action."""
        # A warp that polls acquires the same snapshots again and again. They never change, and clocks only grow.
        if id(snapshot) not in self.acquired:
            super().acquire_snapshot(snapshot)
            if len(self.acquired) >= _MOST_ACQUIRED:
                self.acquired.clear()
            self.acquired[id(snapshot)] = snapshot  # kept, so that no other object gets this identity
        if self.lane_order.open and (ticks := snapshot.get(self.clocks.number)) is not None:
            self.lane_order.acquire(ticks[BEFORE])

    def repeats(self, read: tuple[object, ...]) -> bool:
        """Return whether a strong read is the last one again, and nothing has changed since: a poll, as it was."""
        last = self.polled
        return last is not None and last[0] == read and last[1:] == (self.version, self.lanes.sync_count)

    def fence_before_sync(self) -> None:
        """Execute ``tcgen05.fence::before_thread_sync``: order its tcgen05 work before what it releases."""
        ticks = self.clock.ticks
        ticks[TENSOR, self.number] = self.epoch()
        if self.st >= 0:
            ticks[TENSOR, self.st] = self.st_waited
        if self.ld >= 0:
            ticks[TENSOR, self.ld] = self.ld_waited
        if self.pipe is not None:
            ticks[ISSUED, self.pipe.number] = self.pipe.tick
            self.pipe.next_tick()
        self.version += 1
        self.advance()

    def fence_after_sync(self) -> None:
        """Execute ``tcgen05.fence::after_thread_sync``: order its tcgen05 work behind what it has acquired."""
        ticks = self.clock.ticks
        self.seen = np.maximum(ticks[BEFORE], ticks[TENSOR])
        self.seen_issued = np.maximum(self.seen, ticks[ISSUED])


class Commit(NamedTuple):
    """An arrive at an mbarrier that a pipe or ``cp.async`` has requested.

    Attributes:
        snapshot: What it releases.
        near: Whether a thread of the mbarrier's own CTA requested it.
    """

    snapshot: Snapshot
    near: bool


class BarrierState:
    """The order that an mbarrier creates.

    Attributes:
        number: Agent of the copies that complete at it. The tick of a copy is the number of its phase plus one.
        arrived: Everything released to it so far. The operations of an mbarrier form one chain, so that a phase has
            everything that its predecessors had.
        complete: ``arrived`` at the end of the last complete phase.
        joined: State (agent, version) of the clock that ``arrived`` joined last.
        init, at, warp: Epoch, instruction and warp of its last ``mbarrier.init``.
        repeated: Whether it was initialised before, and not used since.
        fenced: Whether the initialisation was made visible to the async proxy, or its absence reported.
        commits: The arrives that pipes and ``cp.async`` have requested, until they are performed.
        performed: Everything before its relaxed arrives (see ``cta_exit``).
        map_loads: By agent, the last use of a tensor map by a load of the current phase (``map_hooks``).
        near, near_complete: ``arrived`` and ``complete`` without what other CTAs released, once they have (``scopes``).
    """

    def __init__(self, clocks: Clocks, barrier: Mbarrier) -> None:
        self.clocks = clocks
        self.joined: tuple[int, int] | None = None
        self.number = clocks.agent(AgentInfo("mbarrier", barrier.name))
        self.arrived = clocks.clock()
        self.complete: Clock | None = None
        self.performed: Clock | None = None
        self.commits: deque[Commit] = deque()
        self.map_loads: dict[int, int] = {}
        self.near: Clock | None = None
        self.near_complete: Clock | None = None
        self.init: Epoch | None = None
        self.at = -1
        self.warp: WarpId | None = None
        self.repeated = False
        self.fenced = False

    def join(self, agent: Agent) -> None:
        """Release everything that an agent has done and seen to the barrier."""
        now = (agent.number, agent.version)
        if self.joined != now:
            self.arrived.join(agent.clock)
            if self.near is not None:
                self.near.join(agent.clock)
            self.joined = now
        agent.advance()

    def join_peer(self, agent: Agent, *, visible: bool) -> None:
        """Release everything that an agent of another CTA has done and seen, with its generic writes if ``visible``."""
        self.separate()
        if visible:
            self.arrived.join(agent.clock)
        else:
            self.arrived.join_performed(agent.clock, self.clocks.generic)
        self.joined = None
        agent.advance()

    def perform_commit(self) -> None:
        """Release what the oldest requested arrive does."""
        snapshot, near = self.commits.popleft()
        self.arrived.join_snapshot(self.clocks.number, snapshot)
        if near and self.near is not None:
            self.near.join_snapshot(self.clocks.number, snapshot)

    def separate(self) -> None:
        """Keep what the own CTA has released apart, before another CTA releases anything."""
        if self.near is None:
            self.near = self.clocks.clock()
            self.near.join(self.arrived)

    def near_snapshot(self) -> Snapshot:
        """Return a copy of ``complete`` in which no generic write is visible that only other CTAs released."""
        assert self.complete is not None
        ticks = self.complete.ticks.copy()
        if self.near_complete is not None:
            generic = self.clocks.generic
            ticks[VISIBLE, generic] = self.near_complete.ticks[VISIBLE, generic]
        return {**(self.complete.foreign or {}), self.clocks.number: ticks}

    def finish(self) -> None:
        """Complete the phase."""
        if self.map_loads:
            for number, tick in self.map_loads.items():
                self.arrived.ticks[:, number] = tick
            self.map_loads.clear()
        if self.complete is None:
            self.complete = self.clocks.clock()
        self.complete.join(self.arrived)
        if self.near is not None:
            if self.near_complete is None:
                self.near_complete = self.clocks.clock()
            self.near_complete.join(self.near)


class RoundState:
    """The order that a named barrier or the cluster barrier creates. Its rounds form one chain, as an mbarrier's.

    Attributes:
        number: Agent of the rounds: its tick is the number of rounds that are complete.
        rounds: That number.
        arrived: Everything released to it so far.
        complete: ``arrived`` at the end of the last complete round, and by warp at the end of the last one in which the
            warp arrived: a warp may go on late, when others have completed further rounds.
        last, coming: By warp, the instruction of its arrival in the last complete round, and in the current one.
        passed: By warp, what it acquired last.
        joined: By warp, its ``version`` less its ``tick`` when ``arrived`` last had all of its clock: while these stay
            the same, nothing but the warp's own tick has changed.
        performed: Everything before its relaxed arrives (see ``cta_exit``).
    """

    def __init__(self, clocks: Clocks) -> None:
        self.number = clocks.agent(AgentInfo("barrier", "the rounds of a barrier"))
        self.rounds = 0
        self.arrived = clocks.clock()
        self.complete: dict[WarpId | None, Copy] = {None: self.arrived.copy()}
        self.last: dict[WarpId, int] = {}
        self.coming: dict[WarpId, int] = {}
        self.passed: dict[WarpId, Copy] = {}
        self.joined: dict[WarpId, int] = {}
        self.performed: Clock | None = None

    def join(self, agent: WarpAgent) -> None:
        """Release everything that a warp has done and seen to the barrier."""
        if self.joined.get(agent.id) == agent.version - agent.tick and not agent.relaxed_reads:
            ticks, number = self.arrived.ticks, agent.number
            ticks[BEFORE, number] = ticks[VISIBLE, number] = agent.tick
            agent.advance()
        else:
            agent.release(self.arrived)
            self.joined[agent.id] = agent.version - agent.tick

    def acquire(self, agent: WarpAgent) -> None:
        """Order what was released to the last round in which a warp arrived before its next action."""
        warp = agent.id
        complete = self.passed[warp] = self.complete.get(warp) or self.complete[None]
        joined = self.joined.get(warp) == agent.version - agent.tick
        agent.acquire_copy(complete)
        if joined:
            self.joined[warp] = agent.version - agent.tick

    def finish(self) -> None:
        """Complete the round."""
        self.rounds += 1
        self.arrived.ticks[BEFORE, self.number] = self.rounds
        self.complete.update(dict.fromkeys((None, *self.coming), self.arrived.copy()))
        self.last, self.coming = self.coming, {}


class ClusterAgents:
    """All agents of a cluster: ``cluster.unit(ClusterAgents)``.

    Attributes:
        barriers: The states of mbarriers.
        rounds: The states of named barriers and of the cluster barrier.
        bulk: By warp and lane, the bulk stores of a thread.
        copies: By warp, its ``cp.async``.
        map_reads, map_loads: By warp, the reads of tensor maps by its stores, and by its loads.
    """

    def __init__(self, cluster: Cluster) -> None:
        x, y, _ = cluster.launch.clusters
        number = cluster.index[0] + x * (cluster.index[1] + y * cluster.index[2])
        clocks = self.clocks = Clocks(number, cluster.launch.unit(LaunchRaces).joins)
        self.barriers = Memo["Mbarrier", BarrierState](lambda barrier: BarrierState(clocks, barrier))
        self.rounds = Memo[object, RoundState](lambda _: RoundState(clocks))
        self.pipes: dict[Hashable, Agent] = {}
        self.bulk = Memo[tuple[WarpAgent, int], BulkStores](lambda thread: BulkStores(clocks, thread[0].id, thread[1]))
        self.copies = Memo[WarpAgent, CpAsyncCopies](
            lambda agent: CpAsyncCopies(clocks.agent(AgentInfo("cp.async", f"cp.async of {agent.id}", agent.id)))
        )
        self.warpgroups: dict[object, int] = {}
        self.map_reads = Memo[WarpAgent, MapReads](
            lambda agent: MapReads(clocks.agent(AgentInfo("map-read", f"tensor stores of {agent.id}", agent.id)))
        )
        self.map_loads = Memo[WarpAgent, MapLoads](
            lambda agent: MapLoads(clocks.agent(AgentInfo("map-load", f"tensor loads of {agent.id}", agent.id)))
        )

    def dissolve(self) -> None:
        """Release everything at the end of the cluster. The agents' descriptions stay with the launch."""
        for agent in self.clocks.agents.values():
            if isinstance(agent, WarpAgent):
                agent.uses.clear()
                agent.lane_order.dissolve()
                agent.lanes.synchronise()  # ``SoleItems`` refer to it
        self.clocks.dissolve()
        for table in (
            self.barriers, self.rounds, self.pipes, self.bulk, self.copies, self.warpgroups, self.map_reads,
            self.map_loads,
        ):  # fmt: skip
            table.clear()

    def warpgroup(self, group: object, warp: WarpId) -> int:
        """Return the agent of a warpgroup's ``wgmma``; ``warp`` is one of its warps."""
        number = self.warpgroups.get(group)
        if number is None:
            name = f"wgmma of warpgroup {warp.index // 4} of CTA {warp.cta}"
            number = self.warpgroups[group] = self.clocks.agent(AgentInfo("wgmma", name, warp))
        return number


class CtaMemory:
    """The shadows of a CTA's memories: ``cta.unit(CtaMemory)``.

    Attributes:
        cluster_ticks: By warp that has passed a cluster barrier, its tick at that time: all CTAs had started.
    """

    def __init__(self, cta: Cta) -> None:
        launch = self.launch = cta.launch.unit(LaunchRaces)
        self.cta: Cta | None = cta
        self.agents = cta.cluster.unit(ClusterAgents)
        clocks = self.agents.clocks
        self.peer_accesses = PeerAccesses(clocks)
        launch.infos[clocks.number] = clocks.infos
        place = f" of CTA rank {cta.rank}" if len(cta.cluster.ctas) > 1 else ""
        self.shared = Shadow(launch.shared, launch.shared_conflict, clocks=clocks, name=f"shared memory{place}")
        name = f"TMEM{place}"
        self.tmem = (
            TensorShadow(
                launch.tmem, launch.tmem_conflict, clocks=clocks, name=name, in_order=True, reported=launch.omissions
            )
            if launch.warnings
            else Shadow(launch.tmem, launch.tmem_conflict, clocks=clocks, name=name, in_order=True)
        )
        self.cluster_ticks: dict[int, int] = {}

    def at_exit(self) -> None:
        """Check, at the end of the CTA, that the rest of the cluster has stopped using it."""
        cta = self.cta
        if cta is not None and self.peer_accesses.last:
            numbers = [warp.units[WarpAgent].number for warp in cta.warps if WarpAgent in warp.units]
            self.peer_accesses.check(cta, self.launch.reporter, numbers)

    def dissolve(self) -> None:
        """Release everything that refers back to the cluster, at its end."""
        self.cta = None
        self.launch.lane_sets.pop(self.agents.clocks.number, None)
        self.agents.dissolve()
        self.shared.dissolve()
        self.tmem.dissolve()
