"""What reads of a flag or a counter acquire, against the releases that they observe, taken one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.races import joins as joins_module
from pytest_nvfp4.sim.races.clocks import Agent, Clocks
from pytest_nvfp4.sim.races.joins import Joins
from pytest_nvfp4.sim.races.names import AgentInfo
from pytest_nvfp4.sim.races.orders import CLUSTER, CTA, GPU, Order
from pytest_nvfp4.sim.races.sync_variables import FenceState, SyncVariables
from pytest_nvfp4.sim.races.ticks import BEFORE, ISSUED, SC, TENSOR, joined

WARPS = [(cluster, cta) for cluster in range(2) for cta in (0, 0, 1)]
"""Cluster, and CTA in it, of each warp."""

SCOPES = st.sampled_from([CTA, CLUSTER, GPU, GPU])
ACCESSES = st.tuples(
    st.integers(0, len(WARPS) - 1), SCOPES, st.booleans(), st.booleans(), st.sampled_from(["read", "update", "write"])
)
FENCES = st.tuples(st.integers(0, len(WARPS) - 1), SCOPES)

Knowledge = dict[int, int]
"""By warp, the last of its ticks that happened before."""


@dataclass
class Definition:
    """A warp that keeps each release by itself."""

    knows: Knowledge = field(default_factory=dict)
    fenced: dict[int, Knowledge] = field(default_factory=dict)
    pending: list[tuple[int, Knowledge]] = field(default_factory=list)

    def learn(self, more: Knowledge) -> None:
        for warp, tick in more.items():
            self.knows[warp] = max(self.knows.get(warp, 0), tick)


def needed(one: tuple[int, int], other: tuple[int, int]) -> int:
    return CTA if one == other else CLUSTER if one[0] == other[0] else GPU


class Both:
    """The same accesses to one variable, in the detector's clocks and by the definition."""

    def __init__(self) -> None:
        joins = Joins()
        self.variables = SyncVariables(joins)
        clusters = [Clocks(number, joins) for number in range(2)]
        self.agents = [Agent(clusters[cluster], AgentInfo("warp", "a warp")) for cluster, _ in WARPS]
        self.fences = [FenceState() for _ in WARPS]
        self.warps = [Definition() for _ in WARPS]
        self.releases: list[tuple[int, int, Knowledge]] = []

    def access(self, who: int, scope: int, acquires: bool, releases: bool, kind: str) -> None:
        agent, warp = self.agents[who], self.warps[who]
        order = Order(True, acquires and kind != "write", releases and kind != "read", kind == "update", scope)
        warp.knows[who] = agent.epoch()
        cluster, cta = WARPS[who]
        place: Any = SimpleNamespace(cta=(cluster, cta, 0), cluster=cluster)
        self.variables.access("x", agent, self.fences[who], place, order, write=kind != "read")
        if kind != "write":
            for other, wide, known in self.releases:
                least = needed(WARPS[who], WARPS[other])
                if least <= wide and least <= scope:
                    if order.acquires:
                        warp.learn(known)
                    else:
                        warp.pending.append((least, known))
        if kind == "write":
            self.releases.clear()
        if order.releases:
            self.releases.append((who, scope, dict(warp.knows)))
        elif kind != "read":
            for each, known in warp.fenced.items():
                if each <= scope and (each == scope or each + 1 not in warp.fenced):
                    self.releases.append((who, each, known))

    def fence(self, who: int, scope: int) -> None:
        agent, warp = self.agents[who], self.warps[who]
        warp.knows[who] = agent.epoch()
        self.fences[who].fence(agent, scope)
        for least, known in warp.pending:
            if least <= scope:
                warp.learn(known)
        warp.pending = [(least, known) for least, known in warp.pending if least > scope]
        for each in range(scope + 1):
            warp.fenced[each] = dict(warp.knows)

    def seen(self, who: int) -> Knowledge:
        """What the detector's clock of a warp has, without zeros."""
        agent, result = self.agents[who], Knowledge()
        for other, one in enumerate(self.agents):
            number = one.clocks.number
            ticks = agent.clock.ticks if number == agent.clocks.number else (agent.clock.foreign or {}).get(number)
            if ticks is not None and ticks[BEFORE, one.number]:
                result[other] = int(ticks[BEFORE, one.number])
        return result


def run(program: list[tuple[Any, ...]]) -> None:
    both = Both()
    for event in program:
        (both.access if len(event) > 2 else both.fence)(*event)
        who = event[0]
        assert both.seen(who) == both.warps[who].knows | {who: both.seen(who)[who]}


@given(st.lists(ACCESSES | FENCES, min_size=5, max_size=40))
@settings(max_examples=400, deadline=None)
def test_reads_acquire_what_the_releases_say(program: list[tuple[Any, ...]]) -> None:
    run(program)


@given(st.lists(ACCESSES | FENCES, min_size=20, max_size=40))
@settings(max_examples=50, deadline=None)
def test_few_remembered_joins_change_nothing(program: list[tuple[Any, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joins_module, "_MOST_JOINS", 1)
        run(program)


def test_a_reader_of_narrow_scope_does_not_observe_other_clusters() -> None:
    """The control: the join of all releases is not for it."""
    both = Both()
    both.access(0, GPU, False, True, "update")
    both.access(3, GPU, False, True, "update")
    both.access(5, CLUSTER, True, False, "read")
    assert both.seen(5) == {3: 1, 5: 1}
    both.access(5, GPU, True, False, "read")
    assert both.seen(5) == {0: 1, 3: 1, 5: 1}


def test_a_fence_of_narrow_scope_acquires_the_releases_around_it() -> None:
    both = Both()
    both.access(0, GPU, False, True, "update")
    both.access(3, GPU, False, True, "update")
    both.access(1, GPU, False, False, "read")
    assert both.seen(1) == {1: 1}
    both.fence(1, CTA)
    assert both.seen(1) == {0: 1, 1: 1}
    both.fence(1, CLUSTER)
    assert both.seen(1) == {0: 1, 1: 2}
    both.fence(1, GPU)
    assert both.seen(1) == {0: 1, 1: 3, 3: 1}


def test_a_remembered_join_is_the_join() -> None:
    joins, draw = Joins(), np.random.default_rng(0)
    copies = [draw.integers(0, 3, (8, width)) for width in (4, 4, 8)]
    for _ in range(2):
        for one in copies:
            for other in copies:
                assert (joins.of(one, other) == joined(one, other)).all()


def test_a_remembered_join_of_snapshots_is_their_join() -> None:
    joins, draw = Joins(), np.random.default_rng(1)
    ticks = [draw.integers(0, 2, (8, 4)) for _ in range(4)]
    snapshots = [{n: ticks[draw.integers(4)] for n in range(5) if draw.integers(2)} for _ in range(12)]
    for _ in range(2):
        for one in snapshots:
            for other in snapshots:
                made = joins.of_snapshots(one, other)
                assert set(made) == set(one) | set(other)
                for number, found in made.items():
                    held = [each[number] for each in (one, other) if number in each]
                    assert (found == np.maximum.reduce(held)).all()
                if all(number in one and (one[number] == made[number]).all() for number in made):
                    assert made is one or made is other
    assert joins.of_snapshots(snapshots[0], snapshots[0]) is snapshots[0]


def test_a_relaxed_access_passes_on_covered_and_tensor_work_only() -> None:
    joins, empty = Joins(), np.zeros((8, 4), np.int64)
    full = np.ones((8, 4), np.int64)
    for _ in range(2):
        passed = joins.relaxed_part({0: empty, 1: full})
        assert list(passed) == [1]
        assert passed[1].any(axis=1).tolist() == [row in (TENSOR, ISSUED, SC) for row in range(8)]
        assert joins.relaxed_part({1: full}, covered=False)[1].any(axis=1).nonzero()[0].tolist() == [TENSOR, ISSUED]
