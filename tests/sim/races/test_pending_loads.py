"""A barrier does not wait for the loads before it, so that a copy behind it may overwrite what they read."""

from __future__ import annotations

import re

import pytest

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.races.pending_loads import pending_loads
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.programs import Programs
from tests.sim.ptx_case import run_ptx
from tests.sim.races.programs import findings_of
from tests.sim.races.tensor_programs import AFTER, BEFORE, WAIT_LD, judged, kernel, wait

FENCE = "fence.proxy.async.shared::cta;"
COPY = (
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r12], 128;"
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd100], 128, [%r12];"
)
STORE = "st.shared.b32 [%r3], %r2;"
ARRIVE = "setp.eq.u32 %p5, %r2, 0; @%p5 mbarrier.arrive.shared::cta.b64 _, [%r3+{at}];"
USE = "add.u32 %r21, %r20, 1;"
RING = """
setp.ne.u32 %p8, %r0, 0; add.u32 %r12, %r3, 4096; @%p8 bra MADE;
mbarrier.init.shared::cta.b64 [%r12], 1; mbarrier.init.shared::cta.b64 [%r3+4104], 1;
mbarrier.init.shared::cta.b64 [%r3+4112], 1; fence.mbarrier_init.release.cluster;
MADE: bar.sync 0; setp.ne.u32 %p1, %r1, 0; @%p1 bra CONSUMER; setp.ne.u32 %p2, %r2, 0; @%p2 bra END;
{copy}
EMPTY: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3+4104], 0; @!%p3 bra EMPTY;
{again}
LAST: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r12], {last}; @!%p3 bra LAST;
bra END;
CONSUMER: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r12], 0; @!%p4 bra CONSUMER;
{load}
{between}
bar.warp.sync 0xFFFFFFFF;
{arrive}
mul.wide.u32 %rd1, %r2, 4; add.s64 %rd1, %rd1, %rd101; {use}
END:
"""


def kinds(between: str = "", *, use: str = "st.global.b32 [%rd1], %r20;", **parts: str) -> list[str]:
    """Return the kinds of findings of a ring of one stage, whose consumer frees it right behind its load."""
    names = {"copy": COPY, "again": COPY, "last": "1", "load": "ld.shared.b32 %r20, [%r6];"}
    names["arrive"] = ARRIVE.format(at=4104)
    found, faults = findings_of(RING.format_map(names | parts | {"between": between, "use": use}), as_it_is=True)
    assert not faults
    return [finding.kind for finding in found]


@pytest.mark.parametrize(
    ("between", "said"),
    [
        ("", ["proxy"]),
        ("mov.b32 %r21, %r20;", ["proxy"]),
        ("fence.mbarrier_init.release.cluster;", ["proxy"]),
        ("setp.eq.u32 %p6, %r2, 40; @%p6 bra SKIP;" + USE + "SKIP:", ["proxy"]),
        (USE, []),
        ("mov.b32 %r22, %r20; add.u32 %r21, %r22, 1;", []),
        (FENCE, []),
        ("fence.proxy.async;", []),
        ("fence.acq_rel.cta;", []),
        ("membar.cta;", []),
        ("bar.sync 1, 32;", ["proxy"]),
        ("bar.sync 1, 32;" + FENCE, []),
        ("bar.sync 1, 32;" + USE, []),
    ],
)
def test_a_load_is_done_before_the_arrive(between: str, said: list[str]) -> None:
    assert kinds(between) == said


def test_ldmatrix_and_vectors() -> None:
    matrix = "shl.b32 %r30, %r2, 4; add.u32 %r30, %r30, %r3; and.b32 %r30, %r30, 0xFFFFFF7F; "
    matrix += "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20}, [%r30];"
    vector = "and.b32 %r30, %r2, 7; shl.b32 %r30, %r30, 4; add.u32 %r30, %r30, %r3; "
    vector += "ld.shared.v4.b32 {%r20, %r22, %r23, %r24}, [%r30];"
    for load in (matrix, vector):
        assert kinds(load=load) == ["proxy"]
        assert kinds(USE, load=load) == []
    assert kinds("add.u32 %r21, %r24, 1;", load=vector) == []  # all words of one load arrive together


def test_an_unused_value_is_no_finding() -> None:
    assert kinds(use="") == []


def test_a_store_through_the_generic_proxy_is_ordered() -> None:
    assert kinds(again=STORE, last="0") == []


def test_a_later_arrive_may_wait_for_the_load() -> None:
    first, second = ARRIVE.format(at=4112), ARRIVE.format(at=4104)
    assert kinds(arrive=first + USE + second) == []
    assert kinds(arrive=first + second) == ["proxy"]
    assert kinds(arrive=second + USE + first) == ["proxy"]


EMPTY = "EMPTY: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3+4104], 0; @!%p3 bra EMPTY;"
LOAD = "ld.shared.b32 %r20, [%r6];"
MEET = "bar.sync 1, 64;"


def met(
    between: str, *, arrive: str = MEET, again: str = COPY, met: str = MEET, use: str, load: str = LOAD
) -> list[str]:
    """Return the kinds of findings of a ring of one stage whose consumer and producer meet at ``bar.sync``."""
    assert EMPTY in RING
    names = {"copy": COPY, "again": again, "last": "1", "load": load, "between": between}
    body = RING.replace(EMPTY, met).format_map(names | {"arrive": arrive, "use": use})
    found, faults = findings_of(body, as_it_is=True)
    assert not faults
    return [finding.kind for finding in found]


def test_a_barrier_waits_for_no_load() -> None:
    late = "st.global.b32 [%rd1], %r20;"
    assert met("", use=late) == ["proxy"]
    assert met(USE, use=late) == []
    assert met(FENCE, use=late) == []
    assert met("", use="") == []


def test_a_fence_of_any_warp_before_the_copy_is_enough() -> None:
    late = "st.global.b32 [%rd1], %r20;"
    assert met("", again=FENCE + COPY, use=late) == []
    assert met("", met=FENCE + MEET, use=late) == ["proxy"]
    assert kinds(again=FENCE + COPY) == []


def test_a_later_barrier_may_wait_for_the_load() -> None:
    """A value is used between two barriers, and what the first one frees is filled behind the second one."""
    late = "st.global.b32 [%rd1], %r20;"
    assert met("", arrive=MEET + USE + MEET, met=MEET + MEET, use=late) == []
    assert met("", arrive=MEET + MEET, met=MEET + MEET, use=late) == ["proxy"]


def test_a_load_that_is_executed_again_has_its_earlier_value() -> None:
    """The copy behind the second barrier fills what the first load has read, and the second one is still pending."""
    loop = (
        "st.shared.b32 [%r6+256], %r2; mov.u32 %r40, 0; mov.u32 %r21, 0; LOOP: ld.shared.b32 %r20, [%r6];"
        + MEET
        + "add.u32 %r21, %r21, %r20;"
    )
    loop += "add.u32 %r6, %r6, 256; add.u32 %r40, %r40, 1; setp.lt.u32 %p9, %r40, 2; @%p9 bra LOOP;"
    total = "st.global.b32 [%rd1], %r21;"
    assert met(loop, arrive="", met=2 * MEET, use=total, load="") == []
    assert met(loop, arrive="", again=COPY + MEET, use=total, load="") == ["proxy"]


def test_the_address_of_tensor_memory_is_no_stage() -> None:
    """Triton loads it in all warps, and lets a copy overwrite it."""
    alloc = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], 32;"
    first = "MADE: setp.ne.u32 %p9, %r1, 1; @%p9 bra HELD; " + alloc + " HELD: bar.sync 1, 64;"
    wait = "CONSUMER: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r12], 0; @!%p4 bra CONSUMER;"
    body = RING.replace("MADE:", first).replace(wait, "CONSUMER:").replace(EMPTY, MEET)
    names = {"copy": "", "again": COPY, "last": "0", "between": "", "arrive": MEET}
    names |= {"load": "ld.shared.b32 %r20, [%r3];", "use": "st.global.b32 [%rd1], %r20;"}
    found, _ = findings_of(body.format_map(names), as_it_is=True)
    assert [finding.kind for finding in found] == ["race-warning", "tmem"]
    assert "a tcgen05.alloc" in found[0].message


def test_the_message_names_the_load_and_the_copy() -> None:
    names = {"copy": COPY, "again": COPY, "last": "1", "load": "ld.shared.b32 %r20, [%r6];", "between": ""}
    names |= {"arrive": ARRIVE.format(at=4104), "use": "st.global.b32 [%rd1], %r20;"}
    (finding,), _ = findings_of(RING.format_map(names), as_it_is=True)
    assert "cp.async.bulk" in finding.message
    assert "(ld.shared) in warp 1" in finding.message
    assert "may not have read it yet" in finding.message
    assert "fence.proxy.async" in finding.hint
    assert "in warp 1 of CTA (0, 0, 0) after" in finding.hint


def test_a_kernel_without_arrives_has_none() -> None:
    text = ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry kernel()\n{\nret;\n}\n"
    program = Programs().get(text, "kernel")
    assert pending_loads(program.flow, program.liveness) == {}


LD = "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r20, %r21}, [%r7];"
MMA = "@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r7], %rd10, %rd10, %r31, 0;"
CP = "@%p1 tcgen05.cp.cta_group::1.32x128b.warpx4 [%r7], %rd10;"
ST = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r7], {%r0};"
SIGNAL = "mbarrier.arrive.shared::cta.b64 _, [%r3+32];"


def tmem_kinds(
    between: str, second: str = MMA, *, load: str = LD, signal: str = SIGNAL, warnings: bool = False
) -> list[str]:
    """Return the kinds of errors of a warp that loads columns and frees them by an arrive, behind ``between``."""
    body = kernel(load, second, last=between + BEFORE + signal, meet="", after=wait("M", 32) + AFTER)
    return judged(body, warnings=warnings)[1]


@pytest.mark.parametrize("warnings", [False, True])
@pytest.mark.parametrize(
    ("between", "said"),
    [
        ("", ["race"]),
        ("mov.b32 %r22, %r20; mov.b64 %rd12, {%r21, %r22};", ["race"]),
        ("fence.proxy.async; membar.cta; bar.sync 1, 32;", ["race"]),
        ("setp.eq.u32 %p6, %r2, 40; @%p6 bra SKIP; add.u32 %r22, %r20, 1; SKIP:", ["race"]),
        (WAIT_LD, []),
        ("add.u32 %r22, %r21, 1;", []),
        ("mov.b64 %rd12, {%r20, %r21}; add.u64 %rd12, %rd12, 1;", []),
    ],
)
def test_a_load_of_tmem_is_done_before_the_arrive(between: str, said: list[str], warnings: bool) -> None:
    assert tmem_kinds(between, warnings=warnings) == said


@pytest.mark.parametrize("second", [MMA, CP, ST])
def test_whatever_writes_the_columns_behind_the_arrive(second: str) -> None:
    assert tmem_kinds("", second) == ["race"]
    assert tmem_kinds(WAIT_LD, second) == []


UNREAD = LD.replace("%r20, %r21", "%r22, %r23")
GUARDED = "setp.gt.u32 %p6, %r2, 40; @%p6 bra SKIP; add.u32 %r20, %r22, 1; SKIP:"
"""The lanes with a valid row use what they have loaded; there is none."""


@pytest.mark.parametrize("second", [MMA, CP, ST])
@pytest.mark.parametrize("between", ["", GUARDED, GUARDED.replace("gt", "le")])
def test_a_load_of_tmem_whose_value_is_not_used_behind_the_arrive(between: str, second: str) -> None:
    assert tmem_kinds(between, second, load=UNREAD) == []
    later = "add.u32 %r20, %r22, 1;"
    assert tmem_kinds(between, second, load=UNREAD, signal=SIGNAL + later) == ["race"]


def test_a_second_arrive_may_wait_for_the_load_of_tmem() -> None:
    first = "mbarrier.arrive.shared::cta.b64 _, [%r3+40];"
    made = "@%p1 mbarrier.init.shared::cta.b64 [%r3+40], 32; bar.warp.sync -1;"
    assert tmem_kinds(made + BEFORE + first + "add.u32 %r22, %r20, 1;") == []
    assert tmem_kinds(made + BEFORE + first) == ["race"]


def test_the_message_names_the_load_of_tmem_and_the_wait() -> None:
    body = kernel(LD, MMA, last=BEFORE + SIGNAL, meet="", after=wait("M", 32) + AFTER)
    grids: list[Grid] = []
    machine = Machine(model=for_arch("sm_100a"))
    machine.monitor = Detector()
    run_ptx(body, machine=machine, prepare=grids.append, shared=8192, block=(160, 1, 1))
    (finding,) = (each for each in grids[0].findings if each.kind == "race")
    assert "(tcgen05.mma) in warp 4" in finding.message
    assert "neither tcgen05.wait::ld nor a use of a register that" in finding.message
    assert "tcgen05.wait::ld in warp 0" in finding.hint


def test_a_stage_that_is_freed_before_it_is_read_is_no_missing_wait_alone() -> None:
    """The reader comes behind the issue of the copy that fills the stage again."""
    issued = "ISSUED: mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r3+4112], 0; @!%p6 bra ISSUED;"
    parts = {
        "copy": COPY, "again": COPY + "mbarrier.arrive.shared::cta.b64 _, [%r3+4112];", "last": "0", "load": "",
        "between": "", "arrive": ARRIVE.format(at=4104),
        "use": issued + "ld.shared.b32 %r20, [%r6]; st.global.b32 [%rd1], %r20;",
    }  # fmt: skip
    (race,) = findings_of(RING.format_map(parts), as_it_is=True)[0]
    assert re.search(
        r"the copy completes phase 1 of the mbarrier at byte 4096 .* behind phase 0 of it alone", race.message
    )
    assert re.search(
        r"wait for phase 1 .*; or, if (.*) reads what phase 0 brought, move the arrive .* behind \1; or, if .* belongs "
        r"to phase 0, announce its bytes, too, in the expect_tx of that phase$",
        race.hint,
    )
    never = RING.replace("CONSUMER: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r12], 0; @!%p4 bra", "CONSUMER: //")
    found = findings_of(never.format_map(parts), as_it_is=True)[0]
    assert any("no wait for that mbarrier is ordered before" in finding.message for finding in found)
