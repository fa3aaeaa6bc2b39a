"""Clocks, parts and shadows against happens-before computed from the definition: reachability in the graph of events.

Random programs of a few agents: accesses to random bytes, releases into and acquires from random objects (the narrow
ones release no writes), proxy fences.
The detector and the graph must agree on the first access that races, and on whether anything does.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.races.access import ASYNC, STRONG
from pytest_nvfp4.sim.races.partition import Partition
from tests.sim.races.happens_before import SIZE, programs, racy_by_clocks, racy_by_definition, units


@settings(max_examples=250, deadline=None)
@given(programs)
def test_the_first_race_is_the_one_of_the_definition(program):
    want, got = racy_by_definition(program), racy_by_clocks(program)
    if want is None:
        assert got is None
    elif got is None:
        raise AssertionError((program, want))
    else:
        assert got[0] == want[0]
        assert got[1] <= want[1]


@settings(max_examples=150, deadline=None)
@given(st.lists(units, min_size=1, max_size=25))
def test_parts_are_the_coarsest_division(footprints):
    partition = Partition(SIZE)
    made = [partition.footprint(one, np.array(one)) for one in footprints]
    of = partition.part_of.tolist()
    for units_, footprint in zip(footprints, made, strict=True):
        assert sorted(footprint.parts) == sorted({of[u] for u in units_})
        assert {u for u in range(SIZE) if of[u] in footprint.parts} == set(units_)
    signature = [tuple(u in one for one in footprints) for u in range(SIZE)]
    assert len(set(of)) == len(set(signature))


def test_an_oracle_that_never_finds_anything_would_fail():
    program = [("access", 0, (1, 2), True, 0), ("access", 1, (2, 3), False, 0)]
    assert racy_by_definition(program) == (1, {0}) == racy_by_clocks(program)
    ordered = [program[0], ("release", 0, 0), ("acquire", 1, 0), program[1]]
    assert racy_by_definition(ordered) is None is racy_by_clocks(ordered)
    narrow = [program[0], ("narrow", 0, 0), ("acquire", 1, 0), program[1]]
    assert racy_by_definition(narrow) == (3, {0}) == racy_by_clocks(narrow)
    freed = [("access", 0, (2,), False, 0), ("narrow", 0, 0), ("acquire", 1, 0), ("access", 1, (2,), True, 0)]
    assert racy_by_definition(freed) is None is racy_by_clocks(freed)
    proxy = [program[0], ("release", 0, 0), ("acquire", 1, 0), ("access", 1, (2,), False, ASYNC)]
    assert racy_by_definition(proxy) == (3, {0}) == racy_by_clocks(proxy)
    assert racy_by_clocks([proxy[0], ("fence", 0), *proxy[1:]]) is None


def test_a_weak_read_races_with_a_strong_write_behind_a_strong_read():
    reads = [("access", 0, (1,), False, 0), ("access", 1, (1,), False, 0), ("access", 1, (1,), False, STRONG)]
    program = [*reads, ("access", 0, (1,), True, STRONG)]
    assert racy_by_definition(program) == (3, {1}) == racy_by_clocks(program)
    assert racy_by_clocks([*reads[:1], *reads[2:], program[3]]) is None
    alone = [*reads[1:], ("access", 0, (1,), True, STRONG)]
    assert racy_by_definition(alone) == (2, {0}) == racy_by_clocks(alone)
