"""Asynchronous operations that are completed by groups: ``commit_group`` and ``wait_group``.

PTX ISA, "cp.async.commit_group" and "cp.async.bulk.commit_group": a group has all operations of the thread since the
previous commit; ``wait_group N`` returns when at most the N youngest groups are pending. ``wait_group.read`` waits only
until the sources, tensor maps among them, have been read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_nvfp4.sim.races.clocks import Clocks
from pytest_nvfp4.sim.races.names import AgentInfo, WarpId


def _complete(groups: Sequence[int], allowed: int) -> int:
    """Return the last tick of the youngest complete group when ``allowed`` groups may be pending; 0 for none."""
    count = len(groups) - allowed
    return groups[count - 1] if count > 0 else 0


class BulkStores:
    """The bulk stores of a thread: the agents of their reads and writes, the last tick issued, the ticks by group."""

    def __init__(self, clocks: Clocks, warp: WarpId, lane: int) -> None:
        name = f"bulk stores of lane {lane} of {warp}"
        self.read = clocks.agent(AgentInfo("bulk-read", name, warp))
        self.write = clocks.agent(AgentInfo("bulk-write", name, warp))
        self.issued = 0
        self.open = 0
        self.groups: list[int] = []

    def commit(self) -> None:
        """Commit the open stores as a group. Empty groups before the thread's first store are not counted."""
        if self.open or self.groups:
            self.groups.append(self.issued)
            self.open = 0

    def done(self, allowed: int) -> int:
        """Return the tick up to which all stores are done when ``allowed`` groups may be pending."""
        return _complete(self.groups, allowed)


@dataclass(slots=True)
class CpAsyncCopies:
    """The ``cp.async`` copies of a warp: their agent, the last tick issued, the ticks by group."""

    number: int
    issued: int = 0
    groups: list[int] = field(default_factory=list)

    def done(self, allowed: int | None) -> int:
        """Return the tick up to which all copies are done when ``allowed`` groups may be pending; None: no copy."""
        return self.issued if allowed is None else _complete(self.groups, allowed)


@dataclass(slots=True)
class MapLoads:
    """The reads of tensor maps by a warp's loads: their agent, and the number issued, the tick of the last."""

    number: int
    issued: int = 0


class _PendingRead(NamedTuple):
    stores: BulkStores
    store: int
    tick: int


@dataclass(slots=True)
class MapReads:
    """The reads of tensor maps by a warp's stores.

    Attributes:
        number: Their agent.
        issued: Number of reads, which is the tick of the last.
        pending: Reads that are not known to be complete, in order: the bulk stores of the thread, the number of the
            store among them, the tick of the read.
    """

    number: int
    issued: int = 0
    pending: list[_PendingRead] = field(default_factory=list)

    def add(self, stores: BulkStores) -> int:
        """Record a read by the thread's last store and return its tick."""
        self.issued += 1
        self.pending.append(_PendingRead(stores, stores.issued, self.issued))
        return self.issued

    def done(self, allowed: int) -> int:
        """Return the tick up to which all reads are done when a thread of the warp allows so many pending groups."""
        last = 0
        while self.pending and self.pending[0].stores.done(allowed) >= self.pending[0].store:
            last = self.pending.pop(0).tick
        return last
