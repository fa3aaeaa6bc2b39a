"""Vector clocks of one cluster.

An *agent* is anything that makes progress by itself: a warp, the tcgen05 pipe of a CTA, the copies that complete at one
mbarrier, the bulk stores of one thread, the ``cp.async`` of a warp, the ``wgmma`` of a warpgroup. An agent's tick grows
at each release, so that an access is an epoch ``(agent, tick)`` and happened before everything whose clock has at least
that tick (Flanagan and Freund, "FastTrack", PLDI 2009). ``ticks`` describes a clock's rows.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.races.joins import Joins
from pytest_nvfp4.sim.races.names import AgentInfo, WarpId
from pytest_nvfp4.sim.races.ticks import (
    ASYNC_GLOBAL,
    ASYNC_SHARED,
    BEFORE,
    INITS,
    ROWS,
    SC,
    TENSOR,
    VISIBLE,
    Snapshot,
    Ticks,
    covered,
    proxy_fenced,
)

_FIRST = 16
"""Initial columns of a clock; they double when a cluster has more agents."""


class Epoch(NamedTuple):
    """A tick of an agent."""

    agent: int
    tick: int


class Copy(NamedTuple):
    """An immutable copy of a clock: see ``Clock``."""

    ticks: Ticks
    foreign: Snapshot | None


class PendingLoads(NamedTuple):
    """The loads in a tick of an agent, a warp, that an arrive at a barrier may not have waited for.

    Attributes:
        agent: Its number.
        last: By instruction of a load: the last tick of the agent up to which no arrive has waited for the load.
    """

    agent: int
    last: dict[int, int]


class Clock:
    """A mutable clock.

    Attributes:
        ticks: The ticks of the cluster's agents.
        foreign: The ticks of other clusters' agents, by the cluster's number; ``ticks`` has all of the own cluster's
            that may be among them. Clocks share it, so it is never changed, but replaced.
    """

    __slots__ = ("_joins", "foreign", "ticks")

    def __init__(self, size: int, joins: Joins) -> None:
        self._joins = joins
        self.ticks: Ticks = np.zeros((ROWS, size), np.int64)
        self.foreign: Snapshot | None = None

    def join(self, other: Clock) -> None:
        """Join the clock of the same cluster."""
        np.maximum(self.ticks, other.ticks, out=self.ticks)
        if (foreign := other.foreign) and foreign is not self.foreign:
            self._join_foreign(foreign)

    def copy(self) -> Copy:
        """Return what the clock has now."""
        return Copy(self.ticks.copy(), self.foreign)

    def join_copy(self, other: Copy) -> None:
        """Join a copy of a clock of the same cluster."""
        mine, ticks = self.ticks, other.ticks
        if mine.shape == ticks.shape:
            np.maximum(mine, ticks, out=mine)
        else:
            self.join_ticks(ticks)
        if (foreign := other.foreign) and foreign is not self.foreign:
            self._join_foreign(foreign)

    def join_performed(self, other: Clock, generic: NDArray[np.bool_]) -> None:
        """Join the clock of the same cluster, without the visibility of the writes of some agents."""
        visible = self.ticks[VISIBLE, generic]
        self.join(other)
        self.ticks[VISIBLE, generic] = visible

    def _join_foreign(self, foreign: Snapshot) -> None:
        mine = self.foreign
        self.foreign = foreign if mine is None else self._joins.of_snapshots(mine, foreign)

    def join_ticks(self, ticks: Ticks) -> None:
        """Join ticks of the same cluster, possibly copied when it had fewer agents."""
        width = ticks.shape[1]
        if width == self.ticks.shape[1]:
            np.maximum(self.ticks, ticks, out=self.ticks)
        else:
            part = self.ticks[:, :width]
            np.maximum(part, ticks, out=part)

    def join_snapshot(self, own: int, snapshot: Snapshot) -> None:
        """Join a snapshot; ``own`` is the number of the cluster that this clock belongs to."""
        ticks = snapshot.get(own)
        if ticks is not None:
            self.join_ticks(ticks)
        if len(snapshot) > (ticks is not None) and snapshot is not self.foreign:
            self._join_foreign(snapshot)


class Clocks:
    """The agents of one cluster and their clocks.

    Args:
        joins: The joins of its launch; by default some of its own.

    Attributes:
        number: Number of the cluster.
        infos: Descriptions of the agents, by number.
        agents: The agents with a clock, by number.
        pending: By warp and tick, the loads in it that an arrive at its end, or behind it, may not have waited for.
    """

    def __init__(self, number: int, joins: Joins | None = None) -> None:
        self.number = number
        self.joins = Joins() if joins is None else joins
        self.infos: list[AgentInfo] = []
        self.agents: dict[int, Agent] = {}
        self.pending: dict[tuple[WarpId, int], PendingLoads] = {}
        self._size = _FIRST
        self._clocks: list[Clock] = []

    def agent(self, info: AgentInfo) -> int:
        """Add an agent and return its number."""
        self.infos.append(info)
        if len(self.infos) > self._size:
            more = self._size
            self._size *= 2
            for clock in self._clocks:
                clock.ticks = np.concatenate((clock.ticks, np.zeros((ROWS, more), np.int64)), axis=1)
        return len(self.infos) - 1

    @property
    def generic(self) -> NDArray[np.bool_]:
        """By column, whether its agent writes through the generic proxy."""
        result = np.zeros(self._size, np.bool_)
        result[: len(self.infos)] = [info.kind in ("warp", "cp.async") for info in self.infos]
        return result

    @cached_property
    def previous_launch(self) -> int:
        """The agent of the launch that this one may overlap. It has one tick."""
        return self.agent(AgentInfo("grid", "the previous launch"))

    def dissolve(self) -> None:
        """Release all clocks at the end of the cluster."""
        self.agents.clear()
        self.pending.clear()
        self._clocks.clear()

    def clock(self) -> Clock:
        """Return a new clock of zeros."""
        clock = Clock(self._size, self.joins)
        self._clocks.append(clock)
        return clock


class Agent:
    """An agent with a clock.

    Attributes:
        number, clock: Its number, and what happened before its next action.
        tick: Its current tick.
        version: Counts changes of the clock.
        joined: State (agent, version) of the other agent's clock that this clock joined last.
        relaxed_reads: By variable, the snapshots of which relaxed reads have brought a part that the clock lacks, of
            other clusters. It decides nothing before the agent passes it on or executes a fence, and often an acquire
            brings it before.
    """

    __slots__ = (
        "_released",
        "asynchronous",
        "clock",
        "clocks",
        "info",
        "joined",
        "number",
        "relaxed_reads",
        "tick",
        "version",
    )

    def __init__(self, clocks: Clocks, info: AgentInfo, *, asynchronous: bool = False) -> None:
        self.clocks = clocks
        self.info = info
        self.number = clocks.agent(info)
        clocks.agents[self.number] = self
        self.clock = clocks.clock()
        self.asynchronous = asynchronous
        self.tick = 1
        self.version = 0
        self.joined: tuple[int, int] | None = None
        self.relaxed_reads: dict[Hashable, Snapshot] = {}
        self._released = False
        self.clock.ticks[: SC if asynchronous else ASYNC_SHARED, self.number] = 1

    def acquire(self, clock: Clock) -> None:
        """Order everything in ``clock`` before the agent's next action."""
        self.clock.join(clock)
        self.version += 1

    def acquire_snapshot(self, snapshot: Snapshot) -> None:
        """Order everything in ``snapshot`` before the agent's next action."""
        self.clock.join_snapshot(self.clocks.number, snapshot)
        self.version += 1

    def acquire_relaxed(self, variable: Hashable, snapshot: Snapshot) -> None:
        """Order what a relaxed read of a variable brings of a snapshot; later reads of it bring all of it, too."""
        own = snapshot.get(self.clocks.number)
        if own is not None and (part := self.clocks.joins.relaxed_ticks(own)) is not None:
            self.clock.join_ticks(part)
        self.relaxed_reads[variable] = snapshot
        self.version += 1

    def _join_relaxed(self) -> None:
        self.version += 1
        for snapshot in self.relaxed_reads.values():
            self.clock.join_snapshot(self.clocks.number, self.clocks.joins.relaxed_part(snapshot))
        self.relaxed_reads.clear()

    def snapshot(self) -> Snapshot:
        """Return a copy of the agent's clock."""
        if self.relaxed_reads:
            self._join_relaxed()
        clock = self.clock
        return {**(clock.foreign or {}), self.clocks.number: clock.ticks.copy()}

    def release(self, clock: Clock) -> None:
        """Add everything up to now to ``clock``; later actions belong to the next tick."""
        if self.relaxed_reads:
            self._join_relaxed()
        clock.join(self.clock)
        self._released = True

    def advance(self) -> None:
        """End the current tick; the next one begins lazily, with the agent's next action."""
        self._released = True

    def next_tick(self) -> None:
        """Begin the next tick now, for an agent whose work is visible to the async proxy without a fence."""
        self.tick += 1
        self.clock.ticks[:SC, self.number] = self.tick
        self.version += 1

    def epoch(self) -> int:
        """Return the tick of the agent's next action."""
        if self._released:
            self._released = False
            self.tick += 1
            self.clock.ticks[:ASYNC_SHARED, self.number] = self.tick
            self.version += 1
        return self.tick

    def fence_proxy(self, *, shared: bool = True, everywhere: bool = False) -> None:
        """Make everything that happened before visible to the async proxy: in shared memory, in global, or both."""
        ticks = self.clock.ticks
        if shared:
            ticks[ASYNC_SHARED] = ticks[BEFORE]
        if everywhere or not shared:
            ticks[ASYNC_GLOBAL] = ticks[BEFORE]
        self.version += 1
        foreign = self.clock.foreign
        if foreign and (everywhere or not shared):
            self.clock.foreign = self.clocks.joins.changed(foreign, proxy_fenced)
        self.advance()

    def fence_sc(self) -> None:
        """Execute a ``fence.sc`` of the device: acquire what earlier ones covered, then cover everything before."""
        if self.relaxed_reads:
            self._join_relaxed()
        ticks = self.clock.ticks
        seen = ticks[:ASYNC_SHARED]
        np.maximum(seen, ticks[SC], out=seen)
        ticks[SC] = ticks[VISIBLE]
        if foreign := self.clock.foreign:
            self.clock.foreign = self.clocks.joins.changed(foreign, covered)
        self.version += 1
        self.advance()

    def fence_inits(self) -> None:
        """Make the agent's own ``mbarrier.init`` visible behind a relaxed cluster barrier."""
        self.clock.ticks[INITS, self.number] = self.tick
        self.version += 1
        self.advance()

    def has_seen(self, number: int, tick: int) -> bool:
        """Return whether an agent's tick happened before now."""
        return bool(self.clock.ticks[BEFORE, number] >= tick)

    def complete(self, number: int, tick: int) -> None:
        """Order an asynchronous agent's work up to a tick before the next action, in all proxies."""
        ticks = self.clock.ticks
        if ticks[BEFORE, number] < tick:
            ticks[:TENSOR, number] = tick
            self.version += 1

    def complete_generic(self, number: int, tick: int) -> None:
        """Do the same for work of the generic proxy, which the async proxy sees only behind a proxy fence."""
        ticks = self.clock.ticks
        if ticks[VISIBLE, number] < tick:
            ticks[:ASYNC_SHARED, number] = tick
            self.version += 1
