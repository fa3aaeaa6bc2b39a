"""What orders accesses to tensor memory, row by row of the table in ``races.tensor_order``: small PTX kernels.

Warp 0 does something in the columns that it has filled, warp 4 (which reaches the same lanes) something else after it.
"""

from __future__ import annotations

import re

import pytest

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.sim.ptx.flow import Flow
from pytest_nvfp4.sim.ptx.parser import parse
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.races.early_use import early_uses
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.ptx_case import run_ptx
from tests.sim.races.tensor_programs import AFTER, BEFORE, WAIT_LD, WAIT_ST, commit, judged, kernel, wait

LD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r20}, [%r7];"
ST = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r7], {%r0};"
CP = "@%p1 tcgen05.cp.cta_group::1.32x128b.warpx4 [%r7], %rd10;"
MMA = "@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r7], %rd10, %rd10, %r31, 0;"
FREE = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r7, 32;"
A_READER = "@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r9], [%r7], %rd10, %r31, 0;"


FENCED = {
    "ld, st": (LD, WAIT_LD + BEFORE, AFTER, ST),
    "ld, cp": (LD, WAIT_LD + BEFORE, AFTER, CP),
    "ld, mma": (LD, WAIT_LD + BEFORE, AFTER, MMA),
    "st, ld": (ST, WAIT_ST + BEFORE, AFTER, LD),
    "st, st": (ST, WAIT_ST + BEFORE, AFTER, ST),
    "st, A of mma": (ST, WAIT_ST + BEFORE, AFTER, A_READER),
    "cp, ld": (CP, commit() + wait("C"), AFTER, LD),
    "cp, st": (CP, commit() + wait("C"), AFTER, ST),
    "mma, ld": (MMA, commit() + wait("C"), AFTER, LD),
    "cp, mma": (CP, BEFORE, AFTER, A_READER),
    "mma, mma": (MMA, BEFORE, AFTER, MMA),
    "mma, cp": (A_READER, commit() + wait("C"), AFTER, CP),
}


@pytest.mark.parametrize("pair", FENCED)
def test_what_has_all_is_clean(pair):
    first, last, after, second = FENCED[pair]
    assert judged(kernel(first, second, last=last, after=after)) == (set(), [])


@pytest.mark.parametrize("pair", FENCED)
def test_relaxed_barriers_are_enough_between_fences(pair):
    """The ISA's own examples: ``mbarrier.arrive.relaxed``, ``mbarrier.try_wait.relaxed``."""
    first, last, after, second = FENCED[pair]
    arrive = "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%r3+32];"
    body = kernel(first, second, last=last + arrive, after=wait("M", 32, order=".relaxed.cta") + after, meet="")
    assert judged(body) == (set(), [])
    assert judged(body, warnings=False) == (set(), [])


@pytest.mark.parametrize(("first", "kinds"), [(LD + "bar.arrive 1, 64;", []), ("bar.arrive 1, 64;" + LD, ["race"])])
def test_columns_are_freed_behind_their_last_load(first, kinds):
    body = kernel(first, FREE, meet="", last=WAIT_LD + BEFORE, after="bar.sync 1, 64;" + AFTER)
    assert judged(body.replace(FREE + " GONE:", "GONE:"), warnings=False) == (set(), kinds)


@pytest.mark.parametrize(
    ("pair", "without", "missing"),
    [
        ("ld, st", WAIT_LD, "wait::ld"),
        ("ld, st", BEFORE, "before"),
        ("ld, st", AFTER, "after"),
        ("ld, cp", WAIT_LD, "wait::ld"),
        ("ld, cp", BEFORE, "before"),
        ("ld, cp", AFTER, "after"),
        ("ld, mma", WAIT_LD, "wait::ld"),
        ("ld, mma", BEFORE, "before"),
        ("ld, mma", AFTER, "after"),
        ("st, ld", BEFORE, "before"),
        ("st, ld", AFTER, "after"),
        ("st, A of mma", BEFORE, "before"),
        ("st, A of mma", AFTER, "after"),
        ("cp, ld", AFTER, "after"),
        ("cp, st", AFTER, "after"),
        ("mma, ld", AFTER, "after"),
        ("cp, mma", BEFORE, "before"),
        ("cp, mma", AFTER, "after"),
        ("mma, mma", BEFORE, "before"),
        ("mma, mma", AFTER, "after"),
        ("mma, cp", AFTER, "after"),
    ],
)
def test_what_is_left_out_is_a_warning(pair, without, missing):
    first, last, after, second = FENCED[pair]
    body = kernel(first, second, last=last.replace(without, ""), after=after.replace(without, ""))
    found, errors = judged(body)
    assert errors == []
    assert missing in found
    assert found <= {missing, "after"}, "a missing before_thread_sync of a pipe leaves nothing for the fence after it"
    assert judged(body, warnings=False) == (set(), [])


@pytest.mark.parametrize(
    ("pair", "without"),
    [("st, ld", WAIT_ST), ("st, A of mma", WAIT_ST), ("st, st", WAIT_ST), ("cp, ld", commit() + wait("C")),
     ("cp, st", commit() + wait("C")), ("mma, ld", commit() + wait("C"))],
)  # fmt: skip
def test_what_is_left_out_is_an_error(pair, without):
    first, last, after, second = FENCED[pair]
    body = kernel(first, second, last=last.replace(without, ""), after=after)
    assert judged(body, warnings=False)[1] == ["race"]
    assert judged(body)[1] == ["race"]


def test_what_a_load_of_the_warp_has_seen_is_stored_and_nothing_else_is():
    elsewhere = LD.replace("[%r7]", "[%r7+8]")
    for between, errors in ((LD, []), (elsewhere, ["race"])):
        body = kernel(ST, A_READER, last=between + WAIT_LD + BEFORE, after=AFTER)
        found, others = judged(body)
        assert others == errors
        assert judged(body, warnings=False)[1] == errors
        assert found == ({"wait::st", "before"} if between is LD else set())


def test_a_fence_too_early_or_too_late_is_none():
    assert judged(kernel(BEFORE + LD, ST, last=WAIT_LD, after=AFTER)) == ({"before"}, [])
    early = kernel(LD, ST, last=WAIT_LD + BEFORE, meet=AFTER + "bar.sync 1, 64;")
    assert judged(early) == ({"after"}, [])
    late = kernel(LD, ST, last=BEFORE, meet="bar.sync 1, 64;" + WAIT_LD, after=AFTER)
    assert judged(late) == ({"wait::ld"}, [])


@pytest.mark.parametrize("pair", ["ld, st", "st, ld", "cp, ld", "mma, mma"])
def test_a_relaxed_flag_is_enough_between_fences(pair):
    first, last, after, second = FENCED[pair]
    meet = "mov.b32 %r33, 1; st.relaxed.cta.shared::cta.b32 [%r3+6000], %r33;"
    wait_for = "SPIN: ld.relaxed.cta.shared::cta.b32 %r34, [%r3+6000]; setp.eq.u32 %p4, %r34, 0; @%p4 bra SPIN;"
    body = kernel(
        first, second, last=last + "@%p1 " + meet.replace("; st", "; @%p1 st"), after=wait_for + after, meet=""
    )
    assert judged(body) == (set(), [])
    without = kernel(first, second, last=last.replace(BEFORE, "") + meet, after=wait_for, meet="")
    assert judged(without, warnings=False)[1] == ([] if pair == "mma, mma" else ["race"])


def test_a_relaxed_barrier_without_fences_orders_nothing():
    arrive = "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%r3+32];"
    for last, after in ((WAIT_LD, AFTER), (WAIT_LD + BEFORE, "")):
        body = kernel(LD, ST, last=last + arrive, after=wait("M", 32, order=".relaxed.cta") + after, meet="")
        assert judged(body, warnings=False)[1] == ["race"]


@pytest.mark.parametrize(
    ("first", "last", "second", "missing", "errors"),
    [
        (LD, "", ST, {"wait::ld"}, []),
        (LD, WAIT_LD, ST, set(), []),
        (LD, "", CP, {"wait::ld"}, []),
        (LD, WAIT_LD, CP, set(), []),
        (ST, "", ST, {"wait::st"}, []),
        (ST, WAIT_ST, ST, set(), []),
        (ST, "", LD, {"wait::st"}, []),
        (ST, WAIT_ST, LD, set(), []),
        (ST, "", A_READER, set(), ["race"]),
        (CP, "", A_READER, set(), []),
        (MMA, "", MMA, set(), []),
        (A_READER, "", CP, {"commit"}, []),
        (A_READER, commit() + wait("C"), CP, {"after"}, []),
        (A_READER, commit() + wait("C") + AFTER, CP, set(), []),
        (MMA, "", A_READER, {"commit"}, []),
        (MMA, commit() + wait("C"), LD, {"after"}, []),
        (MMA, commit() + wait("C") + AFTER, LD, set(), []),
        (LD, "add.u32 %r21, %r20, 1;", "", {"use"}, []),
        (LD, WAIT_LD + "add.u32 %r21, %r20, 1;", "", set(), []),
        (LD, "mov.b64 %rd1, {%r20, %r20};" + WAIT_LD, "add.u64 %rd2, %rd1, 1;", set(), []),
        (LD, "mov.b64 %rd1, {%r20, %r20};", "add.u64 %rd2, %rd1, 1;", {"use"}, []),
        (LD, "mov.b32 %r20, 0; add.u32 %r21, %r20, 1;", "", set(), []),
    ],
)
def test_within_one_warp(first, last, second, missing, errors):
    assert judged(kernel(first, second, last=last, same=True)) == (missing, errors)


def test_a_warning_names_both_and_what_is_missing():
    machine = Machine(model=for_arch("sm_100a"))
    machine.monitor = Detector(warnings=True)
    ran = run_ptx(kernel(LD, ST, last=WAIT_LD), machine=machine, shared=8192, block=(160, 1, 1))
    (finding,) = ran.grid.findings
    assert finding.kind == "race-warning"
    assert "(tcgen05.st) in warp 4 of CTA (0, 0, 0) writes TMEM columns [0, 1)" in finding.message
    assert re.search(r"which .* \(tcgen05\.ld\) in warp 0 of CTA \(0, 0, 0\) read", finding.message)
    assert "before_thread_sync of warp 0" in finding.message
    assert "after_thread_sync of warp 4" in finding.message
    assert finding.where.warp == 4


def test_uses_are_followed_through_branches_and_loops():
    text = """.version 8.8
    .target sm_100a
    .address_size 64
    .visible .entry kernel() { .reg .b32 %r<9>; .reg .pred %p<3>;
    LOOP: @%p1 bra SKIP;
    tcgen05.wait::ld.sync.aligned;
    SKIP: add.u32 %r2, %r1, 1;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [%r3];
    @%p2 bra LOOP;
    ret; }"""
    flow = Flow(parse(text).kernels["kernel"])
    roots = {instruction.index: instruction.root for instruction in flow.kernel.instructions}
    assert {(roots[load], roots[use]) for load, use in early_uses(flow).items()} == {("tcgen05", "add")}
    always = Flow(parse(text.replace("@%p1 bra SKIP;", "")).kernels["kernel"])
    assert early_uses(always) == {}
