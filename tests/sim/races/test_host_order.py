"""Work on streams: every way to order it is known, and each of its parts needed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.driver.streams import Extent
from tests.sim.races import host_model
from tests.sim.races.host_model import MAIN, SIZE, Host, by_definition, by_order
from tests.sim.races.host_programs import EDGES, PROGRAMS, freed

# ---- edges: a writes x, then b reads it --------------------------------------------------------------------------


@pytest.mark.parametrize("name", EDGES)
def test_each_edge_orders_and_each_part_of_it_is_needed(name):
    for edge, expected in zip(EDGES[name], ([], ["race"]), strict=True):
        host = Host()
        host.write(host.a, host.x)
        edge(host)
        host.read(host.b, host.x)
        assert host.kinds == expected


# ---- whole programs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("program", "change", "count"), PROGRAMS)
def test_programs(program, change, count):
    host = Host()
    program(host, **change)
    assert host.kinds == ["race"] * count, [finding.message for finding in host.order.findings]


def test_what_is_told():
    host = Host()
    host.write(host.a, host.x)
    host.read(MAIN, host.x + 8, 4)
    (finding,) = host.order.findings
    assert finding.where is not None
    assert finding.where.source is not None
    assert finding.where.source.file == host_model.__file__
    assert re.match(r"a read at host_model.py:\d+, called at test_host_order.py:\d+ on the default", finding.message)
    assert "on the default stream reads x at byte 8 while a write at host_model.py:" in finding.message
    assert "nothing makes the default stream wait for stream 1 (made at host_model.py:" in finding.message
    assert "wait_stream" in finding.hint


def test_two_pieces_of_work_at_one_line_are_told_by_what_they_are():
    host = Host()
    for what, stream, how in (("a write", host.a, "writes"), ("a read", MAIN, "reads")):
        host.streams.work(what, stream=stream, **{how: [Extent(host.x, 4)]})
    (finding,) = host.order.findings
    assert re.search(r"after a write \([^)]*\) and before a read \([^)]*\): wait_stream", finding.hint)


def test_work_writes_bytes_and_an_allocation_does_not():
    host = Host()
    region = host.memory.find(host.x)
    assert region is not None
    host.streams.freed(host.x, pooled=True)
    region.track_writes()
    host.streams.allocated(host.x, SIZE, stream=host.a)
    host.read(host.a, host.x)
    assert region.initialised is not None
    assert not region.initialised.any()
    host.write(host.a, host.x + 8, SIZE - 8)
    assert region.initialised.tolist() == [False] * 8 + [True] * (SIZE - 8)
    host.write(host.a, host.x)
    assert region.initialised is None


def test_a_defect_in_a_loop_is_told_once():
    host = Host()
    for _ in range(5):
        host.write(host.a, host.x)
        host.read(MAIN, host.x)
    assert len(host.order.findings) == 2, "a read too early, and an overwriting too early"


@pytest.mark.parametrize("waits", [False, True])
def test_one_wait_that_is_missing_is_told_once_however_many_tensors_it_would_order(waits):
    host = Host()
    for tensor in (host.x, host.y, host.z):
        host.write(MAIN, tensor)
    if waits:
        host.after(host.a, MAIN)
    both = [Extent(host.x, SIZE), Extent(host.y, SIZE)]
    host.streams.work("a kernel", stream=host.a, reads=both, writes=[Extent(host.z, SIZE)])
    assert host.kinds == ([] if waits else ["race"])
    assert waits or "writes z" in host.order.findings[0].message, "what was written last: a wait for it orders all"


# ---- who calls ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forks", "joins", "said"),
    [(True, True, []), (False, True, ["before the call"]), (True, False, ["after the call"]),
     (False, False, ["before the call", "after the call"])],
)  # fmt: skip
def test_the_caller_works_on_its_own_stream(forks, joins, said):
    host = Host()
    results = [Extent(host.y, SIZE)]
    for _ in range(2):
        with host.order.called([Extent(host.x, SIZE), Extent(host.y, SIZE)], results):
            if forks:
                host.after(host.a, MAIN)
            host.read(host.a, host.x)
            host.write(host.a, host.y)
            if joins:
                host.after(MAIN, host.a)
    assert len(host.order.findings) == len(said), "once, not once a call"
    for finding, text in zip(host.order.findings, said, strict=True):
        assert f"the caller ({text})" in finding.message


def test_the_stream_of_the_caller_is_the_one_that_was_current_before():
    host = Host()
    with host.order.called([], [Extent(host.x, SIZE)]):
        host.streams.current = host.a
        host.write(host.a, host.x)
    assert host.kinds == ["race"]


def test_what_is_returned_is_read_too():
    host = Host()
    results: list[Extent] = []
    with host.order.called([], results):
        host.write(host.a, host.z)
        results.append(Extent(host.z, SIZE))
    assert host.kinds == ["race"]


# ---- memory that goes back to its pool ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "kinds"),
    [({}, ["race-warning"]), ({"lends": True}, []), ({"joins": True}, []), ({"size": 1024}, []), ({"on": 0x5C01}, [])],
)
def test_memory_that_another_stream_still_uses_goes_back_to_its_pool(how, kinds):
    host = Host()
    freed(host, **how)
    assert host.kinds == kinds


def test_what_is_freed_in_the_middle_of_anything_waits():
    host = Host()
    find = host.order._find

    def collecting(address: int) -> object:
        host.streams.freed(host.z, pooled=True)
        return find(address)

    host.order._find = collecting  # type: ignore[method-assign]
    host.write(host.a, host.x)
    host.write(host.a, host.y)
    host.order._find = find  # type: ignore[method-assign]
    assert host.order.block(host.z) is None
    assert host.order.block(host.x) == Extent(host.x, SIZE)


def test_work_that_no_later_work_can_race_with_is_dropped():
    host = Host()
    for _ in range(50):
        host.write(host.a, host.x)
        host.read(host.a, host.x, 8)
    block = host.order._blocks[host.x]
    assert len(block.uses) <= 2
    host.streams.synchronize_device()
    host.read(host.b, host.x, 4)
    assert len(block.uses) == 1
    assert host.kinds == []


# ---- against the definition --------------------------------------------------------------------------------------

STREAMS = st.sampled_from(["main", "a", "b", "blocking"])
STEPS = st.one_of(
    st.tuples(st.just("work"), STREAMS, st.integers(0, 6), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("work"), STREAMS, st.integers(0, 6), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("record"), STREAMS, st.integers(0, 1)),
    st.tuples(st.just("wait"), STREAMS, st.integers(0, 1)),
    st.tuples(st.just("synchronize"), STREAMS),
    st.tuples(st.just("happened"), st.integers(0, 1)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, min_size=2, max_size=25))
def test_the_first_race_is_the_one_of_the_definition(program):
    assert by_order(program) == by_definition(program)
