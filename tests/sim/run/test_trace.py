"""Timelines: what is in them, that they can be read, and that nothing is traced unless it is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.asynchronous import Eager, Lazy, Random
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.trace import Trace, unit_of
from tests.sim.marked import region
from tests.sim.run.trace_events import check_trace

from ..ptx_case import Ran, run_ptx

HANDSHAKE = """
mov.u32 %r1, %tid.x;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READY;
mbarrier.init.shared.b64 [smem], 1;
READY:
bar.sync 0;
setp.lt.u32 %p2, %r1, 32;
@%p2 bra WAIT;
setp.ne.u32 %p3, %r1, 32;
@%p3 bra DONE;
mbarrier.arrive.expect_tx.shared.b64 _, [smem], 64;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [smem+64], [%rd100], 64, [smem];
bra DONE;
WAIT:
mbarrier.try_wait.parity.shared.b64 %p4, [smem], 0;
@!%p4 bra WAIT;
DONE:
"""
"""Warp 1 copies 64 bytes that warp 0 waits for."""


def traced(body: str = HANDSHAKE, *, ctas: int = 4, limit: int = 400_000, **how: Any) -> tuple[Trace, Ran]:
    machine = how.pop("machine", None) or Machine(asynchronous=how.pop("asynchronous", None))
    trace = Trace(ctas=ctas, limit=limit)
    trace.attach(machine)
    buffers = {"a": np.arange(64, dtype=np.uint8)}
    try:
        ran = run_ptx(body, buffers=buffers, block=(64, 1, 1), shared=256, machine=machine, prepare=trace.begin, **how)
    finally:
        trace.end()
    return trace, ran


@pytest.mark.parametrize("schedule", [Eager, Lazy])
def test_warps_copies_and_barriers_of_a_handshake(schedule: type[Eager | Lazy]) -> None:
    trace, ran = traced(asynchronous=schedule())
    tracks = check_trace(trace.to_json())
    assert {name for _, name in tracks} == {"warp 0", "warp 1", "bulk loads", "mbarrier at byte 0", "barrier 0"}
    (waits,) = {pid for pid, _ in tracks}
    slices = [event["name"] for event in tracks[waits, "warp 0"] if event["ph"] == "B"]
    assert slices[0] == "run"
    assert "wait for barrier 0" in slices
    assert slices[-1] == "run"
    copy = tracks[waits, "bulk loads"][0]
    assert copy["name"] == "cp.async.bulk.shared::cluster"
    assert copy["args"]["bytes"] == 64
    assert copy["args"]["warp"] == 1
    assert copy["args"]["to"] == "byte 64 of CTA rank 0"
    assert copy["args"]["signals"] == "mbarrier at byte 0 of CTA rank 0"
    assert [e["name"] for e in tracks[waits, "mbarrier at byte 0"] if e["ph"] == "B"] == ["phase 0", "phase 1"]
    ends = max(event["ts"] for events in tracks.values() for event in events)
    assert ends == ran.grid.counters["instructions"], "a step is a warp-instruction of the CTA"


def test_a_lazy_copy_is_under_way_while_the_warp_waits() -> None:
    trace, _ = traced(asynchronous=Lazy())
    tracks = {name: events for (_, name), events in check_trace(trace.to_json()).items()}
    begin, end = tracks["bulk loads"]
    wait = next(e for e in tracks["warp 0"] if e.get("name", "").startswith("wait for mbarrier at byte 0"))
    assert (
        "1 of 1 arrivals pending" in wait["args"]["waits for"] or "waits for 64 more bytes" in wait["args"]["waits for"]
    )
    assert wait["args"]["at"].endswith("(mbarrier.try_wait.parity.shared.b64)")
    assert begin["ts"] < end["ts"]


def test_only_the_first_ctas_are_kept() -> None:
    trace, _ = traced(grid=(5, 1, 1), ctas=2)
    data = trace.to_json()
    assert len({pid for pid, _ in check_trace(data)}) == 2
    processes = [e["args"]["name"] for e in data["traceEvents"] if e.get("name") == "process_name"]
    assert [name.partition(", ")[2] for name in processes] == [
        "CTA (0, 0, 0) (steps, not time)",
        "CTA (1, 0, 0) (steps, not time)",
    ]


def test_what_is_too_much_is_counted() -> None:
    trace, _ = traced(limit=5)
    data = trace.to_json()
    check_trace(data)
    assert data["otherData"]["events_left_out"] > 0
    assert len([e for e in data["traceEvents"] if e["ph"] in "Bb"]) <= 5


def test_a_kernel_that_is_stopped_leaves_its_timeline() -> None:
    machine = Machine()
    trace = Trace()
    trace.attach(machine)
    body = HANDSHAKE.replace(", 64;\ncp", ", 128;\ncp")
    how = {"block": (64, 1, 1), "shared": 256, "machine": machine, "prepare": trace.begin}
    with pytest.raises(Fault, match="no warp can continue"):
        run_ptx(body, buffers={"a": np.zeros(64, np.uint8)}, **how)  # type: ignore[arg-type]
    trace.end()
    tracks = {name: events for (_, name), events in check_trace(trace.to_json()).items()}
    assert [e["name"] for e in tracks["warp 0"] if e["ph"] == "B"][-1].startswith("wait for mbarrier at byte 0")


def test_two_launches_are_two_sets_of_processes() -> None:
    machine = Machine()
    trace = Trace()
    trace.attach(machine)
    for _ in range(2):
        run_ptx("bar.sync 0;", block=(64, 1, 1), machine=machine, prepare=trace.begin)
        trace.end()
    data = trace.to_json()
    assert len({pid for pid, _ in check_trace(data)}) == 2
    assert len(data["otherData"]["launches"]) == 2


def test_counters_and_results_are_those_of_an_untraced_run() -> None:
    plain = run_ptx(HANDSHAKE, buffers={"a": np.arange(64, dtype=np.uint8)}, block=(64, 1, 1), shared=256)
    _, ran = traced()
    assert ran.grid.counters == plain.grid.counters


@pytest.mark.parametrize("seed", [1, 2])
def test_a_schedule_stays_what_it_is(seed: int) -> None:
    plain = run_ptx(
        HANDSHAKE, buffers={"a": np.arange(64, dtype=np.uint8)}, block=(64, 1, 1), shared=256, asynchronous=Random(seed)
    )
    machine = Machine(asynchronous=Random(seed))
    trace, ran = traced(machine=machine)
    check_trace(trace.to_json())
    assert ran.grid.counters == plain.grid.counters
    own = {name for kind in Random.__mro__[:-1] for name in vars(kind) if not name.startswith("_")}
    for name in own - {"submit"}:
        assert getattr(machine.asynchronous, name) == getattr(machine.asynchronous._inner, name)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("opcode", "unit"),
    [
        ("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes", "TMA loads"),
        ("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group", "TMA stores"),
        ("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes", "bulk loads"),
        ("cp.async.bulk.global.shared::cta.bulk_group", "bulk stores"),
        ("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add", "TMA reductions"),
        ("tcgen05.mma.kind::mxf4nvf4", "tcgen05.mma"),
        ("tcgen05.cp.32x128b.warpx4", "tcgen05.cp"),
        ("tcgen05.commit.cta_group::1", "tcgen05.commit"),
        ("wgmma.mma_async.sync.aligned.m64n64k16", "wgmma"),
        ("cp.async.ca.shared.global", "cp.async"),
    ],
)
def test_units(opcode: str, unit: str) -> None:
    assert unit_of(opcode) == unit


def test_regions_have_a_track_of_their_own_and_slices_that_nest() -> None:
    body = region("begin", "a") + region("begin", "b") + region("end", "a") + region("mark", "m") + region("end", "b")
    trace, _ = traced(body)
    data = trace.to_json()["traceEvents"]
    (track,) = {event["tid"] for event in data if event["ph"] == "M" and event["args"].get("name") == "warp 0 regions"}
    slices = [
        (event["ph"], event.get("name", "")) for event in data if event.get("tid") == track and event["ph"] != "M"
    ]
    # a ends inside b, whose slice is cut in two.
    begun = [("B", "a"), ("B", "b"), ("E", ""), ("E", ""), ("B", "b"), ("i", "m"), ("E", "")]
    assert slices == begun
    plain = traced("mov.b32 %r1, 0;")[0].to_json()["traceEvents"]
    assert not [event for event in plain if event["ph"] == "M" and "regions" in str(event["args"].get("name"))]


@pytest.mark.parametrize("mark", ["end", "mark"])
def test_an_end_without_a_begin_makes_no_slice(mark: str) -> None:
    events = traced(region(mark, "a"))[0].to_json()["traceEvents"]
    assert not [event for event in events if event["ph"] in "BE" and event.get("tid", 0) >= 40 and event["tid"] < 100]
