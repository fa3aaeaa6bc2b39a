"""Fences, relaxed accesses and barriers of several clusters, against clocks that share nothing and put nothing off."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.races import joins as joins_module
from pytest_nvfp4.sim.races.clocks import Agent, Clocks
from pytest_nvfp4.sim.races.joins import Joins
from pytest_nvfp4.sim.races.names import AgentInfo
from pytest_nvfp4.sim.races.orders import CLUSTER, CTA, GPU, Order
from pytest_nvfp4.sim.races.sync_variables import FenceState, SyncVariables
from pytest_nvfp4.sim.races.ticks import INITS, ISSUED, TENSOR
from tests.sim.races.naive_variables import NaiveAgent, NaiveVariables, barrier, rows_of, same

SCOPES = (GPU, GPU, GPU, CLUSTER, CTA)


class Pair:
    """One warp in the detector's clocks, and by the definition."""

    def __init__(self, clocks: Clocks, cta: int) -> None:
        self.agent = Agent(clocks, AgentInfo("warp", "a warp"))
        self.fences = FenceState()
        self.warp: Any = SimpleNamespace(cta=(clocks.number, cta, 0), cluster=clocks.number)
        self.naive = NaiveAgent(clocks.number, self.agent.number, self.warp.cta)

    def agree(self) -> bool:
        """Return whether what decides about races now is the same; other rows may be behind."""
        agent = self.agent
        seen = rows_of({**(agent.clock.foreign or {}), agent.clocks.number: agent.clock.ticks})
        return same(seen, self.naive.rows, rows=slice(INITS))


def step(draw: Random, pairs: list[Pair], variables: SyncVariables, naive: NaiveVariables) -> None:
    """Let one warp do something."""
    pair = draw.choice(pairs)
    agent, other = pair.agent, pair.naive
    what = draw.choices(("access", "fence", "proxy", "barrier", "tensor"), (11, 5, 1, 2, 1))[0]
    if what == "access":
        updates = draw.random() < 0.5
        write = updates or draw.random() < 0.3
        order = Order(
            strong=True,
            updates=updates,
            releases=write and draw.random() < 0.3,
            acquires=(updates or not write) and draw.random() < 0.4,
            scope=draw.choice(SCOPES),
        )
        address = draw.randrange(3)
        agent.epoch()
        other.epoch()
        variables.access(address, agent, pair.fences, pair.warp, order, write=write)
        naive.access(address, other, order, write=write)
    elif what == "fence":
        scope = draw.choice(SCOPES)
        if scope == GPU and draw.random() < 0.6:
            agent.fence_sc()
            other.fence_sc()
        pair.fences.fence(agent, scope)
        other.fence(scope)
    elif what == "proxy":
        shared, everywhere = draw.random() < 0.5, draw.random() < 0.5
        agent.fence_proxy(shared=shared, everywhere=everywhere)
        other.fence_proxy(shared=shared, everywhere=everywhere)
    elif what == "barrier":
        met = agent.clocks.clock()
        mates = [each for each in pairs if each.warp.cluster == pair.warp.cluster]
        for each in mates:
            each.agent.epoch()
            each.agent.release(met)
        for each in mates:
            each.agent.acquire(met)
        barrier(each.naive for each in mates)
    else:
        agent.clock.ticks[[TENSOR, ISSUED], agent.number] = agent.epoch()
        agent.version += 1
        agent.advance()
        other.fence_tensor()


def disagreement(draw: Random, *, steps: int) -> str | None:
    """Return where a random program differs from the definition."""
    joins = Joins()
    clusters = [Clocks(number, joins) for number in range(draw.choice((2, 3, 6)))]
    pairs = [Pair(clocks, warp // 2) for clocks in clusters for warp in range(draw.choice((1, 2, 3)))]
    variables, naive = SyncVariables(joins), NaiveVariables()
    for number in range(steps):
        step(draw, pairs, variables, naive)
        if not all(pair.agree() for pair in pairs):
            return f"after step {number}"
    whole = all(same(rows_of(pair.agent.snapshot()), pair.naive.rows) for pair in pairs)
    return None if whole else "in what they pass on"


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([30, 100]))
def test_clocks_agree_with_the_definition(draw: Random, steps: int) -> None:
    assert disagreement(draw, steps=steps) is None


def test_few_remembered_snapshots_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MOST_JOINS", "_MOST_SNAPSHOTS", "_MOST_STEPS"):
        monkeypatch.setattr(joins_module, name, 3)
    assert [disagreement(Random(seed), steps=60) for seed in range(15)] == [None] * 15


def test_a_relaxed_read_that_brings_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Agent, "_join_relaxed", lambda self: self.relaxed_reads.clear())
    assert any(disagreement(Random(seed), steps=100) for seed in range(15))


def test_a_join_that_is_taken_for_known_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Joins, "_within", lambda *_: True)
    assert any(disagreement(Random(seed), steps=100) for seed in range(15))
