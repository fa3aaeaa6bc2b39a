"""Vector clocks of one cluster: who has seen how much of whom.

An *agent* is whatever goes on by itself: a warp, the tcgen05 pipe of a CTA, the copies that complete at one mbarrier,
the bulk stores of one thread, the ``cp.async`` of a warp, the ``wgmma`` of a warpgroup. An agent's tick grows when it
releases, so that an access is ``(agent, tick)`` and happened before everything whose clock holds at least that tick
(Flanagan and Freund, "FastTrack", PLDI 2009).

A clock has seven rows: what happened before, what of it has been made visible to the async proxy, in shared and in
global memory (PTX ISA, "Proxies"; ``fence.proxy.async``), and which ``mbarrier.init`` are visible: a
``fence.mbarrier_init`` sends those through a relaxed cluster barrier. Two are of ``tcgen05`` work, and pass relaxed
barriers and accesses too (``tensor_order``): what is complete and was put before a synchronisation of threads (by a
commit or ``tcgen05.fence::before_thread_sync``), and what was only issued before one. The seventh is what a
``fence.sc`` of the device has covered: those fences have one order, so that a later one, in whichever thread, has all
of it that strong reads have brought (PTX ISA, "Fence-SC order"). All travel along every edge.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ASYNC_GLOBAL", "ASYNC_SHARED", "BEFORE", "INITS", "ISSUED", "ROWS", "SC", "TENSOR", "Agent", "Clock", "Clocks",
    "Ticks",
]  # fmt: skip

Ticks: TypeAlias = NDArray[np.int64]
"""Seven rows, one column an agent."""

ROWS = 7
BEFORE, ASYNC_SHARED, ASYNC_GLOBAL, INITS, TENSOR, ISSUED, SC = range(ROWS)
_FIRST = 48


class Clock:
    """A clock that changes. ``foreign`` holds what is known of other clusters' agents, by the cluster's number."""

    __slots__ = ("foreign", "ticks")

    def __init__(self, size: int) -> None:
        self.ticks: Ticks = np.zeros((ROWS, size), np.int64)
        self.foreign: dict[int, Ticks] | None = None

    def join(self, other: Clock) -> None:
        """All that the other clock (of the same cluster) knows is known from now on."""
        np.maximum(self.ticks, other.ticks, out=self.ticks)
        if other.foreign:
            self.learn(other.foreign)

    def learn(self, foreign: dict[int, Ticks]) -> None:
        """Join what is known of other clusters."""
        if self.foreign is None:
            self.foreign = {}
        mine = self.foreign
        for number, ticks in foreign.items():
            known = mine.get(number)
            mine[number] = ticks if known is None else joined(known, ticks)

    def join_snapshot(self, ticks: Ticks) -> None:
        """The same for ticks that were kept, perhaps from a time with fewer agents."""
        width = ticks.shape[1]
        if width == self.ticks.shape[1]:
            np.maximum(self.ticks, ticks, out=self.ticks)
        else:
            part = self.ticks[:, :width]
            np.maximum(part, ticks, out=part)


def joined(one: Ticks, other: Ticks) -> Ticks:
    """The join of two kept clocks, as a new one."""
    if one.shape[1] < other.shape[1]:
        one, other = other, one
    result = one.copy()
    part = result[:, : other.shape[1]]
    np.maximum(part, other, out=part)
    return result


class Clocks:
    """The agents of one cluster and their clocks.

    Attributes:
        number: Of the cluster.
        owners: By agent, what it is: whatever ``Agent`` was made with.
        agents: Those with a clock of their own.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.owners: list[Any] = []
        self.agents: dict[int, Agent] = {}
        self._size = _FIRST
        self._clocks: list[Clock] = []

    def agent(self, owner: Any) -> int:
        """The number of a new agent."""
        self.owners.append(owner)
        if len(self.owners) > self._size:
            more = self._size
            self._size *= 2
            for clock in self._clocks:
                clock.ticks = np.concatenate((clock.ticks, np.zeros((ROWS, more), np.int64)), axis=1)
        return len(self.owners) - 1

    def dissolve(self) -> None:
        """The cluster has ended."""
        self.agents.clear()
        self._clocks.clear()

    def clock(self) -> Clock:
        """A new clock, of nothing."""
        clock = Clock(self._size)
        self._clocks.append(clock)
        return clock


class Agent:
    """An agent with a clock of its own.

    Attributes:
        number, clock: Its number and what it has seen.
        version: Grows whenever its clock changes.
        joined: The agent, and the version of its clock, that this one's clock joined last.
    """

    __slots__ = ("_released", "asynchronous", "clock", "clocks", "joined", "number", "owner", "tick", "version")

    def __init__(self, clocks: Clocks, owner: Any, *, asynchronous: bool = False) -> None:
        self.clocks = clocks
        self.owner = owner
        self.number = clocks.agent(owner)
        clocks.agents[self.number] = self
        self.clock = clocks.clock()
        self.asynchronous = asynchronous
        self.tick = 1
        self.version = 0
        self.joined: tuple[int, int] | None = None
        self._released = False
        self.clock.ticks[slice(SC) if asynchronous else 0, self.number] = 1

    def acquire(self, clock: Clock) -> None:
        """What a clock has seen is ordered before all that the agent does from now on."""
        self.clock.join(clock)
        self.version += 1

    def release(self, clock: Clock) -> None:
        """All that the agent has done and seen is in ``clock``; what it does from now on is not."""
        clock.join(self.clock)
        self._released = True

    def advance(self) -> None:
        """What it does from now on belongs to the next tick, which begins when it does something."""
        self._released = True

    def next_tick(self) -> None:
        """The next tick begins now: for an agent whose work is visible to the async proxy anyway."""
        self.tick += 1
        self.clock.ticks[:SC, self.number] = self.tick
        self.version += 1

    def epoch(self) -> int:
        """The tick of what the agent does now."""
        if self._released:
            self._released = False
            self.tick += 1
            self.clock.ticks[0, self.number] = self.tick
            self.version += 1
        return self.tick

    def fence_proxy(self, *, shared: bool = True, everywhere: bool = False) -> None:
        """All that is ordered before this is visible to the async proxy: in shared memory, in global, or both."""
        ticks = self.clock.ticks
        if shared:
            ticks[ASYNC_SHARED] = ticks[BEFORE]
        if everywhere or not shared:
            ticks[ASYNC_GLOBAL] = ticks[BEFORE]
        self.version += 1
        foreign = self.clock.foreign
        if foreign and (everywhere or not shared):
            for number, known in foreign.items():
                fenced = known.copy()
                fenced[ASYNC_GLOBAL] = fenced[BEFORE]
                foreign[number] = fenced
        self.advance()

    def fence_sc(self) -> None:
        """A ``fence.sc`` of the device: what earlier ones covered is known, and this one covers all that is."""
        ticks = self.clock.ticks
        np.maximum(ticks[BEFORE], ticks[SC], out=ticks[BEFORE])
        ticks[SC] = ticks[BEFORE]
        foreign = self.clock.foreign
        for number, known in (foreign or {}).items():
            covered = known.copy()
            covered[SC] = covered[BEFORE] = np.maximum(known[BEFORE], known[SC])
            foreign[number] = covered  # type: ignore[index]
        self.version += 1
        self.advance()

    def fence_inits(self) -> None:
        """The agent's own ``mbarrier.init`` are visible to whoever a relaxed cluster barrier lets pass."""
        self.clock.ticks[INITS, self.number] = self.tick
        self.version += 1
        self.advance()

    def knows(self, number: int, tick: int) -> bool:
        """Whether an agent's tick happened before now."""
        return bool(self.clock.ticks[BEFORE, number] >= tick)

    def learn(self, number: int, tick: int) -> None:
        """An asynchronous agent's work up to a tick is complete for this one, in all proxies."""
        ticks = self.clock.ticks
        if ticks[BEFORE, number] < tick:
            ticks[:TENSOR, number] = tick
            self.version += 1
