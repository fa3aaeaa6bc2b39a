"""Work on streams: every way to order it is known, and each of its parts needed."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.driver.streams import PER_THREAD, Extent
from pytest_nvfp4.host.graphs import Graph, LaunchQueue
from pytest_nvfp4.sim.races.host_order import _short
from tests.sim.races import host_model
from tests.sim.races.host_model import MAIN, SIZE, Host, by_definition, by_order

Edge = Callable[[Host], None]


def nothing(_: Host) -> None:
    pass


# ---- edges: a writes x, then b reads it --------------------------------------------------------------------------

EDGES: dict[str, tuple[Edge, Edge]] = {
    # name: between the write and the read; the same with its point left out
    "wait_stream": (lambda h: h.after(h.b, h.a), lambda h: h.after(h.a, h.b)),
    "event": (
        lambda h: (h.streams.record(h.e, h.a), h.streams.wait(h.e, h.b)),
        lambda h: (h.streams.record(h.e, h.a), h.streams.wait(h.f, h.b)),
    ),
    "an event of the other stream": (
        lambda h: (h.streams.record(h.e, h.a), h.streams.wait(h.e, h.b)),
        lambda h: (h.streams.record(h.e, h.b), h.streams.wait(h.e, h.b)),
    ),
    "an event waited for by the wrong stream": (
        lambda h: (h.streams.record(h.e, h.a), h.streams.wait(h.e, h.b)),
        lambda h: (h.streams.record(h.e, h.a), h.streams.wait(h.e, MAIN)),
    ),
    "an event that is recorded again": (
        lambda h: (h.streams.record(h.e, h.b), h.streams.record(h.e, h.a), h.streams.wait(h.e, h.b)),
        lambda h: (h.streams.record(h.e, h.a), h.streams.record(h.e, h.b), h.streams.wait(h.e, h.b)),
    ),
    "stream.synchronize": (lambda h: h.streams.synchronize(h.a), lambda h: h.streams.synchronize(h.b)),
    "event.synchronize": (
        lambda h: (h.streams.record(h.e, h.a), h.streams.synchronize_event(h.e)),
        lambda h: h.streams.synchronize_event(h.e),
    ),
    "torch.cuda.synchronize": (lambda h: h.streams.synchronize_device(), nothing),
    "by way of a third": (
        lambda h: (h.after(MAIN, h.a), h.after(h.b, MAIN)),
        lambda h: (h.after(h.b, MAIN), h.after(MAIN, h.a)),
    ),
    "cudaFree": (lambda h: h.streams.freed(h.z), lambda h: h.streams.freed(h.z, pooled=True)),
    "item": (
        lambda h: h.streams.work("item", stream=h.a, reads=[Extent(h.z, 4)], waits=True),
        lambda h: h.streams.work("sum", stream=h.a, reads=[Extent(h.z, 4)]),
    ),
    "a copy to the host": (
        lambda h: h.streams.copied("cudaMemcpyAsync", 8, h.z, 4, stream=h.a, waits=False),
        lambda h: h.streams.copied("cudaMemcpyAsync", h.y, h.z, 4, stream=h.a, waits=False),
    ),
    "a copy that waits": (
        lambda h: h.streams.copied("cudaMemcpy", h.z, 8, 4, stream=h.a, waits=True),
        lambda h: h.streams.copied("cudaMemcpyAsync", h.z, 8, 4, stream=h.a, waits=False),
    ),
    "a graph behind": (lambda h: replayed(h, h.a, stays=False), lambda h: replayed(h, h.a, stays=True)),
}  # fmt: skip


def replayed(host: Host, before: int, *, stays: bool) -> None:
    """A graph is launched on b, or captured only, that does something; with an edge to it from a stream before."""
    graph = Graph(LaunchQueue(lambda _launch: None, host.streams))
    if not stays:
        host.after(host.b, before)
    graph.capture_begin()
    host.after(host.b, before)
    graph.capture_end()
    host.streams.current = host.b
    if not stays:
        graph.replay()
    host.streams.current = MAIN


@pytest.mark.parametrize("name", EDGES)
def test_each_edge_orders_and_each_part_of_it_is_needed(name):
    for edge, expected in zip(EDGES[name], ([], ["race"]), strict=True):
        host = Host()
        host.write(host.a, host.x)
        edge(host)
        host.read(host.b, host.x)
        assert host.kinds == expected


# ---- whole programs ----------------------------------------------------------------------------------------------


def fork_join(h: Host, *, fork: bool = True, join: bool = True) -> None:
    h.write(MAIN, h.x)
    for side, target in ((h.a, h.y), (h.b, h.z)):
        if fork or side == h.a:
            h.after(side, MAIN)
        h.read(side, h.x)
        h.write(side, target)
    for side in (h.a, h.b):
        if join or side == h.a:
            h.after(MAIN, side)
    h.read(MAIN, h.y)
    h.read(MAIN, h.z)


def double_buffered(h: Host, *, full: bool = True, empty: bool = True) -> None:
    """Stream a fills one of two buffers while b reads the other."""
    filled = [h.streams.new_event() for _ in range(2)]
    drained = [h.streams.new_event() for _ in range(2)]
    for step in range(5):
        slot, buffer = step % 2, (h.x, h.y)[step % 2]
        if empty:
            h.streams.wait(drained[slot], h.a)
        h.write(h.a, buffer)
        h.streams.record(filled[slot], h.a)
        if full:
            h.streams.wait(filled[slot], h.b)
        h.read(h.b, buffer)
        h.streams.record(drained[slot], h.b)


def ping_pong(h: Host, *, back: bool = True) -> None:
    for _ in range(4):
        h.after(h.a, h.b)
        h.write(h.a, h.x)
        if back:
            h.after(h.b, h.a)
        h.write(h.b, h.x)


def own_buffers(h: Host, *, shared: bool = False) -> None:
    for _ in range(3):
        h.write(h.a, h.x)
        h.write(h.b, h.x if shared else h.y)


def halves(h: Host, *, overlap: int = 0) -> None:
    h.write(h.a, h.x, 32 + overlap)
    h.write(h.b, h.x + 32, 32)


def columns(h: Host, *, shift: int = 4) -> None:
    """Two streams write columns of one matrix, which lie in between each other."""
    for stream, column in ((h.a, 0), (h.b, shift)):
        h.streams.work("columns", stream=stream, writes=[Extent(h.x + column, 4, (8,), (8,))])


def legacy(h: Host, *, blocks: bool = True) -> None:
    """The legacy default stream and a stream that blocks wait for each other."""
    other = h.blocking if blocks else h.a
    h.write(other, h.x)
    h.write(1, h.x)
    h.write(other, h.x)


def of_threads(h: Host, *, one: bool = True) -> None:
    """The default stream of a thread is its own, and waits for the legacy one."""
    h.write(MAIN, h.x)
    h.write(PER_THREAD, h.x)
    if one:
        h.write(PER_THREAD, h.x)
    else:
        thread = threading.Thread(target=h.write, args=(PER_THREAD, h.x))
        thread.start()
        thread.join()


def pool(h: Host, *, ordered: bool = True) -> None:
    """cudaMallocAsync and cudaFreeAsync are in the order of their stream."""
    address = ctypes.addressof(h.kept[0])  # type: ignore[arg-type]
    h.streams.freed(address, pooled=True)
    h.streams.allocated(address, SIZE, stream=h.a)
    h.after(h.b, h.a)
    h.write(h.b, address)
    if ordered:
        h.after(h.a, h.b)
    h.streams.freed(address, stream=h.a)


def captured(h: Host, *, joined: bool = True, forked: bool = True) -> None:
    """A graph of two branches is launched on a, twice, and then read there."""
    graph = Graph(LaunchQueue(lambda _launch: None, h.streams))
    h.write(h.a, h.x)
    graph.capture_begin()
    h.write(MAIN, h.y)
    if forked:
        h.after(h.b, MAIN)
    h.read(h.b, h.y)
    h.write(h.b, h.x)
    if joined:
        h.after(MAIN, h.b)
    h.write(MAIN, h.y)
    graph.capture_end()
    h.streams.current = h.a
    graph.replay()
    graph.replay()
    h.streams.current = MAIN
    h.read(h.a, h.x)
    h.read(h.a, h.y)


PROGRAMS: list[tuple[Callable[..., None], dict[str, object], int]] = [
    # what runs, what is changed, how many findings
    (fork_join, {}, 0),
    (fork_join, {"fork": False}, 1),
    (fork_join, {"join": False}, 1),
    (fork_join, {"fork": False, "join": False}, 2),
    (double_buffered, {}, 0),
    (double_buffered, {"full": False}, 1),
    (double_buffered, {"empty": False}, 1),
    (ping_pong, {}, 0),
    (ping_pong, {"back": False}, 1),
    (own_buffers, {}, 0),
    (own_buffers, {"shared": True}, 2),
    (halves, {}, 0),
    (halves, {"overlap": 1}, 1),
    (columns, {}, 0),
    (columns, {"shift": 3}, 1),
    (columns, {"shift": 8}, 1),
    (legacy, {}, 0),
    (legacy, {"blocks": False}, 2),
    (of_threads, {}, 0),
    (of_threads, {"one": False}, 1),
    (pool, {}, 0),
    (pool, {"ordered": False}, 1),
    (captured, {}, 0),
    (captured, {"joined": False}, 1),
    (captured, {"forked": False}, 1),
]


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


def freed(h: Host, *, lends: bool = False, joins: bool = False, size: int = SIZE, on: int = MAIN) -> None:
    mine = h.tensor("mine")
    h.after(h.a, MAIN)
    h.write(h.a, mine)
    if lends:
        h.streams.record_stream(mine, h.a)
    h.streams.freed(mine, pooled=True)
    if joins:
        h.after(MAIN, h.a)
    h.streams.current = on
    h.tensor("new", size)
    h.streams.current = MAIN


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


@pytest.mark.parametrize(
    ("symbol", "name"),
    [("kernel_cutlass_scale_tensorptrf32gmemo641_0", "scale"),
     ("kernel_cutlass_kernel_kernelTile_object_at___0", "kernel"),
     ("kernel_cutlass_group_gemm_kernel_TiledMMA_ThrLayoutVMNK1", "group_gemm_kernel"), ("mine", "mine"),
     ("x" * 80, "x" * 57 + "...")],
)  # fmt: skip
def test_a_kernel_is_called_what_the_user_calls_it(symbol, name):
    assert _short(symbol) == name
