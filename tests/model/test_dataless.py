"""Recordings without data: equal to those with data, and refused where what happens may depend on data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from pytest_nvfp4.model.recorder import Recorder
from pytest_nvfp4.model.recorder_dataless import DatalessRecorder
from pytest_nvfp4.model.recording import Recording
from pytest_nvfp4.sim.fault import NEEDS_DATA, Fault
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.machine import Machine
from tests.model.recorded_kernels import PIPELINE, content
from tests.sim.ptx_case import run_ptx
from tests.sim.tma.changed_maps import ACQUIRED, run_changed
from tests.sim.tma.kernels import DATA as BOX
from tests.sim.tma.kernels import expect, first, prologue, run_tensor, wait
from tests.sim.tma.load_case import F16, load, simple

LOOP = """
mov.u32 %r20, 0;
again:
cvt.rn.f32.u32 %f1, %r20;
ex2.approx.ftz.f32 %f2, %f1;
add.u32 %r20, %r20, 1;
setp.lt.u32 %p1, %r20, %r10;
@%p1 bra again;
"""
"""A loop of %r10 rounds with arithmetic that nothing needs."""

BARRIER = """
mov.u32 %r1, %tid.x;
mov.u32 %r2, smem;
add.u32 %r3, %r2, 1024;
setp.ne.u32 %p0, %r1, 0;
@%p0 bra made;
mbarrier.init.shared::cta.b64 [%r3], 1;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 16;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%rd100], 16, [%r3];
made:
bar.sync 0;
wait:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
@!%p2 bra wait;
"""
"""A bulk copy of 16 bytes of the first buffer to shared memory."""

WAYS = {
    "global": "ld.global.b32 %r10, [%rd100];",
    "global, by arithmetic": "ld.global.b32 %r11, [%rd100]; mad.lo.u32 %r12, %r11, 2, 1; sub.u32 %r10, %r12, 4;",
    "shared": "mov.u32 %r2, smem; ld.global.b32 %r11, [%rd100]; st.shared.b32 [%r2], %r11; ld.shared.b32 %r10, [%r2];",
    "copied": f"{BARRIER} ld.shared.b32 %r10, [%r2];",
    "lanes": "ld.global.b32 %r11, [%rd100]; shfl.sync.idx.b32 %r10, %r11, 3, 31, 0xFFFFFFFF;",
    "carry": """
        ld.global.b32 %r11, [%rd100]; add.u32 %r11, %r11, 0xFFFFFFFF;
        add.cc.u32 %r12, %r11, 1; addc.u32 %r10, 3, 0;
    """,
    "guard": "ld.global.b32 %r11, [%rd100]; mov.u32 %r10, 5; setp.eq.u32 %p3, %r11, 3; @%p3 mov.u32 %r10, 3;",
    "vector": "ld.global.v2.b32 {%r11, %r10}, [%rd100];",
    "cp.async": """
        mov.u32 %r2, smem; cp.async.ca.shared.global [%r2], [%rd100], 16; cp.async.wait_all;
        ld.shared.b32 %r10, [%r2];
    """,
    "generic": """
        mov.u32 %r2, smem; cvt.u64.u32 %rd1, %r2; cvta.shared.u64 %rd2, %rd1; ld.b32 %r11, [%rd100];
        st.b32 [%rd2], %r11; ld.b32 %r10, [%rd2];
    """,
    "matrix": """
        mov.u32 %r1, %tid.x; mov.u32 %r2, smem; mad.lo.u32 %r2, %r1, 16, %r2; ld.global.b32 %r11, [%rd100];
        st.shared.v4.b32 [%r2], {%r11, %r11, %r11, %r11}; bar.sync 0;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r12}, [%r2]; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r2], {%r12};
        bar.sync 0; ld.shared.b32 %r10, [%r2];
    """,
    "reduction": """
        ld.global.b32 %r11, [%rd100]; red.global.add.u32 [%rd101], %r11; bar.sync 0; ld.global.b32 %r12, [%rd101];
        and.b32 %r10, %r12, 7; add.u32 %r10, %r10, 1;
    """,
    "shared reduction": """
        mov.u32 %r2, smem; st.shared.b32 [%r2], 0; ld.global.b32 %r11, [%rd100]; red.shared.add.u32 [%r2], %r11;
        bar.sync 0; ld.shared.b32 %r12, [%r2]; and.b32 %r10, %r12, 7; add.u32 %r10, %r10, 1;
    """,
    "selection": """
        ld.global.b32 %r11, [%rd100]; setp.eq.u32 %p3, %r11, 3; selp.b32 %r10, 3, 5, %p3;
        vote.sync.ballot.b32 %r12, %p3, 0xFFFFFFFF; min.u32 %r10, %r10, %r12;
    """,
    "local": "ld.global.b32 %r11, [%rd100]; mov.u64 %rd1, room; st.local.b32 [%rd1], %r11; ld.local.b32 %r10, [%rd1];",
}
"""How 3 gets from the first buffer to the number of rounds."""


def record(
    body: str, recorder: Recorder, *, unknown: Sequence[str] = (), values: Sequence[int] = (), **options: Any
) -> Recording:
    machine = Machine()
    machine.monitor = recorder
    buffers = {"source": np.full(128, 3, np.uint32), "out": np.zeros(512, np.uint32)}

    def prepare(grid: Grid) -> None:
        for region in machine.memory:
            region.unknown = region.name in unknown
        recorder.launched(grid)

    # Device memory of processes lies in the order in which it is allocated.
    run_ptx(body, buffers=buffers, values=values, machine=machine, prepare=prepare, processes=2, **options)
    (recording,) = recorder.recordings()
    return recording


def local(body: str) -> str:
    return f".local .align 8 .b8 room[8]; {body}"


@pytest.mark.parametrize("way", WAYS)
def test_a_bound_of_a_loop_from_a_table_of_the_host_is_followed(way: str) -> None:
    body = local(WAYS[way] + LOOP)
    whole, some = (record(body, kind(), shared=2048) for kind in (Recorder, DatalessRecorder))
    assert content(some) == content(whole)


@pytest.mark.parametrize("way", WAYS)
def test_a_bound_of_a_loop_from_unknown_data_needs_them(way: str) -> None:
    with pytest.raises(Fault, match=r"unknown data of .*without data") as caught:
        record(local(WAYS[way] + LOOP), DatalessRecorder(), unknown=["source"], shared=2048)
    assert caught.value.kind == NEEDS_DATA
    assert caught.value.where is not None


USES = {
    "address": "mul.wide.u32 %rd1, %r10, 4; add.u64 %rd1, %rd1, %rd101; st.global.b32 [%rd1], 1;",
    "guard of a store": "setp.eq.u32 %p1, %r10, 3; @%p1 st.global.b32 [%rd101], 1;",
    "number of a barrier": "bar.sync %r10, 32;",
    "arrivals": "mov.u32 %r2, smem; mbarrier.init.shared::cta.b64 [%r2], %r10;",
    "bytes of a copy": """
        mov.u32 %r2, smem; shl.b32 %r10, %r10, 4;
        cp.async.bulk.global.shared::cta.bulk_group [%rd101], [%r2], %r10;
    """,
}


@pytest.mark.parametrize("use", USES)
def test_what_decides_needs_data(use: str) -> None:
    body = f"""
    mov.u32 %r1, %tid.x; mov.u32 %r2, smem; mad.lo.u32 %r3, %r1, 16, %r2; st.shared.v4.b32 [%r3], {{0, 0, 0, 0}};
    ld.global.b32 %r10, [%rd100]; {USES[use]}
    """
    with pytest.raises(Fault) as caught:
        record(body, DatalessRecorder(), unknown=["source"], shared=2048)
    assert caught.value.kind == NEEDS_DATA
    record(body, DatalessRecorder(), shared=2048)


DATA = """
mov.u32 %r1, %tid.x;
mov.u32 %r2, smem;
mad.lo.u32 %r3, %r1, 4, %r2;
mul.wide.u32 %rd1, %r1, 4;
add.u64 %rd2, %rd1, %rd100;
add.u64 %rd3, %rd1, %rd101;
ld.global.f32 %f1, [%rd2];
{before}
st.shared.f32 [%r3], %f1;
bar.sync 0;
ld.shared.f32 %f2, [%r3];
fma.rn.f32 %f2, %f2, %f2, %f2;
st.global.f32 [%rd3], %f2;
"""
"""Data that only move: through shared memory to the second buffer."""
THROUGH = "ld.global.b32 %r20, [%rd101]; setp.eq.u32 %p1, %r20, 0; @%p1 bra done; mov.u32 %r21, 0; done:"


def test_data_that_decide_nothing_are_left_out_and_followed() -> None:
    body = DATA.replace("{before}", "")
    whole = record(body, Recorder(), shared=2048)
    assert content(record(body, DatalessRecorder(), unknown=["source"], shared=2048)) == content(whole)
    # What was written is unknown from then on, in the same launch and in the next one.
    for after in (body + THROUGH, body.replace("done", "end") + "bar.sync 0;" + THROUGH):
        with pytest.raises(Fault, match="reads unknown data of out"):
            record(after, DatalessRecorder(), unknown=["source"], shared=2048)
        record(after, DatalessRecorder(), shared=2048)


def test_stored_values_make_shared_memory_known_again() -> None:
    body = f"""
    mov.u32 %r2, smem; ld.global.b32 %r11, [%rd100]; st.shared.b32 [%r2], %r11; st.shared.b32 [%r2], %r300;
    ld.shared.b32 %r10, [%r2]; {LOOP}
    """
    whole = record(body, Recorder(), values=[4], shared=2048)
    assert content(record(body, DatalessRecorder(), unknown=["source"], values=[4], shared=2048)) == content(whole)


def test_a_pipeline_without_data_is_recorded_alike() -> None:
    options: dict[str, Any] = {"block": (64, 1, 1), "grid": (2, 1, 1), "shared": 2048}
    body = PIPELINE.replace("%rd1, %r4, 512", "%rd1, %r4, 0")
    whole = record(body, Recorder(), **options)
    assert content(record(body, DatalessRecorder(), unknown=["source"], **options)) == content(whole)


def tensor(run: Callable[..., object], recorder: Recorder, *, unknown: Sequence[str] = ()) -> Recording:
    """Record a kernel of the tests of tensor copies."""
    machine = Machine()
    machine.monitor = recorder

    def prepare(grid: Grid) -> None:
        for region in machine.memory:
            region.unknown = region.name in unknown
        recorder.launched(grid)

    run(machine=machine, prepare=prepare, processes=2)
    (recording,) = recorder.recordings()
    return recording


@pytest.mark.parametrize("run", [partial(simple, F16, (0, 0)), partial(simple, F16, (80, 30)), run_changed])
def test_tensor_copies_bring_nothing_and_are_recorded_alike(run: Callable[..., object]) -> None:
    whole = tensor(run, Recorder())
    assert content(tensor(run, DatalessRecorder(), unknown=["x", "y", "out"])) == content(whole)


def test_what_a_tensor_copy_brings_is_unknown() -> None:
    body = "\n".join(
        [prologue(), first(expect(F16.bytes) + load(F16, (0, 0))), wait(), f"ld.shared.b32 %r10, [%r1+{BOX}];"]
    )
    bound = f"and.b32 %r10, %r10, 3; add.u32 %r10, %r10, 1; {LOOP}"
    tensor(partial(run_tensor, body, F16), DatalessRecorder())
    tensor(partial(run_tensor, body + bound, F16), Recorder())
    with pytest.raises(Fault, match="unknown data of shared memory"):
        tensor(partial(run_tensor, body + bound, F16), DatalessRecorder())


def test_a_tensor_map_of_unknown_bytes_needs_them() -> None:
    with pytest.raises(Fault, match="copies a tensor map"):
        tensor(run_changed, DatalessRecorder(), unknown=["map"])
    # A map that the launch itself has copied is known, whatever else is in the same allocation, until data are stored.
    whole = tensor(run_changed, Recorder())
    assert content(tensor(run_changed, DatalessRecorder(), unknown=["x", "work"])) == content(whole)
    stored = partial(run_changed, acquire=f"ld.global.b32 %r90, [%rd100]; st.global.b32 [%rd103+128], %r90; {ACQUIRED}")
    tensor(stored, Recorder())
    with pytest.raises(Fault, match="uses a tensor map in work"):
        tensor(stored, DatalessRecorder(), unknown=["x"])
