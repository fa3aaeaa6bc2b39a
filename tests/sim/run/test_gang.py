"""Warps that execute in lockstep do what they do one by one: results, counters, faults and findings."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lower.ganged import GangCode
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run.asynchronous import schedule
from pytest_nvfp4.sim.run.gang import Gang
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.ptx_case import Ran, run_ptx

ROWS, DEPTH = 8 * 64, 48
PRODUCT = """
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.s32 %r3, %r1, 64, %r2;
mul.wide.u32 %rd1, %r3, {pitch}; add.s64 %rd3, %rd100, %rd1; mov.b64 %rd4, %rd101;
mov.b32 %f1, 0f00000000; mov.b32 %r5, 0; {before}
LOOP:
{guard} ld.global.v4.f32 {{%f2, %f3, %f4, %f5}}, [%rd3];
ld.global.nc.v4.f32 {{%f6, %f7, %f8, %f9}}, [%rd4];
fma.rn.f32 %f1, %f2, %f6, %f1; fma.rn.f32 %f1, %f3, %f7, %f1;
fma.rn.f32 %f1, %f4, %f8, %f1; fma.rn.f32 %f1, %f5, %f9, %f1;
{inside}
add.s64 %rd3, %rd3, 16; add.s64 %rd4, %rd4, 16; add.s32 %r5, %r5, 4;
setp.lt.u32 %p1, %r5, {end}; @%p1 bra LOOP;
{after}
mul.wide.u32 %rd5, %r3, 4; add.s64 %rd5, %rd5, %rd102; st.global.f32 [%rd5], %f1;
"""
FORMS = {
    "plain": {},
    "a guard of some lanes": {
        "before": "and.b32 %r6, %r2, 3; setp.ne.s32 %p2, %r6, 0; mov.b32 %f2, 0f00000000; mov.b32 %f3, %f2;"
        "mov.b32 %f4, %f2; mov.b32 %f5, %f2;",
        "guard": "@%p2",
    },
    "another count in each warp": {"before": "shr.u32 %r7, %r2, 5; mad.lo.s32 %r7, %r7, 16, 32;", "end": "%r7"},
    "another count in each lane": {"before": "and.b32 %r7, %r2, 7; mad.lo.s32 %r7, %r7, 4, 8;", "end": "%r7"},
    "a branch of some lanes": {
        "before": "setp.lt.u32 %p3, %r2, 40;",
        "inside": "@%p3 bra SKIP; mul.f32 %f1, %f1, 0fBF800000; SKIP:",
    },
    "a step of a sector": {"inside": "add.s64 %rd3, %rd3, 16; add.s64 %rd4, %rd4, 16;", "end": "24"},
    "a step of each warp": {
        "before": "shr.u32 %r7, %r2, 5; mul.wide.u32 %rd8, %r7, 32;",
        "inside": "add.s64 %rd3, %rd3, %rd8;",
        "end": "12",
    },
    "a step back": {
        "before": "add.s64 %rd3, %rd3, 160; add.s64 %rd4, %rd4, 128;",
        "inside": "sub.s64 %rd3, %rd3, 48; sub.s64 %rd4, %rd4, 48;",
        "end": "16",
    },
    "bytes and conversions": {
        "inside": "ld.global.b8 %rs1, [%rd3]; cvt.rn.f32.u16 %f10, %rs1; cvt.rn.f16.f32 %rs2, %f10;"
        "cvt.rn.f16x2.f32 %r11, %f1, %f10; cvt.f32.f16 %f11, %rs2; fma.rn.f32 %f1, %f11, 0f3F000000, %f1;"
        "mov.b32 {%rs3, %rs4}, %r11; cvt.f32.f16 %f12, %rs4; max.f32 %f1, %f1, %f12; add.rn.bf16x2 %r12, %r11, %r11;"
        "cvt.rn.bf16.f32 %rs5, %f1; cvt.f32.bf16 %f13, %rs5; sub.f32 %f1, %f1, %f13;",
    },
    "registers packed from others": {
        "inside": "mov.b64 %rd6, {%f1, %f2}; mov.b64 %rd7, {%f4, %f6}; fma.rn.f32x2 %rd6, %rd6, %rd7, %rd6;"
        "mov.b64 {%f1, %f10}, %rd6;",
    },
    "shared memory": {
        "inside": "mov.u32 %r8, smem; mad.lo.s32 %r8, %r2, 4, %r8; st.shared.f32 [%r8], %f1; ld.shared.f32 %f1, [%r8];"
    },
}


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Blocks that each gang has run, by gang."""
    found: list[int] = []
    run = Gang.run

    def counted(self: Gang, place: int) -> None:
        try:
            run(self, place)
        finally:
            found.append(self.blocks)

    monkeypatch.setattr(Gang, "run", counted)
    return found


def product(
    order: str = "eager", *, depth: int = DEPTH, monitored: bool = False, cluster: int = 1, **parts: str
) -> Ran:
    """Run the product of a matrix and a vector, a row for each thread, with some parts of the text."""
    draw = np.random.default_rng(3)
    a = draw.standard_normal((ROWS, DEPTH)).astype(np.float32)
    x = draw.standard_normal(DEPTH).astype(np.float32)
    names = {"before": "", "guard": "", "inside": "", "after": "", "end": str(depth)} | parts
    machine = Machine(asynchronous=schedule(order))
    detector = Detector() if monitored else None
    machine.monitor = detector
    buffers = {"a": a, "x": x, "out": np.zeros(ROWS, np.float32)}
    return run_ptx(
        PRODUCT.format(pitch=4 * DEPTH, **names),
        buffers=buffers,
        read_only=("x",),
        grid=(ROWS // 64, 1, 1),
        block=(64, 1, 1),
        cluster=(cluster, 1, 1),
        shared=256,
        machine=machine,
        prepare=None if detector is None else detector.launched,
    )


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("monitored", [False, True])
@pytest.mark.parametrize("order", ["eager", "lazy"])
@pytest.mark.parametrize("form", FORMS)
def test_a_gang_computes_what_its_warps_compute(
    form: str, order: str, monitored: bool, cluster: int, blocks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ganged = product(order, monitored=monitored, cluster=cluster, **FORMS[form])
    assert blocks, "no gang was formed"
    assert max(blocks) >= (2 if form != "a branch of some lanes" else 1)
    blocks.clear()
    monkeypatch.setattr(GangCode, "entries", frozenset())
    single = product(order, monitored=monitored, cluster=cluster, **FORMS[form])
    assert not blocks
    assert ganged["out"].tobytes() == single["out"].tobytes()
    assert ganged.grid.counters == single.grid.counters
    assert ganged.grid.products == single.grid.products
    assert [finding.message for finding in ganged.grid.findings] == [each.message for each in single.grid.findings]


def test_warps_of_several_ctas_form_one_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    run = Gang.run
    monkeypatch.setattr(Gang, "run", lambda self, place: (sizes.append(len(self.warps)), run(self, place)))
    product()
    assert max(sizes) == 2 * ROWS // 64


def test_a_fault_names_the_warp_and_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    before = "setp.eq.s32 %p4, %r3, 300; @%p4 add.s64 %rd3, %rd3, 0x40000000;"
    with pytest.raises(Fault) as ganged:
        product(before=before)
    monkeypatch.setattr(GangCode, "entries", frozenset())
    with pytest.raises(Fault) as single:
        product(before=before)
    assert ganged.value.kind == single.value.kind == "out-of-bounds"
    assert ganged.value.where == single.value.where
    assert ganged.value.where is not None
    assert (ganged.value.where.cta, ganged.value.where.warp) == ((4, 0, 0), 1)


def test_a_misaligned_lane_is_found() -> None:
    before = "setp.eq.s32 %p4, %r3, 300; @%p4 add.s64 %rd3, %rd3, 4;"
    with pytest.raises(Fault, match="multiple of 16") as caught:
        product(before=before)
    where = caught.value.where
    assert where is not None
    assert (where.cta, where.warp) == ((4, 0, 0), 1)
    assert "lane 12" in caught.value.message


def test_unwritten_shared_memory_is_reported_with_its_warp() -> None:
    inside = "mul.lo.s32 %r8, %r2, 4; mov.u32 %r9, smem; add.s32 %r8, %r8, %r9; ld.shared.b32 %r10, [%r8];"
    ran = product(inside=inside + "cvt.rn.f32.u32 %f10, %r10; add.f32 %f1, %f1, %f10;")
    (finding,) = ran.grid.findings
    assert finding.kind == "uninitialised"
    assert finding.where is not None
    assert (finding.where.warp, finding.where.cta) == (0, (0, 0, 0))


@pytest.mark.parametrize(("lanes", "found"), [(0, 0), (9, 1)])
@pytest.mark.parametrize("at_once", [False, True])
def test_unwritten_shared_memory_that_a_selection_drops(at_once: bool, lanes: int, found: int) -> None:
    inside = "mul.lo.s32 %r8, %r2, 4; mov.u32 %r9, smem; add.s32 %r8, %r8, %r9; ld.shared.b32 %r10, [%r8];"
    inside += "cvt.rn.f32.u32 %f10, %r10; selp.f32 %f10, %f10, 0f00000000, %p3; add.f32 %f1, %f1, %f10;"
    inside = inside.replace("selp", f"setp.lt.u32 %p3, %r6, {lanes}; selp") if at_once else inside
    before = f"add.u32 %r6, %r2, 32; and.b32 %r6, %r6, 63; setp.lt.u32 %p3, %r6, {lanes};"
    ran = product(before=before, inside=inside)
    assert len(ran.grid.findings) == found


def test_a_race_between_warps_of_a_gang_is_found() -> None:
    """All threads write the element that the others read, without an order."""
    inside = "st.global.f32 [%rd102], %f1; ld.global.f32 %f14, [%rd102]; add.f32 %f1, %f1, %f14;"
    ran = product(monitored=True, inside=inside)
    assert any(finding.kind == "race" for finding in ran.grid.findings)
    assert not product(monitored=True).grid.findings


def test_an_endless_loop_ends_in_a_report() -> None:
    """The state repeats, but memory could end the loop: nobody stores there."""
    inside = "ld.global.f32 %f15, [%rd101]; and.b32 %r5, %r5, 7; mov.b64 %rd3, %rd100; mov.b64 %rd4, %rd101;"
    with pytest.raises(Fault) as caught:
        product(inside=inside + "mov.b32 %f1, %f15;", end="64")
    assert caught.value.kind == "deadlock"


COPIED = """
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mov.u32 %r3, smem; setp.ne.u32 %p1, %r2, 0; add.u32 %r4, %r3, 1024;
@%p1 bra MADE; mbarrier.init.shared::cta.b64 [%r4], 1; fence.mbarrier_init.release.cluster; MADE: bar.sync 0;
mul.wide.u32 %rd1, %r1, 512; add.s64 %rd1, %rd1, %rd100;
@%p1 bra WAIT; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 512;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd1], 512, [%r4];
WAIT: {wait}
shl.b32 %r5, %r2, 2; add.u32 %r6, %r3, %r5; {load}
""" + " ".join(f"add.s32 %r7, %r7, {n}; xor.b32 %r7, %r7, %r5;" for n in range(40)) + """
mad.lo.s32 %r8, %r1, 128, %r2; mul.wide.u32 %rd2, %r8, 4; add.s64 %rd2, %rd2, %rd101; st.global.b32 [%rd2], %r7; END:
"""  # fmt: skip
WAITED = "mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], 0; @!%p2 bra WAIT;"


def copied(order: str, *, wait: str = WAITED, load: str = "ld.shared.b32 %r7, [%r6];") -> Ran:
    buffers = {"x": np.arange(6 * 128, dtype=np.uint32), "out": np.zeros(6 * 128, np.uint32)}
    machine = Machine(asynchronous=schedule(order))
    text = COPIED.format(wait=wait, load=load)
    return run_ptx(text, buffers=buffers, grid=(6, 1, 1), block=(128, 1, 1), shared=2048, machine=machine)


@pytest.mark.parametrize("order", ["eager", "lazy"])
def test_warps_that_wait_for_copies_form_gangs(order: str, blocks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    ganged = copied(order)
    assert blocks
    monkeypatch.setattr(GangCode, "entries", frozenset())
    single = copied(order)
    assert ganged["out"].tobytes() == single["out"].tobytes()
    assert ganged.grid.counters == single.grid.counters
    assert ganged.grid.findings == single.grid.findings == []


def test_a_copy_may_arrive_after_its_cta_has_ended_while_others_form_a_gang(
    blocks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    last_leaves = "mov.b32 %r7, %r1; setp.eq.u32 %p3, %r1, 5; @%p3 bra END;"
    ganged = copied("lazy", wait="", load=last_leaves)
    assert blocks
    monkeypatch.setattr(GangCode, "entries", frozenset())
    single = copied("lazy", wait="", load=last_leaves)
    assert {finding.kind for finding in ganged.grid.findings} == {finding.kind for finding in single.grid.findings}
    assert "in-flight" in {finding.kind for finding in ganged.grid.findings}
