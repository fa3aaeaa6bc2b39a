"""Flags and counters: memory through which warps order each other.

PTX ISA, "Memory Consistency Model", "Release and Acquire Patterns": a release is a ``.release`` write, or a strong
write after a fence; an acquire is an ``.acquire`` read, or a strong read before a fence. They synchronise if the read
observes the write, or a later one of the same chain of atomics, and if both scopes include both threads. The simulation
is sequentially consistent, so that a read observes the last write.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from pytest_nvfp4.sim.races.clocks import Agent
from pytest_nvfp4.sim.races.joins import Joins
from pytest_nvfp4.sim.races.names import WarpId
from pytest_nvfp4.sim.races.orders import CLUSTER, CTA, GPU, Order
from pytest_nvfp4.sim.races.ticks import BEFORE, TENSOR, Snapshot

_SEPARATE = 64
"""Releasing CTAs of one variable that have entries of their own. Those beyond share one of GPU scope, so that only
GPU-wide acquires observe them."""


class _Release(NamedTuple):
    """Scope of a release, and the CTA and cluster of the warp that executed it."""

    scope: int
    cta: tuple[int, int, int] | None
    cluster: int


class _Released(NamedTuple):
    """What releases pass on.

    Attributes:
        snapshot: All of it, but for ``also``.
        by: Cluster and number of the agent that executed all of them; None for several.
        also: A snapshot whose relaxed part (``Joins.relaxed_part``) they pass on, too; None for no more.
    """

    snapshot: Snapshot
    by: tuple[int, int] | None
    also: Snapshot | None = None


_NOTHING: dict[_Release, _Released] = {}


class _PendingAcquire(NamedTuple):
    """What a strong read observed, and the scope that a fence needs to acquire it."""

    scope: int
    snapshot: Snapshot


class _Variable:
    """The releases that a read of one address observes: those since its last plain write.

    Attributes:
        wide: Those of GPU scope, by cluster.
        narrow: Those of narrower scopes, by cluster.
        all_wide: The join of ``wide``, which any read of GPU scope observes. Most readers have most of its ticks
            already, as the same objects, where the separate releases would have to be compared tick by tick.
    """

    __slots__ = ("_joins", "_separate", "all_wide", "narrow", "wide")

    def __init__(self, joins: Joins) -> None:
        self._joins = joins
        self._separate = 0
        self.wide: dict[int, dict[_Release, _Released]] = {}
        self.narrow: dict[int, dict[_Release, _Released]] = {}
        self.all_wide: Snapshot = {}

    def add(self, release: _Release, snapshot: Snapshot, agent: Agent, base: Snapshot | None) -> None:
        """Add a release of an agent, whose snapshot has ``base`` and ticks of its own cluster, if that is known."""
        joins, own = self._joins, agent.clocks.number
        also = agent.relaxed_reads.get(self)
        if release.scope == GPU:
            if self._separate > _SEPARATE:
                release = _Release(GPU, None, -1)
            self.all_wide = joins.extended(self.all_wide, snapshot, base, own) if self.wide else snapshot
        entries = (self.wide if release.scope == GPU else self.narrow).setdefault(release.cluster, {})
        earlier = entries.get(release)
        if earlier is None:
            self._separate += release.scope == GPU
        if earlier is None or (earlier.by == (own, agent.number) and _is_later(agent, snapshot, earlier.snapshot)):
            entries[release] = _Released(snapshot, (own, agent.number), also)
        else:
            by = earlier.by if earlier.by == (own, agent.number) else None
            whole = joins.of_snapshots(earlier.snapshot, snapshot)
            if earlier.also is not None:
                whole = joins.of_snapshots(whole, joins.relaxed_part(earlier.also))
            entries[release] = _Released(whole, by, also)


def _is_later(agent: Agent, one: Snapshot, other: Snapshot) -> bool:
    """Return whether the first of two snapshots of an agent's releases of one scope surely has all of the second.

    The agent's tick in a snapshot tells when it was taken: every release begins a tick, and clocks only grow.
    """
    own, number = agent.clocks.number, agent.number
    return own in one and own in other and bool(one[own][BEFORE, number] > other[own][BEFORE, number])


class FenceState:
    """What a warp's fences and strong reads have left open.

    Attributes:
        fenced: By scope, the warp's clock at its last fence of at least that scope.
        foreign: What of other clusters it had seen at its last fence.
        pending: What strong reads observed and no fence has acquired yet: by identity of the snapshot, and all releases
            of GPU scope of a variable by the variable. A fence leaves what needs a wider scope to a later one (measured
            on an H200, driver 580.159.04: behind a fence of the CTA and then one of the GPU, none of 300,000 loads of
            another CTA's data from L1 was stale; behind the first alone, all were).
    """

    def __init__(self) -> None:
        self.fenced: dict[int, Snapshot] = {}
        self.foreign: Snapshot | None = None
        self.pending: dict[int | _Variable, _PendingAcquire] = {}

    def observe(self, scope: int, snapshot: Snapshot) -> bool:
        """Record what a strong read observed, for a later fence of at least this scope; return whether it is new."""
        new = id(snapshot) not in self.pending
        self.pending[id(snapshot)] = _PendingAcquire(scope, snapshot)
        return new

    def observe_all(self, variable: _Variable) -> bool:
        """Record that a strong read observed all releases of GPU scope; return whether there are new ones."""
        before = self.pending.get(variable)
        self.pending[variable] = _PendingAcquire(GPU, variable.all_wide)  # which has what was observed before
        return before is None or before.snapshot is not variable.all_wide

    def fence(self, agent: Agent, scope: int) -> None:
        """Execute a fence: acquire for the reads before it, release for the writes after it."""
        for read, pending in self.pending.items():
            if pending.scope <= scope:
                agent.relaxed_reads.pop(read, None)
                agent.acquire_snapshot(pending.snapshot)
        self.pending = {read: pending for read, pending in self.pending.items() if pending.scope > scope}
        now = agent.snapshot()
        for each in range(scope + 1):
            self.fenced[each] = now
        self.foreign = agent.clock.foreign
        agent.advance()

    def covers(self, agent: Agent, scope: int, variable: _Variable) -> bool:
        """Return whether a relaxed write to a variable passes on nothing but the last fence, of at least this scope.

        What a relaxed read of the variable has brought is in the variable already.
        """
        fenced = self.fenced.get(scope)
        if fenced is None or fenced is not self.fenced[CTA]:
            return False
        if not agent.relaxed_reads.keys() <= {variable} or agent.clock.foreign is not self.foreign:
            return False
        before, now = fenced[agent.clocks.number], agent.clock.ticks
        return before.shape == now.shape and before[TENSOR:].tobytes() == now[TENSOR:].tobytes()


class SyncVariables:
    """The synchronisation variables of a launch, by address. ``joins`` are the joins of the launch."""

    def __init__(self, joins: Joins) -> None:
        self._joins = joins
        self._variables: dict[Hashable, _Variable] = {}

    def access(
        self, address: Hashable, agent: Agent, fences: FenceState, warp: WarpId, order: Order, *, write: bool
    ) -> None:
        """Execute a strong access to an address; an atomic reads and writes."""
        if order.updates or not write:
            self._read(address, agent, fences, warp, order)
        if write:
            self._write(address, agent, fences, warp, order)

    def _read(self, address: Hashable, agent: Agent, fences: FenceState, warp: WarpId, order: Order) -> None:
        variable = self._variables.get(address)
        if variable is None:
            return
        whole = order.scope == GPU and bool(variable.wide)
        if whole and order.acquires:
            agent.relaxed_reads.pop(variable, None)
            fences.pending.pop(variable, None)
            agent.acquire_snapshot(variable.all_wide)
        elif whole and fences.observe_all(variable):
            agent.acquire_relaxed(variable, variable.all_wide)
        # A later fence may have a narrower scope, so that it acquires only the releases in the warp's surroundings.
        # Those of other clusters are wide, or do not count.
        near = dict(variable.narrow.get(warp.cluster, _NOTHING))
        if not (whole and order.acquires):
            near |= variable.wide.get(warp.cluster, _NOTHING)
        for release, (snapshot, by, also) in near.items():
            if by == (warp.cluster, agent.number):
                continue
            # Each scope must include the other thread (PTX ISA, "Scope" and "Moral strength").
            needed = CTA if release.cta == warp.cta else CLUSTER if release.cluster == warp.cluster else GPU
            if needed > release.scope or needed > order.scope or (whole and needed == GPU):
                continue
            if also is not None:
                agent.acquire_snapshot(self._joins.relaxed_part(also))
            if order.acquires:
                agent.acquire_snapshot(snapshot)
            elif fences.observe(needed, snapshot):
                agent.acquire_snapshot(self._joins.relaxed_part(snapshot))

    def _write(self, address: Hashable, agent: Agent, fences: FenceState, warp: WarpId, order: Order) -> None:
        variable = self._variables.get(address)
        if variable is None or not order.updates:
            variable = self._variables[address] = _Variable(self._joins)
        released: dict[int, Snapshot] = {}
        base = None
        if order.releases:
            released[order.scope] = agent.snapshot()
            base = agent.clock.foreign
            agent.advance()
        else:
            for scope, snapshot in fences.fenced.items():
                if scope <= order.scope and (scope == order.scope or scope + 1 not in fences.fenced):
                    released[scope] = snapshot
            if fences.covers(agent, order.scope, variable):
                base = fences.foreign
            elif relaxed := self._joins.relaxed_part(agent.snapshot(), covered=order.scope == GPU):
                released[order.scope] = self._joins.of_snapshots(relaxed, released.get(order.scope, {}))
        for scope, snapshot in released.items():
            variable.add(_Release(scope, warp.cta, warp.cluster), snapshot, agent, base)
