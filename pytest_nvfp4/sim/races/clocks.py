"""Vector clocks of one cluster.

An *agent* is anything that makes progress by itself: a warp, the tcgen05 pipe of a CTA, the copies that complete at one
mbarrier, the bulk stores of one thread, the ``cp.async`` of a warp, the ``wgmma`` of a warpgroup. An agent's tick grows
at each release, so that an access is an epoch ``(agent, tick)`` and happened before everything whose clock has at least
that tick (Flanagan and Freund, "FastTrack", PLDI 2009).

A clock has eight rows, which travel together along every edge of the causality order (PTX ISA, "Memory Consistency
Model"):

- ``BEFORE``: what happened before.
- ``VISIBLE``: what of it has visible writes. An mbarrier's arrive of ``.cta`` scope in another CTA does not pass on
  those of the generic proxy (``scopes``).
- ``ASYNC_SHARED``, ``ASYNC_GLOBAL``: what of it is visible to the async proxy, in shared and in global memory (PTX ISA,
  "Proxies"; ``fence.proxy.async``).
- ``INITS``: which ``mbarrier.init`` are visible; ``fence.mbarrier_init`` sends them through a relaxed cluster barrier.
- ``TENSOR``, ``ISSUED``: ``tcgen05`` work that was complete, or only issued, before a synchronisation of threads (by a
  commit or ``tcgen05.fence::before_thread_sync``). Relaxed barriers and accesses pass these two on (``tensor_order``).
- ``SC``: what a ``fence.sc`` of the device has covered. These fences have a total order, so a later one in any thread
  acquires everything that strong reads have brought to it (PTX ISA, "Fence-SC order").
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.races.names import AgentInfo, WarpId

Ticks: TypeAlias = NDArray[np.int64]
"""Eight rows, one column an agent."""
TickRow: TypeAlias = NDArray[np.int64]
"""One row of them."""
Snapshot: TypeAlias = dict[int, Ticks]
"""Immutable copy of a clock: by cluster, the ticks of its agents."""
Change: TypeAlias = Callable[[Ticks], Ticks | None]
"""What a fence or an access makes of a copy of ticks, which it returns if it changes nothing; None for nothing."""

Key = TypeVar("Key")
Value = TypeVar("Value")

ROWS = 8
BEFORE, VISIBLE, ASYNC_SHARED, ASYNC_GLOBAL, INITS, TENSOR, ISSUED, SC = range(ROWS)
_FIRST = 48
"""Initial columns of a clock; they double when a cluster has more agents."""
_MOST_JOINS = 4096
"""Joins that are remembered, a few kilobytes each."""
_MOST_SNAPSHOTS = 512
"""The same for snapshots, a hundred bytes a cluster each."""
_MOST_STEPS = 128
"""Steps from a snapshot to a later one that are followed."""


class Memo(dict[Key, Value]):
    """A dictionary that makes missing values. A hit costs no Python call, unlike one of a cached function."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[Key], Value]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Key) -> Value:
        value = self[key] = self._make(key)
        return value


class Epoch(NamedTuple):
    """A tick of an agent."""

    agent: int
    tick: int


class Copy(NamedTuple):
    """An immutable copy of a clock: see ``Clock``."""

    ticks: Ticks
    foreign: Snapshot | None


class PendingLoads(NamedTuple):
    """The loads of an agent, a warp, that may be pending when it arrives at an mbarrier at the end of a tick.

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
        if other.foreign:
            self._join_foreign(other.foreign)

    def copy(self) -> Copy:
        """Return what the clock has now."""
        return Copy(self.ticks.copy(), self.foreign)

    def join_copy(self, other: Copy) -> None:
        """Join a copy of a clock of the same cluster."""
        self.join_ticks(other.ticks)
        if other.foreign:
            self._join_foreign(other.foreign)

    def join_performed(self, other: Clock, generic: NDArray[np.bool_]) -> None:
        """Join the clock of the same cluster, without the visibility of the writes of some agents."""
        visible = self.ticks[VISIBLE, generic]
        self.join(other)
        self.ticks[VISIBLE, generic] = visible

    def _join_foreign(self, foreign: Snapshot) -> None:
        mine = self.foreign
        if mine is not foreign:
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
        if len(snapshot) > (ticks is not None):
            self._join_foreign(snapshot)


def joined(first: Ticks, second: Ticks) -> Ticks:
    """Return the join of two copies of ticks. It is one of them if that has all of the other."""
    if first.shape[1] < second.shape[1]:
        first, second = second, first
    width = second.shape[1]
    part = first[:, :width]
    later = second > part
    count = np.count_nonzero(later)
    if not count:
        return first
    if width == first.shape[1] and count == np.count_nonzero(second != part):
        return second
    result = first.copy()
    np.copyto(result[:, :width], second, where=later)
    return result


def _proxy_fenced(ticks: Ticks) -> Ticks:
    """Return ticks with everything that happened before visible to the async proxy in global memory."""
    if np.array_equal(ticks[ASYNC_GLOBAL], ticks[BEFORE]):
        return ticks
    fenced = ticks.copy()
    fenced[ASYNC_GLOBAL] = fenced[BEFORE]
    return fenced


def _covered(ticks: Ticks) -> Ticks:
    """Return ticks behind a ``fence.sc`` of the device."""
    if (ticks[:ASYNC_SHARED] >= ticks[SC]).all() and np.array_equal(ticks[SC], ticks[VISIBLE]):
        return ticks
    covered = ticks.copy()
    covered[:ASYNC_SHARED] = np.maximum(ticks[:ASYNC_SHARED], ticks[SC])
    covered[SC] = covered[VISIBLE]
    return covered


def _relaxed(ticks: Ticks, most: int = ISSUED) -> Ticks | None:
    """Return the rows of a copy that a relaxed access passes on, up to ``most``; None if that is nothing."""
    rows = slice(TENSOR, most + 1)
    if not np.count_nonzero(ticks[rows]):
        return None
    only = np.zeros_like(ticks)
    only[rows] = ticks[rows]
    return only


def _relaxed_covered(ticks: Ticks) -> Ticks | None:
    return _relaxed(ticks, SC)


class Joins:
    """Joins of copies of ticks in a launch. All CTAs that meet learn the same, so that few of their joins differ."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Ticks, Ticks, Ticks]] = {}
        self._snapshots: dict[tuple[int, int], tuple[Snapshot, Snapshot, Snapshot]] = {}
        self._wholes: dict[int, tuple[Snapshot, Snapshot]] = {}
        """By identity, a snapshot and a later one that has all of it."""
        self._of_ticks: dict[tuple[int, Change], tuple[Ticks, Ticks | None]] = {}
        self._of_snapshot: dict[tuple[int, Change], tuple[Snapshot, Snapshot]] = {}

    def of_snapshots(self, first: Snapshot, second: Snapshot) -> Snapshot:
        """Return the join of two snapshots, which never change. It is one of them if that has all of the other."""
        if self._within(first, second):
            return second
        key = id(first), id(second)
        known = self._snapshots.get(key)
        if known is None:
            if len(self._snapshots) >= _MOST_SNAPSHOTS:
                self._snapshots.clear()
            known = self._snapshots[key] = first, second, self._joined(first, second)
        return known[2]

    def extended(self, first: Snapshot, second: Snapshot, base: Snapshot | None, own: int) -> Snapshot:
        """Return the join of two snapshots.

        If ``base`` is given, it is all of the second but for the ticks of the cluster ``own``.
        """
        if base is None or not self._within(base, first):
            result = self.of_snapshots(first, second)
        else:
            known = first.get(own)
            new = second[own] if known is None else self.of(second[own], known)
            result = first if new is known else {**first, own: new}
        for part in (first, base):
            if part is not None and part is not result:
                self._record(part, result)
        return result

    def _record(self, part: Snapshot, whole: Snapshot) -> None:
        if len(self._wholes) >= _MOST_SNAPSHOTS:
            self._wholes.clear()
        self._wholes[id(part)] = part, whole

    def _within(self, part: Snapshot, whole: Snapshot) -> bool:
        """Return whether a snapshot is known to be in another one, which was made from it, perhaps in steps."""
        at = part
        for _ in range(_MOST_STEPS):
            if at is whole:
                if at is not part:
                    self._record(part, whole)
                return True
            step = self._wholes.get(id(at))
            if step is None:
                return False
            at = step[1]
        return False

    def _joined(self, first: Snapshot, second: Snapshot) -> Snapshot:
        changed: Snapshot | None = None
        all_second = True
        for number, ticks in second.items():
            known = first.get(number)
            if known is not ticks:
                # Of equal copies the second is taken: whoever joins the same snapshot again has the same object then.
                new = ticks if known is None else self.of(ticks, known)
                if new is not known:
                    if changed is None:
                        changed = first.copy()
                    changed[number] = new
                all_second &= new is ticks
        if changed is None:
            return first
        return second if all_second and len(changed) == len(second) else changed

    def of(self, first: Ticks, second: Ticks) -> Ticks:
        """Return the join of two copies, which never change."""
        key = id(first), id(second)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_JOINS:
                self._known.clear()
            known = self._known[key] = first, second, joined(first, second)  # the references keep identities unique
        return known[2]

    def relaxed_part(self, snapshot: Snapshot, *, covered: bool = True) -> Snapshot:
        """Return the part of a snapshot that a relaxed access passes on.

        This is what a ``fence.sc`` has covered (if ``covered``), which takes effect behind another ``fence.sc``, and
        the tcgen05 work ordered before a synchronisation of threads, for which a relaxed access is enough
        (``tensor_order``).
        """
        return self.changed(snapshot, _relaxed_covered if covered else _relaxed)

    def changed(self, snapshot: Snapshot, change: Change) -> Snapshot:
        """Return a snapshot with its ticks changed, the same object for the same snapshot or ticks."""
        before = self._of_snapshot.get((id(snapshot), change))
        if before is not None:
            return before[1]
        known = self._of_ticks
        if len(known) >= _MOST_JOINS:
            known.clear()
        result: Snapshot = {}
        same = True
        for number, ticks in snapshot.items():
            made = known.get((id(ticks), change))
            if made is None:
                made = known[id(ticks), change] = ticks, change(ticks)
            same &= made[1] is ticks
            if made[1] is not None:
                result[number] = made[1]
        if same:
            result = snapshot
        if len(self._of_snapshot) >= _MOST_SNAPSHOTS:
            self._of_snapshot.clear()
        self._of_snapshot[id(snapshot), change] = snapshot, result
        return result


class Clocks:
    """The agents of one cluster and their clocks.

    Args:
        joins: The joins of its launch; by default some of its own.

    Attributes:
        number: Number of the cluster.
        infos: Descriptions of the agents, by number.
        agents: The agents with a clock, by number.
        pending: By warp and its tick that an arrive ended: the loads before it that may be pending then.
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

    def acquire_copy(self, copy: Copy) -> None:
        """Order everything in a copy of a clock of the same cluster before the agent's next action."""
        self.clock.join_copy(copy)
        self.version += 1

    def acquire_snapshot(self, snapshot: Snapshot) -> None:
        """Order everything in ``snapshot`` before the agent's next action."""
        self.clock.join_snapshot(self.clocks.number, snapshot)
        self.version += 1

    def acquire_relaxed(self, variable: Hashable, snapshot: Snapshot) -> None:
        """Order what a relaxed read of a variable brings of a snapshot; later reads of it bring all of it, too."""
        own, joins = self.clocks.number, self.clocks.joins
        if own in snapshot:
            self.clock.join_snapshot(own, joins.relaxed_part({own: snapshot[own]}))
        self.relaxed_reads[variable] = snapshot
        self.version += 1

    def _join_relaxed(self) -> None:
        for snapshot in self.relaxed_reads.values():
            self.clock.join_snapshot(self.clocks.number, self.clocks.joins.relaxed_part(snapshot))
        self.relaxed_reads.clear()

    def snapshot(self) -> Snapshot:
        """Return a copy of the agent's clock."""
        self._join_relaxed()
        clock = self.clock
        return {**(clock.foreign or {}), self.clocks.number: clock.ticks.copy()}

    def release(self, clock: Clock) -> None:
        """Add everything up to now to ``clock``; later actions belong to the next tick."""
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
            self.clock.foreign = self.clocks.joins.changed(foreign, _proxy_fenced)
        self.advance()

    def fence_sc(self) -> None:
        """Execute a ``fence.sc`` of the device: acquire what earlier ones covered, then cover everything before."""
        self._join_relaxed()
        ticks = self.clock.ticks
        seen = ticks[:ASYNC_SHARED]
        np.maximum(seen, ticks[SC], out=seen)
        ticks[SC] = ticks[VISIBLE]
        if foreign := self.clock.foreign:
            self.clock.foreign = self.clocks.joins.changed(foreign, _covered)
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
