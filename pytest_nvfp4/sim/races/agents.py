"""The agents of a cluster: its warps, its pipes, and the copies that go on beside them."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.races.access import Access, Who
from pytest_nvfp4.sim.races.clocks import BEFORE, ISSUED, TENSOR, Agent, Clock, Clocks
from pytest_nvfp4.sim.races.sync_variables import Known, Thread
from pytest_nvfp4.sim.races.warp_lanes import Lanes

if TYPE_CHECKING:
    from pytest_nvfp4.sim.races.launch import CtaMemory, LaunchRaces
    from pytest_nvfp4.sim.races.map_hooks import MapReads
    from pytest_nvfp4.sim.races.tensor_order import TensorUse
    from pytest_nvfp4.sim.run.cta import Cluster
    from pytest_nvfp4.sim.run.warp import Warp
    from pytest_nvfp4.sim.sync.mbarrier import Mbarrier

__all__ = ["BarrierState", "BulkThread", "ClusterAgents", "Copies", "Owner", "Round", "WarpAgent"]


class Owner(NamedTuple):
    """What an agent is.

    Attributes:
        kind: ``warp``, ``mbarrier`` (the copies that complete there), ``pipe``, ``bulk-read`` and ``bulk-write`` (of a
            thread's bulk groups), ``cp.async``, ``wgmma``, ``tmem-store`` and ``tmem-load`` (of a warp).
        name: In words.
        who: The warp, where it is one's.
    """

    kind: str
    name: str
    who: Who | None = None


class WarpAgent(Agent):
    """A warp.

    Attributes:
        who: As messages name it.
        launch, memory: What is kept of its launch and of its CTA.
        thread: What its fences and strong accesses have left open.
        lanes: What its lanes did in shared memory since they last met.
        st, st_issued, st_known: Agent of its ``tcgen05.st``, how many it issued, how many it waited for.
        ld, ld_issued, ld_known: The same for ``tcgen05.ld``.
        seen: By agent, the tcgen05 work that its last ``fence::after_thread_sync`` put before what it does now;
            ``seen_issued`` has also what was only issued before.
        uses: By instruction, how it uses tensor memory.
        queue, pipe: The tcgen05 pipe that it issued to last.
        met: The barriers whose initialisation it knows to have happened before.
        refused: By barrier, the last phase that it asked for and that was not complete: its number, instruction, lanes.
        started: The CTAs of the cluster, by rank, that it knows to have started.
    """

    __slots__ = (
        "__weakref__", "agents", "lanes", "launch", "ld", "ld_issued", "ld_known", "memory", "met", "pipe", "queue",
        "refused", "seen", "seen_issued", "st", "st_issued", "st_known", "started", "thread", "uses", "who",
    )  # fmt: skip
    launch: LaunchRaces
    memory: CtaMemory

    def __init__(self, agents: ClusterAgents, w: Warp) -> None:
        who = Who(w, agents.clocks.number)
        super().__init__(agents.clocks, Owner("warp", str(who), who))
        self.agents = agents
        self.who = who
        self.thread = Thread()
        self.lanes = Lanes()
        self.st = self.ld = -1
        self.st_issued = self.st_known = self.ld_issued = self.ld_known = 0
        self.seen: NDArray[np.int64] | None = None
        self.seen_issued: NDArray[np.int64] | None = None
        self.uses: dict[object, TensorUse] = {}
        self.met: set[int] = set()
        self.refused: dict[int, tuple[int, int, int]] = {}
        self.started: set[int] = set()
        self.queue: object = None
        self.pipe: Agent | None = None

    def before_sync(self) -> None:
        """``tcgen05.fence::before_thread_sync``: what the warp did in tensor memory comes before what it releases."""
        ticks = self.clock.ticks
        ticks[TENSOR, self.number] = self.epoch()
        if self.st >= 0:
            ticks[TENSOR, self.st] = self.st_known
        if self.ld >= 0:
            ticks[TENSOR, self.ld] = self.ld_known
        if self.pipe is not None:
            ticks[ISSUED, self.pipe.number] = self.pipe.tick
            self.pipe.next_tick()
        self.version += 1
        self.advance()

    def after_sync(self) -> None:
        """``tcgen05.fence::after_thread_sync``: what follows in tensor memory comes after what is acquired."""
        ticks = self.clock.ticks
        self.seen = np.maximum(ticks[BEFORE], ticks[TENSOR])
        self.seen_issued = np.maximum(self.seen, ticks[ISSUED])


class BarrierState:
    """What an mbarrier orders.

    Attributes:
        number: The agent of the copies that complete there; the tick of a copy is its phase and one.
        arrived: What has been released to it so far. A barrier's operations form one chain, so that a phase has all
            that its predecessors had.
        complete: The same at the end of the last complete phase.
        joined: The agent, and the version of its clock, that ``arrived`` joined last.
        init, at, who: The epoch of its ``mbarrier.init``, the instruction and the warp.
        fenced: Whether that was made visible to the async proxy, or a warning told that it was not.
        commits: What pipes and ``cp.async`` knew when their arrivals were ordered, until they arrive.
        loose: What relaxed arrives came after (see ``leaving``).
    """

    __slots__ = ("arrived", "at", "clocks", "commits", "complete", "fenced", "init", "joined", "loose", "number", "who")

    def __init__(self, clocks: Clocks, barrier: Mbarrier) -> None:
        self.clocks = clocks
        self.joined: tuple[int, int] | None = None
        self.number = clocks.agent(Owner("mbarrier", barrier.name))
        self.arrived = clocks.clock()
        self.complete: Clock | None = None
        self.loose: Clock | None = None
        self.commits: deque[Known] = deque()
        self.init: tuple[int, int] | None = None
        self.at = -1
        self.who: Who | None = None
        self.fenced = False

    def join(self, agent: Agent) -> None:
        """All that an agent has done and seen is released to the barrier."""
        now = (agent.number, agent.version)
        if self.joined != now:
            self.arrived.join(agent.clock)
            self.joined = now
        agent.advance()

    def finish(self) -> None:
        """The phase is complete."""
        if self.complete is None:
            self.complete = self.clocks.clock()
        self.complete.join(self.arrived)


class Round:
    """What a named barrier or the cluster's orders. Rounds are one chain: who leaves one knows the earlier ones."""

    __slots__ = ("arrived", "complete", "loose")

    def __init__(self, clocks: Clocks) -> None:
        self.arrived = clocks.clock()
        self.complete = clocks.clock()
        self.loose: Clock | None = None

    def finish(self) -> None:
        """The round is complete."""
        self.complete.join(self.arrived)


class BulkThread:
    """The bulk stores of a thread: agents of their reads and of their writes, ticks issued, ticks by group."""

    __slots__ = ("groups", "issued", "open", "read", "write")

    def __init__(self, clocks: Clocks, who: Who, lane: int) -> None:
        name = f"bulk stores of lane {lane} of {who}"
        self.read = clocks.agent(Owner("bulk-read", name, who))
        self.write = clocks.agent(Owner("bulk-write", name, who))
        self.issued = 0
        self.open = 0
        self.groups: list[int] = []

    def commit(self) -> None:
        """What is open becomes a group; empty groups count behind others only."""
        if self.open or self.groups:
            self.groups.append(self.issued)
            self.open = 0

    def done(self, allowed: int) -> int:
        """The tick up to which all is done when ``allowed`` groups may be pending."""
        count = len(self.groups) - allowed
        return self.groups[count - 1] if count > 0 else 0


@dataclass(slots=True)
class Copies:
    """The ``cp.async`` of a warp: its agent, ticks issued, ticks by group."""

    number: int
    issued: int = 0
    groups: list[int] = field(default_factory=list)


class ClusterAgents:
    """All agents of a cluster: ``cluster.unit(ClusterAgents)``."""

    def __init__(self, cluster: Cluster) -> None:
        x, y, _ = cluster.launch.clusters
        number = cluster.index[0] + x * (cluster.index[1] + y * cluster.index[2])
        self.clocks = Clocks(number)
        self.barriers: dict[Mbarrier, BarrierState] = {}
        self.rounds: dict[object, Round] = {}
        self.pipes: dict[Hashable, Agent] = {}
        self.bulk: dict[tuple[int, int], BulkThread] = {}
        self.copies: dict[int, Copies] = {}
        self.warpgroups: dict[object, int] = {}
        self.map_reads: dict[int, MapReads] = {}
        """By warp, what its tensor stores read of tensor maps."""
        self.maps: dict[int, dict[int, Access]] = {}
        """By address of a tensor map, the last store that uses it, by agent."""

    def dissolve(self) -> None:
        """The cluster has ended. What its agents are called stays with the launch."""
        for agent in self.clocks.agents.values():
            if isinstance(agent, WarpAgent):
                agent.uses.clear()
        self.clocks.dissolve()
        for kept in (self.barriers, self.rounds, self.pipes, self.bulk, self.copies, self.warpgroups, self.maps):
            kept.clear()
        self.map_reads.clear()

    @cached_property
    def earlier_grids(self) -> int:
        """The agent that stands for the launches that this one may overlap: it has one tick."""
        return self.clocks.agent(Owner("grid", "the launch before"))

    def barrier(self, barrier: Mbarrier) -> BarrierState:
        """The state of an mbarrier."""
        found = self.barriers.get(barrier)
        if found is None:
            found = self.barriers[barrier] = BarrierState(self.clocks, barrier)
        return found

    def round(self, barrier: object) -> Round:
        """The state of a named barrier or of the cluster's."""
        found = self.rounds.get(barrier)
        if found is None:
            found = self.rounds[barrier] = Round(self.clocks)
        return found

    def pipe(self, queue: Hashable, rank: int) -> Agent:
        """A tcgen05 pipe."""
        found = self.pipes.get(queue)
        if found is None:
            found = self.pipes[queue] = Agent(
                self.clocks, Owner("pipe", f"the tensor core of CTA rank {rank}"), asynchronous=True
            )
        return found

    def bulk_thread(self, agent: WarpAgent, lane: int) -> BulkThread:
        """The bulk stores of a thread."""
        found = self.bulk.get((agent.number, lane))
        if found is None:
            found = self.bulk[agent.number, lane] = BulkThread(self.clocks, agent.who, lane)
        return found

    def copies_of(self, agent: WarpAgent) -> Copies:
        """The ``cp.async`` of a warp."""
        found = self.copies.get(agent.number)
        if found is None:
            found = self.copies[agent.number] = Copies(
                self.clocks.agent(Owner("cp.async", f"cp.async of {agent.who}", agent.who))
            )
        return found

    def warpgroup(self, group: object, who: Who) -> int:
        """The agent of a warpgroup's ``wgmma``."""
        found = self.warpgroups.get(group)
        if found is None:
            name = f"wgmma of warpgroup {who.warp // 4} of CTA {who.cta}"
            found = self.warpgroups[group] = self.clocks.agent(Owner("wgmma", name, who))
        return found
