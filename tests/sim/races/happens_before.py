"""Happens-before by its definition, reachability in the graph of events, and by the detector's clocks and shadow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pytest_nvfp4.sim.races.access import ASYNC, STRONG, Access
from pytest_nvfp4.sim.races.clocks import Agent, Clocks
from pytest_nvfp4.sim.races.names import AgentInfo
from pytest_nvfp4.sim.races.partition import Partition
from pytest_nvfp4.sim.races.shadow import Shadow

SIZE = 24
AGENTS = 4
OBJECTS = 3
units = st.one_of(
    st.tuples(st.integers(0, SIZE - 1), st.integers(1, 8)).map(lambda p: tuple(range(p[0], min(SIZE, p[0] + p[1])))),
    st.sets(st.integers(0, SIZE - 1), min_size=1, max_size=6).map(lambda s: tuple(sorted(s))),
)
accesses = st.tuples(
    st.just("access"), st.integers(0, AGENTS - 1), units, st.booleans(), st.sampled_from([0, ASYNC, STRONG])
)
edges = st.tuples(
    st.sampled_from(["release", "acquire", "narrow"]), st.integers(0, AGENTS - 1), st.integers(0, OBJECTS - 1)
)
fences = st.tuples(st.just("fence"), st.integers(0, AGENTS - 1))
programs = st.lists(st.one_of(accesses, accesses, edges, edges, fences), min_size=2, max_size=40)


@dataclass
class Graph:
    """Events as nodes. All edges carry what is visible to the async proxy; narrow ones carry no writes."""

    before: list[set[int]] = field(default_factory=list)
    """By event, all events that were executed before it, itself included."""
    written: list[set[int]] = field(default_factory=list)
    """By event, those of them from which a path without a narrow edge leads to it."""
    visible: list[set[int]] = field(default_factory=list)
    """By event, those of them behind which, on some path to it, a proxy fence lies."""

    def add(self, preceding: list[int], narrow: list[int], *, fence: bool = False) -> int:
        index = len(self.before)
        self.written.append({index}.union(*(self.written[p] for p in preceding)))
        preceding = preceding + narrow
        before = {index}.union(*(self.before[p] for p in preceding))
        visible: set[int] = set().union(*(self.visible[p] for p in preceding))
        if fence:
            visible |= before - {index}
        self.before.append(before)
        self.visible.append(visible)
        return index


def racy_by_definition(program: Sequence[tuple[Any, ...]]) -> tuple[int, set[int]] | None:
    """Return the index of the first access that races, and of those that it races with; None for no race."""
    graph = Graph()
    last: dict[int, int] = {}
    released: dict[int, list[int]] = {}
    narrowed: dict[int, list[int]] = {}
    seen: list[tuple[int, int, tuple[int, ...], bool, int]] = []
    for index, step in enumerate(program):
        kind, agent = step[0], step[1]
        preceding = [last[agent]] if agent in last else []
        narrow: list[int] = []
        if kind == "acquire":
            preceding += released.get(step[2], [])
            narrow = narrowed.get(step[2], [])
        event = graph.add(preceding, narrow, fence=kind == "fence")
        last[agent] = event
        if kind == "narrow":
            narrowed.setdefault(step[2], []).append(event)
        if kind == "release":
            released.setdefault(step[2], []).append(event)
        if kind != "access":
            continue
        _, _, touched, writes, flags = step
        bad = set()
        for other, at, bytes_, wrote, theirs in seen:
            if not (writes or wrote) or not set(touched) & set(bytes_) or flags & theirs & STRONG:
                continue
            needs_fence = flags & ASYNC and not theirs & ASYNC and wrote
            ordered = (graph.written if wrote else graph.before)[event]
            if other not in ordered or (needs_fence and other not in graph.visible[event]):
                bad.add(at)
        if bad:
            return index, bad
        seen.append((event, index, touched, writes, flags))
    return None


def racy_by_clocks(program: Sequence[tuple[Any, ...]]) -> tuple[int, set[int]] | None:
    """Return the same by the detector's clocks and shadow."""
    clocks = Clocks(0)
    agents = [Agent(clocks, AgentInfo("warp", f"agent {i}")) for i in range(AGENTS)]
    objects = [clocks.clock() for _ in range(OBJECTS)]
    found: list[tuple[int, int]] = []
    partition = Partition(SIZE)
    shadow = Shadow(partition, lambda pair: found.append((pair.old.at, pair.new.at)), clocks=clocks)
    for index, step in enumerate(program):
        agent = agents[step[1]]
        if step[0] == "release":
            agent.release(objects[step[2]])
        elif step[0] == "narrow":
            objects[step[2]].join_performed(agent.clock, clocks.generic)
            agent.advance()
        elif step[0] == "acquire":
            agent.acquire(objects[step[2]])
        elif step[0] == "fence":
            agent.fence_proxy(everywhere=True)
        else:
            _, _, touched, writes, flags = step
            footprint = partition.find(touched) or partition.footprint(touched, np.array(touched))
            access = Access(agent.number, agent.epoch(), flags, index, None)  # type: ignore[arg-type]
            (shadow.write if writes else shadow.read)(footprint.parts, access, agent.clock.ticks)
            if found:
                return index, {old for old, _ in found}
    return None
