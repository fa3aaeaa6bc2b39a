"""Arrives and waits of ``.cta`` scope at the mbarrier of another CTA of the cluster, and fences that widen them."""

from __future__ import annotations

import pytest

from pytest_nvfp4.finding import Finding
from tests.sim.races.programs import GATHER, STAY, findings_of

INIT = (
    "setp.ne.u32 %p8, %r0, 0; @%p8 bra MADE; mbarrier.init.shared::cta.b64 [%r3], {count};"
    "fence.mbarrier_init.release.cluster; MADE:"
)
SECOND = "xor.b32 %r10, %r4, 1; mapa.shared::cluster.u32 %r12, %r3, %r10; mapa.shared::cluster.u32 %r11, %r6, %r10;"
ROLES = "setp.eq.u32 %p4, %r4, 0; @%p4 bra WAITS;"
WRITE = "st.shared::cluster.b32 [%r11+512], %r0;"
ARRIVE = "mbarrier.arrive{}.shared::cluster.b64 _, [%r12];"
WAIT = "T: mbarrier.try_wait.parity{}.shared::cta.b64 %p1, [%r3], 0; @!%p1 bra T;"
READ = "ld.shared.b32 %r20, [%r6+512];"
FENCE = "fence.acq_rel.{};"


def found(release: str, acquire: str, *, count: int = 32, before: str = "", acting: str = "") -> list[Finding]:
    """Return the findings about two CTAs of one warp: rank 1 executes ``release``, rank 0 ``acquire``."""
    body = (
        INIT.format(count=count) + GATHER + SECOND + before + ROLES + release + "bra DONE; WAITS:" + acting + acquire
        + "DONE:" + STAY
    )  # fmt: skip
    findings, faults = findings_of(body, grid=(2, 1, 1), cluster=(2, 1, 1), block=(32, 1, 1))
    assert faults == []
    return findings


@pytest.mark.parametrize(
    ("arrive", "wait", "fences", "racy"),
    [(".release.cluster", "", ("", ""), False), (".release.cluster", ".acquire.cluster", ("", ""), False),
     ("", "", ("", ""), True), (".release.cta", "", ("", ""), True), ("", ".acquire.cluster", ("", ""), True),
     ("", "", ("cluster", ""), False), ("", "", ("gpu", ""), False), ("", "", ("cta", ""), True),
     (".relaxed.cluster", "", ("cluster", ""), False), (".relaxed.cluster", "", ("cta", ""), True),
     (".release.cluster", ".acquire.cta", ("", ""), True), (".release.cluster", ".acquire.cta", ("", "cluster"), False),
     (".release.cluster", ".relaxed.cta", ("", "cta"), True),
     (".release.cluster", ".relaxed.cluster", ("", "cluster"), False),
     (".release.cluster", ".relaxed.cluster", ("", ""), True)],
)  # fmt: skip
def test_a_write_before_an_arrive_at_a_peer(arrive, wait, fences, racy):
    before, behind = (FENCE.format(scope) if scope else "" for scope in fences)
    findings = found(WRITE + before + ARRIVE.format(arrive), WAIT.format(wait) + behind + READ)
    assert [one.kind for one in findings] == ["race"] * racy


def test_what_is_told():
    (finding,) = found(WRITE + ARRIVE.format(""), WAIT.format("") + READ)
    assert "has scope .cta, and its barrier belongs to CTA rank 0 of the cluster" in finding.message
    assert ".release.cluster at" in finding.hint
    (finding,) = found(WRITE + ARRIVE.format(".release.cluster"), WAIT.format(".acquire.cta") + READ)
    assert "other CTAs of the cluster arrive at its barrier" in finding.message
    assert ".acquire.cluster at" in finding.hint


def test_a_relaxed_arrive_between_two_accesses_is_named():
    (finding,) = found(WRITE + ARRIVE.format(".relaxed.cluster"), WAIT.format("") + READ)
    assert "(mbarrier.arrive.relaxed.cluster.shared::cluster.b64) in warp 0 of CTA (1, 0, 0)" in finding.message
    assert "is .relaxed: who waits for it comes behind what was executed before" in finding.message
    assert "an arrive without .relaxed at" in finding.hint
    (finding,) = found(ARRIVE.format(".relaxed.cluster") + WRITE, WAIT.format("") + READ)
    assert ".relaxed" not in finding.message


@pytest.mark.parametrize(("arrive", "said"), [(".relaxed", True), (".release", False)])
def test_the_relaxed_arrive_that_is_named_is_the_first_behind_the_access(arrive, said):
    """Rank 1 may arrive once more before rank 0 reads."""
    meet = f"barrier.cluster.arrive{arrive}; barrier.cluster.wait;"
    late = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;"
    body = (
        SECOND + "setp.eq.u32 %p4, %r4, 0;" + GATHER + "@%p4 bra WROTE;" + WRITE + "WROTE:" + meet
        + "@!%p4 bra DONE;" + READ + "DONE:" + late + STAY
    )  # fmt: skip
    findings, _ = findings_of(body, grid=(2, 1, 1), cluster=(2, 1, 1), block=(32, 1, 1))
    assert [one.kind for one in findings] == ["race"] * said
    assert all("(barrier.cluster.arrive.relaxed) in warp 0 of CTA (1, 0, 0)" in one.message for one in findings)


@pytest.mark.parametrize("wait", [".acquire.cta", ".acquire.cluster", ""])
@pytest.mark.parametrize("copies", [True, False])
def test_what_cp_async_of_the_own_cta_releases_where_a_peer_arrives_too(wait, copies):
    """Both CTAs arrive at the barrier of rank 0, whose threads wait for their own copies."""
    own = "cp.async.ca.shared.global [%r6+512], [%rd100], 4;"
    arrive = "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r3];"
    order = own + arrive if copies else arrive + own
    peer = ARRIVE.format(".release.cluster")
    findings = found(peer, order + WAIT.format(wait) + READ, count=64)
    assert [one.kind for one in findings] == ([] if copies else ["race"])


FILL = (
    "shl.b32 %r13, %r2, 4; add.u32 %r13, %r13, %r3; mov.b32 %r15, 0;"
    "st.shared.v4.b32 [%r13+512], {%r15, %r15, %r15, %r15};"
)
FENCES = "fence.proxy.async.shared::cta;"
ALLOCATE = "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r3+16], 32; ld.shared.b32 %r40, [%r3+16];"
FREE = (
    "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r40, 32;"
)
COPY = (
    f"mov.b64 %rd10, {1 << 46 | 8 << 32 | 8 << 16}; cvt.u64.u32 %rd11, %r3; shr.u64 %rd11, %rd11, 4;"
    "add.u64 %rd10, %rd10, %rd11; add.u64 %rd10, %rd10, 32; setp.eq.u32 %p2, %r2, 0;"
    "@%p2 tcgen05.cp.cta_group::2.32x128b.warpx4 [%r40], %rd10;"
    "@%p2 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [%r3+24];"
    "C: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3+24], 0; @!%p1 bra C;"
)


@pytest.mark.parametrize(
    ("fence", "scope", "kinds"),
    [(True, "", ["race"]), (True, ".release.cluster", []), (False, "", ["race"]),
     (False, ".release.cluster", ["proxy"])],
)  # fmt: skip
def test_the_tensor_core_of_a_peer_reads_what_its_threads_wrote(fence, scope, kinds):
    """PipelineAsyncUmma of CuTe DSL arrives without a scope; NVIDIA mended an example there (cutlass #3647)."""
    second = "setp.eq.u32 %p5, %r0, 0; @%p5 mbarrier.init.shared::cta.b64 [%r3+24], 1;"
    body = (
        INIT.format(count=32) + second + FILL + FENCES + GATHER + SECOND + ALLOCATE + ROLES
        + FILL + FENCES * fence + ARRIVE.format(scope) + "bra DONE; WAITS:" + WAIT.format("") + COPY
        + "DONE:" + STAY + FREE
    )  # fmt: skip
    findings, faults = findings_of(body, grid=(2, 1, 1), cluster=(2, 1, 1), block=(32, 1, 1))
    assert [one.kind for one in findings] + faults == kinds
    if fence and kinds:
        assert "its barrier belongs to CTA rank 0" in findings[0].message


def test_a_write_of_another_warp_that_is_passed_on():
    # Rank 1 has acquired what its second warp wrote, and arrives at rank 0.
    writes = "setp.eq.u32 %p5, %r1, 0; @%p5 bra FIRST;" + WRITE + "FIRST: bar.sync 0;"
    for arrive, racy in ((".release.cluster", False), ("", True)):
        body = (
            INIT.format(count=64) + GATHER + SECOND + ROLES + writes + ARRIVE.format(arrive) + "bra DONE; WAITS:"
            + WAIT.format("") + READ + "DONE:" + STAY
        )  # fmt: skip
        findings, _ = findings_of(body, grid=(2, 1, 1), cluster=(2, 1, 1))
        assert [one.kind for one in findings] == ["race"] * racy


@pytest.mark.parametrize(("arrive", "racy"), [("", False), (".release.cta", False), (".release.cluster", False)])
def test_a_read_before_an_arrive_at_a_peer_comes_before_its_write(arrive, racy):
    # CuTe DSL's consumers free a peer's stage in this way. Rank 1 reads its own memory, which rank 0 then overwrites.
    mine = "st.shared.b32 [%r6+512], %r0;" + STAY
    findings = found(READ + ARRIVE.format(arrive), WAIT.format("") + WRITE, before=mine)
    assert [one.kind for one in findings] == ["race"] * racy
    assert [one.kind for one in found(READ + ARRIVE.format(arrive), WRITE + WAIT.format(""), before=mine)] == ["race"]


@pytest.mark.parametrize("order", [".acquire.cta", ".relaxed.cta"])
def test_the_own_cta_arrives_at_the_same_barrier(order):
    acting = "st.shared.b32 [%r6+256], %r0; mbarrier.arrive.shared::cta.b64 _, [%r3];"
    behind = FENCE.format("cta") if "relaxed" in order else ""
    other = "xor.b32 %r21, %r5, 4; add.u32 %r21, %r21, %r3; ld.shared.b32 %r20, [%r21+256];"
    release = ARRIVE.format(".release.cluster")
    assert found(release, WAIT.format(order) + behind + other, count=64, acting=acting) == []


def test_a_copy_before_an_arrive_at_a_peer_is_complete():
    # complete_tx is a release at cluster scope.
    copy = (
        "setp.ne.u32 %p5, %r0, 0; add.u32 %r22, %r3, 8; add.u32 %r23, %r3, 512; @%p5 bra SENT;"
        "mbarrier.init.shared::cta.b64 [%r22], 1; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r22], 128;"
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r23], [%rd100], 128, [%r22];"
        "SENT: bar.warp.sync 0xffffffff; C: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r22], 0; @!%p1 bra C;"
    )
    assert found(copy + ARRIVE.format(""), WAIT.format("") + "ld.shared::cluster.b32 %r20, [%r11+512];") == []
