"""Some lanes of a warp release what all have done: with an order among the lanes before that, and without."""

from __future__ import annotations

import pytest

from tests.sim.races.programs import by_warp, finding_kinds, findings_of

INIT = (
    "setp.ne.u32 %p8, %r0, 0; @%p8 bra MADE; mbarrier.init.shared::cta.b64 [%r3], {count};"
    "mbarrier.init.shared::cta.b64 [%r3+8], 1; MADE: setp.eq.u32 %p7, %r1, 0;"
    "@%p7 st.shared.b32 [%r6+512], 0; bar.sync 0;"
)
READ, WRITE = "ld.shared.b32 %r20, [%r6+512];", "st.shared.b32 [%r6+512], %r0;"
MEET = "bar.warp.sync 0xffffffff;"
LANE_0 = "setp.eq.u32 %p3, %r2, 0;"
ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%r3];"
WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3], 0; @!%p1 bra W;"


def released(body: str, then: str = WAIT + WRITE, *, count: int = 1) -> list[str]:
    """The findings of a warp that reads or writes and then releases, and of another that waits and then writes."""
    return finding_kinds(INIT.format(count=count) + by_warp(LANE_0 + body, then))


ELECTED = "elect.sync %r30|%p3, 0xffffffff;"
OWN_MBARRIER = (
    "mbarrier.arrive.shared::cta.b64 _, [%r3+16]; O: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3+16], 0;"
    "@!%p1 bra O;"
)


@pytest.mark.parametrize("first", [READ, WRITE], ids=["read", "write"])
@pytest.mark.parametrize(
    ("between", "races"),
    [("", True), (ELECTED, True), ("shfl.sync.idx.b32 %r30, %r20, 0, 31, 0xffffffff;", True), (MEET, False),
     ("bar.sync 1, 32;", False), ("fence.proxy.async.shared::cta;", False), ("fence.acq_rel.cta;", False),
     ("@%p3 fence.acq_rel.cta;", True), ("bar.warp.sync 0x0000ffff;", True)],
)  # fmt: skip
def test_lane_0_releases_what_all_have_done(first, between, races):
    if "0x0000ffff" in between:
        between = f"setp.gt.u32 %p5, %r2, 15; @%p5 bra ON; {between} ON:"
    assert released(first + between + "@%p3 " + ARRIVE) == (["race"] if races else [])


def test_what_follows_the_synchronisation_is_not_ordered_by_it():
    assert released(READ + MEET + READ + "@%p3 " + ARRIVE) == ["race"]
    assert released(READ + MEET + "@%p3 " + READ + "@%p3 " + ARRIVE) == []


def test_lanes_that_arrive_each_release_their_own():
    assert released(READ + ARRIVE, count=32) == []
    half = "setp.lt.u32 %p5, %r2, 16; @%p5 bra LOW; " + ARRIVE + "bra ON; LOW: " + ARRIVE + " ON:"
    assert released(READ + half, count=32) == []
    assert released(READ + "setp.lt.u32 %p5, %r2, 16; @%p5 " + ARRIVE, count=16) == ["race"]


def test_lanes_are_told_apart_by_the_bytes_that_they_touch():
    half = "setp.lt.u32 %p5, %r2, 16;"
    mine, others = ("@{}%p5 " + WRITE).format(""), ("@{}%p5 " + WRITE).format("!")
    arrive = READ + "@%p5 " + ARRIVE
    assert released(half + arrive, half + WAIT + mine, count=16) == []
    assert released(half + arrive, half + WAIT + others, count=16) == ["race"]
    assert released("@%p3 " + READ + "@%p3 " + ARRIVE) == []
    assert released("@!%p3 " + READ + "@%p3 " + ARRIVE) == ["race"]


@pytest.mark.parametrize(("meet", "races"), [(MEET, []), ("", ["race"])], ids=["synchronised", "not"])
def test_named_barriers_and_flags_release_for_lanes_as_well(meet, races):
    flag = "st.release.cta.shared.b32 [%r3+256], 1;"
    spin = "S: ld.acquire.cta.shared.b32 %r21, [%r3+256]; setp.eq.u32 %p6, %r21, 0; @%p6 bra S;"
    clear = "setp.eq.u32 %p4, %r0, 0; @%p4 st.shared.b32 [%r3+256], 0; bar.sync 0;"
    body = LANE_0 + READ + meet + "@%p3 " + flag
    assert finding_kinds(INIT.format(count=1) + clear + by_warp(body, spin + WRITE)) == races
    relaxed = "@%p3 fence.acq_rel.cta; @%p3 st.relaxed.cta.shared.b32 [%r3+256], 1;"
    assert finding_kinds(INIT.format(count=1) + clear + by_warp(LANE_0 + READ + meet + relaxed, spin + WRITE)) == races


def test_a_wait_for_what_all_lanes_released_orders_them():
    init = "setp.ne.u32 %p8, %r0, 0; @%p8 bra MORE; mbarrier.init.shared::cta.b64 [%r3+16], 32; MORE:"
    body = LANE_0 + READ + OWN_MBARRIER + "@%p3 " + ARRIVE
    assert finding_kinds(init + INIT.format(count=1) + by_warp(body, WAIT + WRITE)) == []


def test_collective_reads_are_of_the_warp():
    matrix = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20}, [%r6+512];"
    row = "shl.b32 %r5, %r2, 4; add.u32 %r7, %r3, %r5;" + matrix.replace("%r6", "%r7")
    assert released(row + ELECTED + "@%p3 " + ARRIVE) == []


def test_the_finding_names_the_release_and_what_is_missing():
    body = INIT.format(count=1) + by_warp(LANE_0 + READ + "@%p3 " + ARRIVE, WAIT + WRITE)
    ((finding,), _) = findings_of(body)
    assert "only lane 0 executes PTX line" in finding.message
    assert "(mbarrier.arrive) in warp 0 of CTA (0, 0, 0), which releases it" in finding.message
    assert "no bar.warp.sync orders the accesses of the other lanes before that" in finding.message
    assert "bar.warp.sync" in finding.hint
