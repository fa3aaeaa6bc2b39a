"""What containers cost, by a clock of the test's own: nothing is counted twice, and nothing is forgotten."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.device.remote.base import Place, RemoteOptions
from pytest_nvfp4.device.remote.modal.cost import NOTE, Meter, price, usd_per_hour
from pytest_nvfp4.device.remote.modal.settings import ModalSettings


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
    return lambda containers: Meter(price("B200"), containers, clock=clock)


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
    one, start, before = Meter(price("B200"), containers, clock=clock), clock.now, 0.0
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


def test_an_idle_container_costs_money_until_it_ends(clock: Clock) -> None:
    one = Meter(3600.0, 2, idle_s=20.0, clock=clock)
    one.sent("a")
    clock.now += 10
    one.ended("a", place=Place(container="c1"), busy_s=10.0)
    clock.now += 5
    assert one.cost().seconds == 15
    clock.now += 500
    assert one.cost().seconds == 30, "it has ended meanwhile"
    one.sent("b")
    clock.now += 7
    one.ended("b", place=Place(container="c2"), busy_s=7.0)
    clock.now += 1
    assert one.cost().seconds == 30 + 8


@pytest.mark.parametrize(("containers_end", "seconds"), [(True, 12), (False, 30)])
def test_after_a_session_only_containers_that_stay_up_cost_more(
    clock: Clock, containers_end: bool, seconds: int
) -> None:
    one = Meter(3600.0, 1, idle_s=20.0, clock=clock)
    one.sent("a")
    clock.now += 10
    one.ended("a", place=Place(container="c1"), busy_s=10.0)
    clock.now += 2
    one.stopped(containers_end=containers_end)
    clock.now += 100
    assert one.cost().seconds == seconds


def test_what_containers_report_counts_only_within_the_time_that_passed(clock: Clock) -> None:
    one = Meter(3600.0, 1, clock=clock)
    for number in range(5):
        one.sent(f"call-{number}")
        clock.now += 2
        lying = Place(container=f"c{number}", startup_s=1e6)
        one.ended(f"call-{number}", place=lying, busy_s=1e6)
    assert one.cost().seconds == 10


@pytest.mark.parametrize(
    ("gpu", "given", "gpu_usd"), [("B200", None, 6.25), ("b200!", None, 6.25), ("B200", 4.0, 4.0), ("A100", 2.5, 2.5)]
)
def test_the_price_of_a_container_is_that_of_gpu_cpus_and_memory(gpu: str, given: float | None, gpu_usd: float) -> None:
    options = RemoteOptions(gpu=gpu, gpu_price=given)
    settings = ModalSettings(gpu=gpu, cpus=4.0, memory_gib=32)
    assert usd_per_hour(options, settings) == pytest.approx(gpu_usd + 4 * 0.04716 + 32 * 0.007992)
    assert usd_per_hour(RemoteOptions(gpu="A100"), settings) is None
    assert "assumed prices of CPUs ($0.047 a core and hour) and memory ($0.008 a GiB and hour)" in NOTE
