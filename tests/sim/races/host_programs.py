"""Programs of streams, events and graphs, with their findings."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from pytest_nvfp4.driver.streams import PER_THREAD, Extent
from pytest_nvfp4.host.graphs import Graph, LaunchQueue
from tests.sim.races.host_model import MAIN, SIZE, Host

Edge = Callable[[Host], None]


def nothing(_: Host) -> None:
    pass


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
