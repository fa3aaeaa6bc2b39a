"""The shadow of global memory against happens-before computed from the definition, on random programs of few agents."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import example, given, settings

from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.races.access import STRONG, Access
from pytest_nvfp4.sim.races.access_sets import AccessSets
from pytest_nvfp4.sim.races.clocks import Agent, Clocks
from pytest_nvfp4.sim.races.global_shadow import GlobalShadow
from pytest_nvfp4.sim.races.names import AgentInfo
from pytest_nvfp4.sim.races.touched import READ, WRITE, TouchedRegion, TouchedUnits
from tests.sim.races.happens_before import programs, racy_by_definition
from tests.sim.races.shadowed import WHO, racy_by_shadow

ADDS = [("access", agent, (0,), True, STRONG) for agent in range(3)]
MIDDLE = [
    *ADDS,
    ("release", 0, 0),
    ("release", 2, 1),
    ("acquire", 3, 0),
    ("acquire", 3, 1),
    ("access", 3, (0,), False, 0),
]


@settings(max_examples=60, deadline=None)
@given(programs)
@example(MIDDLE)
def test_the_first_race_is_the_one_of_the_definition(program):
    want, got = racy_by_definition(program), racy_by_shadow(program)
    assert (got is None) == (want is None), (want, got)
    if want is not None and got is not None:
        assert got[0] == want[0]
        assert got[1] <= want[1]
    assert racy_by_shadow(program, sets=1) == got, "sets that nothing has any more are given up, and no others"


def test_an_atomic_between_others_is_not_lost():
    assert racy_by_shadow(MIDDLE) == (7, {1})
    waits = [*MIDDLE[:-1], ("release", 1, 2), ("acquire", 3, 2), MIDDLE[-1]]
    assert racy_by_shadow(waits) is None


def test_a_set_is_no_larger_than_what_may_race():
    sets = AccessSets()
    number = 0
    for tick in range(1, 40):
        for agent in range(3):
            number = sets.joined(number, sets.number(Access(agent, tick, STRONG, 0, WHO)), lambda _: False)
    assert sorted(sets.access(one).agent for one in sets.members(number)) == [0, 1, 2]
    assert {sets.access(one).tick for one in sets.members(number)} == {39}
    for agent in range(3, 40):
        number = sets.joined(number, sets.number(Access(agent, 1, STRONG, 0, WHO)), lambda _: True)
    assert len(list(sets.members(number))) < 33


SIZE = 1000


def _touches(steps: list[tuple[bool, list[int], int]]) -> tuple[Region, TouchedUnits]:
    """Return a region, and how reads and writes (whether it writes, offsets, bytes at each) touch it."""
    agent = Agent(Clocks(0), AgentInfo("warp", "a warp"))
    memory = GlobalShadow(lambda _: None)
    kept = ctypes.create_string_buffer(SIZE)
    shadow = memory.shadow(Region("x", ctypes.addressof(kept), SIZE))
    for at, (writes, offsets, size) in enumerate(steps):
        access = Access(agent.number, agent.epoch(), 0, at, WHO)
        if writes:
            memory.write(shadow, np.array(offsets), size, access, agent.clock)
        else:
            memory.read(shadow, shadow.units(np.array(offsets), size), access, agent.clock)
    (touched,) = memory.touched()
    return shadow.region, touched


STEPS = [(True, [640], 16), (False, [700, 708], 4), (False, [997], 1), (True, [643], 2)]


@pytest.mark.parametrize("steps", [STEPS[:1], STEPS[:2], STEPS[:3], STEPS, STEPS[::-1], STEPS[2:]])
def test_what_is_touched_costs_what_lies_between_and_no_more(steps):
    region, units = _touches(steps)
    first, last = min(step[1][0] for step in steps), max(step[1][-1] + step[2] for step in steps)
    assert units.offset == first & -16
    assert units.kinds.size == (-(-last // 16) * 16 - units.offset) // units.unit
    whole = TouchedRegion(region, units, str)
    flags = np.zeros(SIZE, np.uint8)
    for writes, offsets, size in steps:
        for offset in offsets:
            flags[offset : offset + size] |= WRITE if writes else READ
    low, high = whole.low - region.start, whole.high - region.start
    assert (low, high) == (units.offset, min(SIZE, -(-last // 16) * 16))
    assert whole.bytes(whole.low, whole.high).tolist() == flags[low:high].tolist()


@pytest.mark.parametrize("one", [STEPS[:1], STEPS[1:2], STEPS[2:3]])
@pytest.mark.parametrize("other", [STEPS[:1], STEPS[1:2], STEPS[2:3], STEPS])
def test_what_two_processes_touch_is_joined(one, other):
    region, units = _touches(one)
    both = TouchedRegion(region, units, str)
    both.add(_touches(other)[1]._replace(start=region.start))
    _, together = _touches([*one, *other])
    want = TouchedRegion(region, together._replace(start=region.start), str)
    assert (both.low, both.high, both.kinds) == (want.low, want.high, want.kinds)
    assert both.bytes(both.low, both.high).tolist() == want.bytes(want.low, want.high).tolist()
    assert both.line(region.start + one[0][1][0]) != ""
