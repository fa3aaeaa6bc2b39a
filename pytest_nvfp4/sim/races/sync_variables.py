"""Flags and counters: memory through which warps order each other.

PTX ISA, "Memory Consistency Model", "Release and Acquire Patterns": a release is a ``.release`` write, or a strong
write after a fence; an acquire is an ``.acquire`` read, or a strong read before a fence. They synchronise if the read
observes the write, or a later one of the same chain of atomics, and if both scopes include both threads. The simulation
is sequentially consistent, so that a read observes the last write.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from pytest_nvfp4.sim.races.clocks import Agent, Joins, Snapshot
from pytest_nvfp4.sim.races.names import WarpId
from pytest_nvfp4.sim.races.orders import CLUSTER, CTA, GPU, Order

_SEPARATE = 64
"""Releasing CTAs of one variable that have entries of their own. Those beyond share one of GPU scope, so that only
GPU-wide acquires observe them."""


class _Release(NamedTuple):
    """Scope of a release, and the CTA and cluster of the warp that executed it."""

    scope: int
    cta: tuple[int, int, int] | None
    cluster: int


class _PendingAcquire(NamedTuple):
    """What a strong read observed, and the scope that a fence needs to acquire it."""

    scope: int
    snapshot: Snapshot


class _Variable:
    """The releases that a read of one address observes: those since its last plain write.

    Attributes:
        wide: Those of GPU scope.
        narrow: Those of narrower scopes.
        all_wide: The join of ``wide``, which any read of GPU scope observes. Most readers have most of its ticks
            already, as the same objects, where the separate releases would have to be compared tick by tick.
    """

    __slots__ = ("_joins", "_relaxed", "all_wide", "narrow", "wide")

    def __init__(self, joins: Joins) -> None:
        self._joins = joins
        self.wide: dict[_Release, Snapshot] = {}
        self.narrow: dict[_Release, Snapshot] = {}
        self.all_wide: Snapshot = {}
        self._relaxed: Snapshot | None = None

    def add(self, release: _Release, snapshot: Snapshot) -> None:
        """Add a release."""
        if release.scope == GPU:
            if len(self.wide) > _SEPARATE:
                release = _Release(GPU, None, -1)
            self.all_wide = self._joins.of_snapshots(self.all_wide, snapshot) if self.wide else snapshot
            self._relaxed = None
        entries = self.wide if release.scope == GPU else self.narrow
        earlier = entries.get(release)
        entries[release] = snapshot if earlier is None else self._joins.of_snapshots(earlier, snapshot)

    @property
    def relaxed(self) -> Snapshot:
        """What a relaxed read of ``all_wide`` acquires."""
        if self._relaxed is None:
            self._relaxed = self._joins.relaxed_part(self.all_wide)
        return self._relaxed


class FenceState:
    """What a warp's fences and strong reads have left open.

    Attributes:
        fenced: By scope, the warp's clock at its last fence of at least that scope.
        pending: What strong reads observed and no fence has acquired yet: by identity of the snapshot, and all releases
            of GPU scope of a variable by the variable.
    """

    def __init__(self) -> None:
        self.fenced: dict[int, Snapshot] = {}
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
        for pending in self.pending.values():
            if pending.scope <= scope:
                agent.acquire_snapshot(pending.snapshot)
        self.pending.clear()
        now = agent.snapshot()
        for each in range(scope + 1):
            self.fenced[each] = now
        agent.advance()


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
            agent.acquire_snapshot(variable.all_wide)
        elif whole and fences.observe_all(variable):
            agent.acquire_snapshot(variable.relaxed)
        # A later fence may have a narrower scope, so that it acquires only the releases in the warp's surroundings.
        separate = variable.narrow if whole and order.acquires else {**variable.wide, **variable.narrow}
        for release, snapshot in separate.items():
            # Each scope must include the other thread (PTX ISA, "Scope" and "Moral strength").
            needed = CTA if release.cta == warp.cta else CLUSTER if release.cluster == warp.cluster else GPU
            if needed > release.scope or needed > order.scope or (whole and needed == GPU):
                continue
            if order.acquires:
                agent.acquire_snapshot(snapshot)
            elif fences.observe(needed, snapshot):
                agent.acquire_snapshot(self._joins.relaxed_part(snapshot))

    def _write(self, address: Hashable, agent: Agent, fences: FenceState, warp: WarpId, order: Order) -> None:
        variable = self._variables.get(address)
        if variable is None or not order.updates:
            variable = self._variables[address] = _Variable(self._joins)
        released: dict[int, Snapshot] = {}
        if order.releases:
            released[order.scope] = agent.snapshot()
            agent.advance()
        else:
            for scope, snapshot in fences.fenced.items():
                if scope <= order.scope and (scope == order.scope or scope + 1 not in fences.fenced):
                    released[scope] = snapshot
        relaxed = {} if order.releases else self._joins.relaxed_part(agent.snapshot(), covered=order.scope == GPU)
        if relaxed:
            released[order.scope] = self._joins.of_snapshots(relaxed, released.get(order.scope, {}))
        for scope, snapshot in released.items():
            variable.add(_Release(scope, warp.cta, warp.cluster), snapshot)
