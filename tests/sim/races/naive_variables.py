"""Clocks and synchronisation variables from their definition: nothing is shared, remembered or put off.

A clock is by agent, named by its cluster and number, the eight rows of ``races.ticks``. A variable is the list of its
releases since its last plain write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.races.orders import CLUSTER, CTA, GPU, Order
from pytest_nvfp4.sim.races.ticks import ASYNC_GLOBAL, ASYNC_SHARED, BEFORE, ISSUED, ROWS, SC, TENSOR, VISIBLE, Snapshot

Name = tuple[int, int]
Rows = dict[Name, NDArray[np.int64]]


def joined(first: Rows, second: Rows) -> Rows:
    zero = np.zeros(ROWS, np.int64)
    return {name: np.maximum(first.get(name, zero), second.get(name, zero)) for name in first.keys() | second.keys()}


def relaxed_part(rows: Rows, *, covered: bool = True) -> Rows:
    kept = np.isin(np.arange(ROWS), (TENSOR, ISSUED, *([SC] if covered else [])))
    return {name: np.where(kept, each, 0) for name, each in rows.items()}


def rows_of(snapshot: Snapshot) -> Rows:
    """Return the ticks of a snapshot by agent, those that are not zero."""
    return {
        (cluster, number): column
        for cluster, ticks in snapshot.items()
        for number, column in enumerate(ticks.T)
        if column.any()
    }


def same(first: Rows, second: Rows, *, rows: slice = slice(None)) -> bool:
    both = joined(first, second)
    zero = np.zeros(ROWS, np.int64)
    return all(
        np.array_equal(each.get(name, zero)[rows], both[name][rows]) for each in (first, second) for name in both
    )


@dataclass
class NaiveAgent:
    """An agent with what its fences have left open."""

    cluster: int
    number: int
    cta: object
    rows: Rows = field(default_factory=dict)
    tick: int = 1
    released: bool = False
    fenced: dict[int, Rows] = field(default_factory=dict)
    pending: list[tuple[int, Rows]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows[self.name] = np.zeros(ROWS, np.int64)
        self._begin()

    @property
    def name(self) -> Name:
        return self.cluster, self.number

    def _begin(self) -> None:
        self.rows[self.name][:ASYNC_SHARED] = self.tick

    def epoch(self) -> None:
        if self.released:
            self.released = False
            self.tick += 1
            self._begin()

    def snapshot(self) -> Rows:
        return {name: each.copy() for name, each in self.rows.items()}

    def acquire(self, rows: Rows) -> None:
        self.rows = joined(self.rows, rows)

    def fence_sc(self) -> None:
        for each in self.rows.values():
            each[:ASYNC_SHARED] = np.maximum(each[:ASYNC_SHARED], each[SC])
            each[SC] = each[VISIBLE]
        self.released = True

    def fence_proxy(self, *, shared: bool, everywhere: bool) -> None:
        for (cluster, _), each in self.rows.items():
            if shared and cluster == self.cluster:
                each[ASYNC_SHARED] = each[BEFORE]
            if everywhere or not shared:
                each[ASYNC_GLOBAL] = each[BEFORE]
        self.released = True

    def fence_tensor(self) -> None:
        self.epoch()
        self.rows[self.name][[TENSOR, ISSUED]] = self.tick
        self.released = True

    def fence(self, scope: int) -> None:
        for needed, rows in self.pending:
            if needed <= scope:
                self.acquire(rows)
        self.pending = [(needed, rows) for needed, rows in self.pending if needed > scope]
        self.fenced.update(dict.fromkeys(range(scope + 1), self.snapshot()))
        self.released = True


def barrier(agents: Iterable[NaiveAgent]) -> None:
    met: Rows = {}
    agents = list(agents)
    for agent in agents:
        agent.epoch()
        met = joined(met, agent.rows)
        agent.released = True
    for agent in agents:
        agent.acquire(met)


class NaiveVariables:
    """The releases by address: scope, CTA and cluster of the releasing warp, and what it passes on."""

    def __init__(self) -> None:
        self._releases: dict[int, list[tuple[int, object, int, Rows]]] = {}

    def access(self, address: int, agent: NaiveAgent, order: Order, *, write: bool) -> None:
        if order.updates or not write:
            self._read(self._releases.get(address, []), agent, order)
        if write:
            if not order.updates:
                self._releases[address] = []
            self._releases.setdefault(address, []).extend(self._write(agent, order))

    @staticmethod
    def _read(releases: list[tuple[int, object, int, Rows]], agent: NaiveAgent, order: Order) -> None:
        for scope, cta, cluster, rows in releases:
            needed = CTA if cta == agent.cta else CLUSTER if cluster == agent.cluster else GPU
            if needed > scope or needed > order.scope:
                continue
            if order.acquires:
                agent.acquire(rows)
            else:
                agent.pending.append((needed, rows))
                agent.acquire(relaxed_part(rows))

    @staticmethod
    def _write(agent: NaiveAgent, order: Order) -> Iterable[tuple[int, object, int, Rows]]:
        if order.releases:
            yield order.scope, agent.cta, agent.cluster, agent.snapshot()
            agent.released = True
            return
        for scope, rows in agent.fenced.items():
            if scope <= order.scope and (scope == order.scope or scope + 1 not in agent.fenced):
                yield scope, agent.cta, agent.cluster, rows
        yield order.scope, agent.cta, agent.cluster, relaxed_part(agent.snapshot(), covered=order.scope == GPU)
