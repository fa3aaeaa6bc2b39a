"""What containers cost, by a clock of the test's own: nothing is counted twice, and nothing is forgotten."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.device.remote.base import Place
from pytest_nvfp4.device.remote.modal.cost import Meter, price


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock) -> Callable[[int], Meter]:
    return lambda containers: Meter("B200", containers, clock=clock)


def test_the_border_of_a_limit_is_exact(clock: Clock, meter: Callable[[int], Meter]) -> None:
    one = meter(1)
    one.sent("a")
    clock.now += 3600
    assert price("B200") == one.cost().usd == 6.25
    one.ended("a", place=Place(container="c1"), busy_s=3600.0)
    clock.now += 100
    assert one.cost().usd == 6.25


@pytest.mark.parametrize("known", [False, True])
def test_what_was_cancelled_or_lost_has_cost_its_time(clock: Clock, meter: Callable[[int], Meter], known: bool) -> None:
    one = meter(1)
    if known:
        one.sent("first")
        clock.now += 10
        one.ended("first", place=Place(container="c1"), busy_s=10.0)
    one.sent("a")
    one.sent("b")
    clock.now += 20
    before = one.cost().seconds
    one.ended("a")
    assert one.cost().seconds == before == 20 + 10 * known
    one.ended("b")
    assert one.cost().seconds == before, "it waited behind the other"
    one.sent("c")
    clock.now += 5
    one.ended("c", place=Place(container="c1"), busy_s=5.0)
    assert one.cost().seconds == before + 5


def test_where_a_failed_call_ran_is_counted_where_it_is_known(clock: Clock, meter: Callable[[int], Meter]) -> None:
    one = meter(1)
    one.sent("a")
    clock.now += 60
    one.ended("a", place=Place(container="c1"), busy_s=7.0)
    assert one.cost().seconds == 7, "it waited for a container before"


def test_waiting_for_a_container_costs_nothing_where_it_is_known_that_none_is_up(
    clock: Clock, meter: Callable[[int], Meter]
) -> None:
    one = meter(2)
    one.sent("a")
    clock.now += 900
    assert one.cost().seconds == 900, "as far as is known"
    one.none_up()
    clock.now += 1
    one.ended("a")
    assert one.cost().seconds == 1


def test_a_container_that_was_away_for_long_was_not_held_meanwhile(clock: Clock, meter: Callable[[int], Meter]) -> None:
    one = meter(1)
    one.sent("a")
    one.ended("a", place=Place(container="c1"), busy_s=0.0)
    clock.now += 500
    one.sent("b")
    clock.now += 4
    one.ended("b")
    assert one.cost().seconds == 4


def test_who_answers_says_nothing_of_what_another_runs(clock: Clock, meter: Callable[[int], Meter]) -> None:
    one = meter(2)
    one.sent("long")
    for _ in range(5):
        one.sent("short")
        clock.now += 10
        one.ended("short", place=Place(container="c1"), busy_s=10.0)
    assert one.cost().seconds == 100


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["sent", "lost", "done"]), st.integers(0, 9), st.integers(0, 5)), max_size=40
    ),
    containers=st.integers(1, 3),
)
def test_never_more_than_the_containers_could_cost_and_never_less_than_before_while_none_is_placed(
    steps: list[tuple[str, int, int]], containers: int
) -> None:
    clock = Clock()
    one, start, before = Meter("B200", containers, clock=clock), clock.now, 0.0
    for what, call, passed in steps:
        clock.now += passed
        if what == "sent":
            one.sent(f"{call}-{clock.now}")
        elif one._open:
            name = sorted(one._open)[call % len(one._open)]
            if what == "lost":
                one.ended(name)
            else:
                one.ended(name, place=Place(container=f"c{call % containers}"), busy_s=0.0)
        cost = one.cost().seconds
        assert cost <= containers * (clock.now - start) + 1e-6
        if what != "done":
            assert cost >= before - 1e-6
        before = cost
