"""The shadow of global memory against happens-before computed from the definition, on random programs of few agents."""

from __future__ import annotations

from hypothesis import example, given, settings

from pytest_nvfp4.sim.races.access import STRONG, Access
from pytest_nvfp4.sim.races.access_sets import AccessSets
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
