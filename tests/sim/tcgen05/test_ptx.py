"""tcgen05 through PTX: the spellings of both DSL versions, and whole kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.run.asynchronous import Lazy
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.tcgen05.table import BLOCKING
from tests.sim.tcgen05.gemm_ptx import GEMM, gemm
from tests.sim.tcgen05.lowered import Notes, lower, registers
from tests.sim.tcgen05.places import k_major

ACCEPTED = [
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], %r3;",
    "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r2+16], 512;",
    "tcgen05.alloc.cta_group::1.sync.aligned.b32 [%rd2], %r3;",
    "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
    "tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r1, 128;",
    "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1;",
    "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16.collector::a::discard "
    "[%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1;",
    "tcgen05.mma.cta_group::2.kind::mxf8f6f4.block_scale.scale_vec::1X [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1;",
    "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block32 [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1;",
    "tcgen05.mma.cta_group::1.kind::mxf4.block_scale [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1;",
    "tcgen05.mma.cta_group::1.kind::mxf4.block_scale [%r1], [%r5], %rd2, %r2, [%r3], [%r4], !%p1;",
    "tcgen05.mma.cta_group::1.kind::f16.collector::a::fill [%r1], %rd1, %rd2, %r2, %p1;",
    "tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, 0;",
    "tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, {%r5, %r6, %r7, %r8}, %p1;",
    "tcgen05.mma.cta_group::1.kind::tf32 [%r1], [%r9+8], %rd2, %r2, {%r5, %r6, %r7, %r8}, %p1, 4;",
    "tcgen05.mma.cta_group::2.kind::f16.collector::a::lastuse "
    "[%r1], %rd1, %rd2, %r2, {%r5, %r6, %r7, %r8, %r5, %r6, %r7, %r8}, %p1;",
    "tcgen05.mma.cta_group::1.kind::i8 [%r1], %rd1, %rd2, %r2, %p1;",
    "tcgen05.mma.cta_group::1.kind::f8f6f4 [%r1], %rd1, %rd2, %r2, %p1;",
    "tcgen05.cp.cta_group::1.32x128b.warpx4 [%r1], %rd1;",
    "tcgen05.cp.cta_group::2.64x128b.warpx2::02_13 [%r1], %rd1;",
    "tcgen05.cp.cta_group::1.4x256b [%r1], %rd1;",
    "tcgen05.cp.cta_group::1.128x128b.b8x16.b6x16_p32 [%r1], %rd1;",
    "tcgen05.cp.cta_group::1.128x128b.b8x16.b4x16_p64 [%r1], %rd1;",
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+536];",
    "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r1], %rs1;",
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%rd1];",
    "tcgen05.fence::before_thread_sync;",
    "tcgen05.fence::after_thread_sync;",
    "tcgen05.wait::ld.sync.aligned;",
    "tcgen05.wait::st.sync.aligned;",
    f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {registers(32)}, [%r1];",
    "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r9}, [%r1+4];",
    f"tcgen05.ld.red.sync.aligned.32x32b.x2.max.u32 {registers(2)}, %r9, [%r1];",
    f"tcgen05.ld.red.sync.aligned.32x32b.x32.max.abs.NaN.f32 {registers(32)}, %r9, [%r1];",
    f"tcgen05.ld.red.sync.aligned.16x32bx2.x4.min.s32 {registers(4)}, %r9, [%r1], 16;",
    f"tcgen05.ld.sync.aligned.16x256b.x4.b32 {registers(16)}, [%r1];",
    f"tcgen05.ld.sync.aligned.32x32b.x16.pack::16b.b32 {registers(16)}, [%r1];",
    f"tcgen05.ld.sync.aligned.16x32bx2.x2.b32 {registers(2)}, [%r1], 32;",
    f"tcgen05.st.sync.aligned.32x32b.x16.b32 [%r1], {registers(16)};",
    f"tcgen05.st.sync.aligned.16x64b.x2.unpack::16b.b32 [%r1], {registers(2)};",
    f"tcgen05.st.sync.aligned.16x32bx2.x2.b32 [%r1], 64, {registers(2)};",
    "tcgen05.mma.cta_group::1.kind::f16.ashift [%r1], [%r4], %rd2, %r2, %p1;",
    "tcgen05.mma.ws.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, %p1;",
    "tcgen05.mma.ws.cta_group::1.kind::tf32 [%r1], [%r4], %rd2, %r2, 1, %rd3;",
    "tcgen05.mma.ws.cta_group::1.kind::i8.collector::b3::lastuse [%r1], %rd1, %rd2, %r2, %p1, 0;",
    "tcgen05.mma.cta_group::1.kind::f8f6f4.ashift.collector::a::discard [%r1], [%r4], %rd2, %r2, %p1;",
]
REFUSED = [
    "tcgen05.mma.ws.cta_group::2.kind::f16 [%r1], %rd1, %rd2, %r2, %p1;",
    "tcgen05.mma.ws.cta_group::1.kind::mxf8f6f4.block_scale [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1;",
    "tcgen05.mma.ws.cta_group::1.kind::f16.collector::a::fill [%r1], %rd1, %rd2, %r2, %p1;",
    "tcgen05.mma.ws.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, %p1, 0, 0;",
    "tcgen05.mma.ws.sp.cta_group::1.kind::f16 [%r1], %rd1, %rd2, [%r4], %r2, %p1;",
    "tcgen05.mma.sp.cta_group::1.kind::f16 [%r1], %rd1, %rd2, [%r4], %r2, %p1;",
    "tcgen05.mma.cta_group::1.kind::f16.ashift [%r1], %rd1, %rd2, %r2, %p1;",
    "tcgen05.mma.cta_group::1.kind::f16.ashift.collector::a::use [%r1], [%r4], %rd2, %r2, %p1;",
    "tcgen05.mma.cta_group::1.kind::f16.collector::b0::fill [%r1], %rd1, %rd2, %r2, %p1;",
    "tcgen05.mma.kind::f16 [%r1], %rd1, %rd2, %r2, %p1;",
    "tcgen05.mma.cta_group::1.kind::f64 [%r1], %rd1, %rd2, %r2, %p1;",
    "tcgen05.mma.cta_group::1.kind::f16.block_scale [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1;",
    "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1;",
    "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::2X [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1;",
    "tcgen05.mma.cta_group::1.kind::mxf4nvf4.scale_vec::4X [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1;",
    "tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, {%r5, %r6}, %p1;",
    "tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, %p1, 16;",
    "tcgen05.mma.cta_group::1.kind::i8 [%r1], %rd1, %rd2, %r2, %p1, 1;",
    "tcgen05.cp.cta_group::1.32x128b [%r1], %rd1;",
    "tcgen05.cp.cta_group::1.128x128b.b8x16 [%r1], %rd1;",
    "tcgen05.cp.cta_group::1.128x128b.b4x16_p64 [%r1], %rd1;",
    "tcgen05.shift.cta_group::1.down [%r1];",
    f"tcgen05.ld.red.sync.aligned.32x32b.x1.max.u32 {registers(1)}, %r9, [%r1];",
    f"tcgen05.ld.red.sync.aligned.32x32b.x2.max.abs.u32 {registers(2)}, %r9, [%r1];",
    f"tcgen05.ld.red.sync.aligned.16x64b.x2.max.u32 {registers(2)}, %r9, [%r1];",
    f"tcgen05.ld.sync.aligned.16x256b.x64.b32 {registers(128)}, [%r1];",
    f"tcgen05.ld.sync.aligned.32x32b.x4.b32 {registers(3)}, [%r1];",
    f"tcgen05.ld.sync.aligned.32x32b.x3.b32 {registers(3)}, [%r1];",
    f"tcgen05.ld.sync.aligned.32x32b.x4.unpack::16b.b32 {registers(4)}, [%r1];",
    "tcgen05.commit.cta_group::1.mbarrier::arrive::two.shared::cluster.b64 [%r1];",
    "tcgen05.alloc.cta_group::3.sync.aligned.shared::cta.b32 [%r2], %r3;",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_what_is_modelled(text: str) -> None:
    assert lower(text)


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_is_refused_by_name(text: str) -> None:
    with pytest.raises(Unsupported) as caught:
        lower(text)
    assert text.split(maxsplit=1)[0].rstrip(";") in caught.value.message


def test_allocation_blocks() -> None:
    assert {"tcgen05.alloc"} == BLOCKING


@pytest.mark.parametrize("schedule", [None, Lazy])
def test_a_kernel(schedule: Any) -> None:
    got, want, ran = gemm(asynchronous=schedule() if schedule else None)
    assert (got == want[:32, :2].astype(np.float32)).all()
    counters = ran.grid.counters
    assert counters["mma.instructions"] == 2
    assert counters["mma.flops"] == 2 * 2 * 128 * 32 * 64
    assert counters["tcgen05.cp.bytes"] == 1024
    assert counters["tmem.allocations"] == 1
    assert not ran.grid.findings


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (16384 + 128 * 5, None),
        (16384 + 128, r"tcgen05\.mma.*: B: byte 17552 "),
        (20992 + 128, None),
        (20992, r"tcgen05\.cp.*: byte 22016 "),
    ],
)
def test_rows_that_are_not_loaded_matter_once_their_results_are_used(line: int, said: str | None) -> None:
    """Rows of B and their scale factors; the kernel stores columns 0 and 1."""
    store = "st.shared.b32 [%r7+1024], %r6;"
    body = GEMM.replace(store, f"setp.ne.u32 %p6, %r4, {line}; @%p6 {store}")
    if said is None:
        got, want, ran = gemm(body=body)
        assert (got == want[:32, :2].astype(np.float32)).all()
        assert not ran.grid.findings
        return
    with pytest.raises(Fault, match=said) as caught:
        gemm(body=body)
    assert caught.value.kind == "uninitialised"


def test_a_leak_is_a_finding() -> None:
    leaky = GEMM.replace("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 64;", "")
    _, _, ran = gemm(body=leaky)
    assert [finding.kind for finding in ran.grid.findings] == ["tmem"]


def test_a_load_after_the_memory_was_freed_is_a_finding_and_goes_on() -> None:
    free = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 64;"
    load = "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r20, %r21}, [%r2+MORE];"
    early = GEMM.replace(free, "").replace(load, free + load)
    got, want, ran = gemm(body=early)
    assert (got == want[:32, :2].astype(np.float32)).all()
    (finding,) = ran.grid.findings
    assert finding.kind == "tmem"
    assert "columns [0, 2) were freed by warp 0 at PTX line" in finding.message
    with pytest.raises(Fault, match="freed by warp 0"):
        gemm(
            body=early.replace(
                load, load + load.replace("ld.", "st.").replace("{%r20, %r21}, [%r2+MORE]", "[%r2], {%r20, %r21}")
            )
        )
    again = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+8], 32;"
    with pytest.raises(Fault, match="never written") as caught:
        gemm(
            body=early.replace("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;", "").replace(
                load, again + load
            )
        )
    assert caught.value.kind == "uninitialised"


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("@!%p1 bra WAIT;", "", "multi-lane"),
        ("tcgen05.cp.cta_group::1.32x128b.warpx4 [%r13], %rd8;", "", "uninitialised"),
        ("mov.u32 %r14, 0x08080480;", "mov.u32 %r14, 0x08080481;", "descriptor"),
        ("mov.u32 %r14, 0x08080480;", "mov.u32 %r14, 0x10080480;", "descriptor"),
        ("0x4000404000010000", "0x4000804000010000", "descriptor"),
        ("shared::cta.b32 [%r0], 64;", "shared::cta.b32 [%r0], 48;", "tmem"),
        ("add.u32 %r13, %r2, 36;", "add.u32 %r13, %r2, 62;", "tmem"),
        ("setp.ne.u32 %p3, %r9, %r9;", "setp.eq.u32 %p3, %r9, %r9;", "uninitialised"),
        ("%r4, 21504;", "%r4, 16384;", "uninitialised"),
        ("dealloc.cta_group::1.sync.aligned.b32 %r2, 64;", "dealloc.cta_group::1.sync.aligned.b32 %r2, 32;", "tmem"),
        ("[%r2+MORE]", "[%r2+2097152]", "lane-quadrant"),
        ("[%r2+MORE]", "[%r2+40]", "uninitialised"),
        ("[%r2+MORE]", "[%r2+63]", "tmem"),
        ("tcgen05.ld.", "@%p1 tcgen05.ld.", "divergence"),
    ],
)
def test_mutants_are_found(old: str, new: str, kind: str) -> None:
    assert old in GEMM
    with pytest.raises(Fault) as caught:
        gemm(body=GEMM.replace(old, new))
    assert caught.value.kind == kind
    assert caught.value.where is not None


def test_a_monitor_hears_of_everything() -> None:
    notes = Notes()
    machine = Machine()
    machine.monitor = notes
    gemm(machine=machine)
    said = [heard for heard in notes.heard if heard[0].startswith(("tensor", "tmem"))]
    names = [heard[0] for heard in said]
    issued = ["tensor_issued"] * 4
    assert names == ["tmem_allocated", *issued, "tensor_committed", "tmem_accessed", "tmem_freed"]
    assert said[0][1:] == (0, 64, False)
    assert said[-1][1:] == (0, 64)
    [(_, copied)] = said[1][2]
    assert copied.writes == ((32, 4, 0, 128),)
    assert copied.shared.tolist() == list(range(21504 // 16, 22016 // 16))
    [(_, first)], [(_, second)] = said[3][2], said[4][2]
    scales = ((32, 4, 0, 128), (36, 1, 0, 128))
    assert first.writes == second.writes == ((0, 32, 0, 128),)
    assert first.reads == scales
    assert second.reads == ((0, 32, 0, 128), *scales)
    pieces = {
        (1024 + start + k_major(r, k, swizzle=2, stride=1024)) // 16
        for start, rows in ((0, 128), (16384, 32))
        for r in range(rows)
        for k in range(32)
    }
    assert set(first.shared.tolist()) == pieces
    assert [barrier.index for barrier in said[5][2]] == [8]
    assert said[6][1:] == (((0, 2, 0, 32),), False)
    fences = [heard[1] for heard in notes.heard if heard[0] == "fence"]
    fences = [kind for kind in fences if kind.startswith("tcgen05")]
    assert fences == ["tcgen05.fence::after_thread_sync", "tcgen05.wait::ld"]
