"""What a part of a warp's lanes releases to other warps.

The lanes of a warp are threads (PTX ISA, "Independent Thread Scheduling"). A release, such as an arrive at an mbarrier,
is in the program order of the lanes that execute it alone: it releases their own accesses, and those of other lanes
only if something orders these before it (PTX ISA, "Causality order"). If all lanes read a stage and lane 0 gives it
back, the reads of the other lanes need ``bar.warp.sync`` before lane 0's arrive.

Each set of lanes that accesses shared memory therefore has an agent of its own, whose column in the clock is the tick
up to which all accesses of these lanes happened before. All sets of a warp share the warp's ticks. An access remains
*open* until something orders the lanes among each other. A release by some lanes lowers the columns of open sets that
are not a subset of these lanes, and raises the column of the lanes that release.

What orders lanes among each other, and so closes the accesses:

- ``bar.warp.sync``, of the sets that lie in its members (PTX ISA, "bar.warp.sync": orders memory among participants).
- A barrier or an mbarrier that the lanes released to and acquire from: the clock that they acquire has their columns.
- A fence that all lanes execute together, of threads or of proxies. The ISA orders each lane's accesses only, but each
  lane's accesses are performed when the warp has executed it, and the warp executed it as one. NVIDIA's kernels rely on
  this: ``fence_view_async_shared`` and then ``consumer_release``, whose arrive one lane of the warp executes.

Shuffles, votes and ``elect.sync`` order no memory. Accesses by ``.aligned`` instructions (``ldmatrix``, ``stmatrix``,
``tcgen05.ld``) are of the warp as a whole and never open: NVIDIA's kernels release stages that ``ldmatrix`` has read by
one lane without ``bar.warp.sync`` (CuTe DSL, ``PipelineTmaAsync.consumer_release``). Lanes that have exited do not
count.

Most releases are by all lanes or behind a synchronisation, and cost one test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

import numpy as np

from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.races.clocks import Agent
from pytest_nvfp4.sim.races.ticks import ASYNC_GLOBAL, ASYNC_SHARED, BEFORE, TickRow, Ticks

_ALL = nullcontext(False)
"""The context in which a warp releases everything."""
_SETS = 8
"""Sets of lanes of a warp with an agent of their own. The accesses of further sets count as those of the whole warp."""
_RELEASES = 64
"""Releases by some of the lanes that are kept for messages."""


class LaneItems(NamedTuple):
    """What each lane of an access touches: the index of the first byte, and the lanes' items as hooks get them."""

    start: int
    where: Pattern | int
    mask: int


make_items = partial(tuple.__new__, LaneItems)
"""Make a ``LaneItems`` from a tuple of all its fields."""


class PartialRelease(NamedTuple):
    """A release by some lanes: the warp's tick, the instruction, and the lanes."""

    tick: int
    at: int
    lanes: int


class LaneOrder:
    """The sets of lanes of a warp: their agents, and which of their accesses are open.

    Args:
        agent: The warp.
        known: Gets, by agent of a set in the cluster, the object that it belongs to.

    Attributes:
        open: By agent of a set, the tick of its last access, if that is open.
        masks: By agent, the set.
    """

    __slots__ = ("_agent", "_closed", "_known", "_numbers", "_releases", "masks", "open")

    def __init__(self, agent: Agent, known: dict[int, LaneOrder]) -> None:
        self._agent = agent
        self._known = known
        self._numbers: dict[int, int] = {}
        self._closed: dict[int, int] = {}
        """By agent, the tick up to which its accesses are ordered before the next action of any lane."""
        self._releases: deque[PartialRelease] = deque(maxlen=_RELEASES)
        self.open: dict[int, int] = {}
        self.masks: dict[int, int] = {}

    def dissolve(self) -> None:
        """Release the warp, which refers to this object, at the end of the cluster."""
        del self._agent

    def _number(self, mask: int) -> int:
        """Return the agent of a set of lanes; the warp's own for sets beyond the limit."""
        agent = self._agent
        number = agent.number
        if len(self.masks) < _SETS:
            number = agent.clocks.agent(agent.info)
            self._known[number] = self
            self.masks[number] = mask
        self._numbers[mask] = number
        return number

    def access(self, mask: int) -> int:
        """Record an access of some lanes at the warp's current tick, and return its agent."""
        agent = self._agent
        tick = agent.epoch()
        number = self._numbers.get(mask)
        if number is None:
            number = self._number(mask)
        if self.open.get(number) != tick and number != agent.number:
            self.open[number] = tick
            agent.clock.ticks[:ASYNC_SHARED, number] = tick
            agent.version += 1
        return number

    def meet(self, members: int) -> None:
        """Order the accesses of some lanes before the next actions of all lanes."""
        if self.open:
            for number in [number for number in self.open if not self.masks[number] & ~members]:
                self._closed[number] = self.open.pop(number)
            self._agent.advance()

    def acquire(self, before: TickRow) -> None:
        """Close the accesses that an acquired clock proves to have happened before."""
        for number, tick in [*self.open.items()]:
            known = int(before[number]) if number < before.size else 0
            if known >= tick:
                self._closed[number] = self.open.pop(number)
            elif known > self._closed.get(number, 0):
                self._closed[number] = known

    def releasing(self, lanes: int, live: int, at: int) -> AbstractContextManager[bool]:
        """Restrict the warp's clock, within the context, to what some lanes release; return whether that is less."""
        if not self.open:
            return _ALL
        held = [number for number in self.open if self.masks[number] & live & ~lanes]
        return self._without(held, lanes, at) if held else _ALL

    @contextmanager
    def _without(self, held: list[int], lanes: int, at: int) -> Iterator[bool]:
        agent = self._agent
        tick = agent.epoch()
        own = self._numbers.get(lanes)
        if own is None:
            own = self._number(lanes)
        clock = agent.clock
        if own != agent.number:
            clock.ticks[: ASYNC_GLOBAL + 1, own] = clock.ticks[: ASYNC_GLOBAL + 1, agent.number]
            self.open[own] = tick
        saved = clock.ticks[:, held]
        floors = np.array([self._closed.get(number, 0) for number in held])
        clock.ticks[:, held] = np.minimum(saved, floors)
        self._releases.append(PartialRelease(tick, at, lanes))
        agent.version += 1
        try:
            yield True
        finally:
            clock.ticks[:, held] = saved
            agent.version += 1

    def orders(self, ticks: Ticks, number: int, tick: int, lanes: int, row: int) -> bool:
        """Return whether the accesses of some lanes of a set up to a tick happened before a clock, lane by lane.

        If all lanes of the set have released them, the clock gets the set's tick, so that the next test is short.
        """
        covered = 0
        for other, mask in self.masks.items():
            if other < ticks.shape[1] and ticks[row, other] >= tick:
                covered |= mask
        if not self.masks[number] & ~covered:
            ticks[row, number] = max(ticks[row, number], tick)
        return not lanes & ~covered

    def released(self, ticks: Ticks, tick: int) -> PartialRelease | None:
        """Return the first release by some lanes behind an access that a clock has seen."""
        if ticks[BEFORE, self._agent.number] < tick:
            return None
        return next((release for release in self._releases if release.tick >= tick), None)
