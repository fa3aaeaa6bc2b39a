"""Flags and counters: memory through which warps order each other.

PTX ISA, "Memory Consistency Model", "Release and Acquire Patterns": a release is a ``.release`` write or a strong write
after a fence; an acquire is an ``.acquire`` read or a strong read before a fence; they synchronise where the read sees
the write, or a later one of the same chain of atomics, and where both scopes include both threads. What runs here is
sequentially consistent, so a read sees what was written last.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from pytest_nvfp4.sim.races.access import Who
from pytest_nvfp4.sim.races.clocks import ISSUED, SC, TENSOR, Agent, Ticks, joined
from pytest_nvfp4.sim.races.orders import CLUSTER, CTA, GPU, Order

__all__ = ["Known", "SyncVariables", "Thread", "known_by", "learn"]

Known = dict[int, Ticks]
"""By cluster, what is known of its agents."""
_Key = tuple[int, tuple[int, int, int] | None, int]
"""Scope of a release, CTA and cluster of who made it."""
_SEPARATE = 64
"""Releasing CTAs of one variable that are kept apart; of the others only GPU-wide readers see what they released."""


def known_by(agent: Agent) -> Known:
    """All that an agent knows now."""
    clock = agent.clock
    known = {agent.clocks.number: clock.ticks.copy()}
    if clock.foreign:
        known.update(clock.foreign)
    return known


def learn(agent: Agent, known: Known) -> None:
    """An agent knows this from now on."""
    mine = agent.clocks.number
    for number, ticks in known.items():
        if number == mine:
            agent.clock.join_snapshot(ticks)
        else:
            agent.clock.learn({number: ticks})
    agent.version += 1


class Thread:
    """What a warp's fences and strong reads have left open.

    Attributes:
        fenced: By scope, what the warp knew at its last fence of at least that scope.
        seen: What strong reads saw that no fence has acquired yet: the scope that is needed, and what.
    """

    __slots__ = ("fenced", "seen")

    def __init__(self) -> None:
        self.fenced: dict[int, Known] = {}
        self.seen: dict[int, tuple[int, Known]] = {}

    def fence(self, agent: Agent, scope: int) -> None:
        """A fence: acquires what was read before, releases to what is written after."""
        for needed, known in self.seen.values():
            if needed <= scope:
                learn(agent, known)
        self.seen.clear()
        now = known_by(agent)
        for each in range(scope + 1):
            self.fenced[each] = now
        agent.advance()


class SyncVariables:
    """The variables of a launch, by address."""

    def __init__(self) -> None:
        self._variables: dict[Hashable, dict[_Key, Known]] = {}

    def access(self, address: Hashable, agent: Agent, thread: Thread, who: Who, order: Order, *, write: bool) -> None:
        """A strong access to an address; an atomic reads and writes."""
        if order.updates or not write:
            self._read(address, agent, thread, who, order)
        if write:
            self._write(address, agent, thread, who, order)

    def overwritten(self, address: Hashable) -> None:
        """A weak write: what was released to the address is gone."""
        self._variables.pop(address, None)

    def __bool__(self) -> bool:
        return bool(self._variables)

    def _read(self, address: Hashable, agent: Agent, thread: Thread, who: Who, order: Order) -> None:
        for (scope, cta, cluster), known in self._variables.get(address, {}).items():
            needed = CTA if cta == who.cta else CLUSTER if cluster == who.cluster else GPU
            if needed > scope or needed > order.scope:
                continue
            if order.acquires:
                learn(agent, known)
            else:
                thread.seen[id(known)] = (needed, known)
                learn(agent, _passing(known))

    def _write(self, address: Hashable, agent: Agent, thread: Thread, who: Who, order: Order) -> None:
        entries = self._variables.setdefault(address, {})
        if not order.updates:
            entries.clear()
        released: dict[int, Known] = {}
        if order.releases:
            released[order.scope] = known_by(agent)
            agent.advance()
        else:
            for scope, known in thread.fenced.items():
                if scope <= order.scope and (scope == order.scope or scope + 1 not in thread.fenced):
                    released[scope] = known
        passing = {} if order.releases else _passing(known_by(agent), covered=order.scope == GPU)
        if passing:
            released[order.scope] = _join(passing, released.get(order.scope, {}))
        for scope, known in released.items():
            key: _Key = (scope, who.cta, who.cluster)
            if scope == GPU and len(entries) > _SEPARATE:
                key = (GPU, None, -1)
            kept = entries.get(key)
            entries[key] = known if kept is None else _join(kept, known)


def _passing(known: Known, *, covered: bool = True) -> Known:
    """What of it passes a relaxed access, as that alone.

    That is what a ``fence.sc`` has covered, which becomes known behind another ``fence.sc``, and the tcgen05 work that
    was put before a synchronisation, for which such an access is one (``tensor_order``).
    """
    rows = slice(TENSOR, (SC if covered else ISSUED) + 1)
    result: Known = {}
    for number, ticks in known.items():
        if ticks[rows].any():
            result[number] = only = np.zeros_like(ticks)
            only[rows] = ticks[rows]
    return result


def _join(one: Known, other: Known) -> Known:
    result = dict(one)
    for number, ticks in other.items():
        mine = result.get(number)
        result[number] = ticks if mine is None else joined(mine, ticks)
    return result
