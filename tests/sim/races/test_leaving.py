"""CTAs of a cluster that end while others may still use their shared memory or their barriers."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.ptx_case import run_ptx
from tests.sim.races.programs import GATHER, MINE, PEER, REACH, SMEM, STAY, finding_kinds

INIT = (
    "setp.ne.u32 %p8, %r0, 0; @%p8 bra MADE; mbarrier.init.shared::cta.b64 [%r3], 64;"
    "fence.mbarrier_init.release.cluster; MADE:"
)
ARRIVE = (
    "xor.b32 %r10, %r4, 1; mapa.shared::cluster.u32 %r12, %r3, %r10;mbarrier.arrive{}.shared::cluster.b64 _, [%r12];"
)
ONLY = "setp.ne.u32 %p4, %r4, 0; @%p4 bra REACHED;{} REACHED:"
"""What CTA 0 alone does: it runs first here, so that CTA 1 is still there when it is reached."""
TAIL = "T: mbarrier.try_wait.parity{}.shared::cta.b64 %p1, [%r3], 0; @!%p1 bra T;"
ONE_TAIL = "setp.ne.u32 %p8, %r0, 0; @%p8 bra OUT;" + TAIL.format("") + "OUT:"
RELAXED = ".relaxed.cluster"
LEAVE = "barrier.cluster.arrive.relaxed; barrier.cluster.wait;"


def kinds(body: str, **kwargs: Any) -> list[str]:
    return finding_kinds(body, grid=(2, 1, 1), cluster=(2, 1, 1), **kwargs)


@pytest.mark.parametrize(
    ("end", "said"),
    [(STAY, []), (LEAVE, []), ("", ["race"]), ("bar.sync 0;", ["race"])],
    ids=["a cluster barrier", "a relaxed one", "nothing", "a barrier of the CTA"],
)
def test_a_store_to_a_peer_comes_before_its_end(end, said):
    assert kinds(PEER + GATHER + ONLY.format(REACH) + end) == said


@pytest.mark.parametrize(
    ("arrive", "end", "said"),
    [("", TAIL.format(""), []), ("", ONE_TAIL, []), ("", "", ["race"]),
     (RELAXED, TAIL.format(""), []), ("", TAIL.format(RELAXED), []), (RELAXED, TAIL.format(RELAXED), []),
     (RELAXED, "", ["race"])],
    ids=["a wait", "a wait of one thread", "no wait", "relaxed arrive", "relaxed wait", "both relaxed",
         "relaxed arrive, no wait"],
)  # fmt: skip
def test_an_arrive_at_a_peer_comes_before_its_end(arrive, end, said):
    reach = ONLY.format(ARRIVE.format(arrive) + "bra LEFT;")
    assert kinds(INIT + GATHER + reach + end + "LEFT:") == said
    assert kinds(INIT + GATHER + ONLY.format(ARRIVE.format(arrive)) + STAY) == []


SEND = (
    "setp.ne.u32 %p5, %r0, 0; mapa.shared::cluster.u32 %r12, %r3, 1; add.u32 %r13, %r3, 512; @%p5 bra SENT;"
    "mapa.shared::cluster.u32 %r14, %r13, 1; mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r12],"
    "256; cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r14], [%r13], 256, [%r12]; SENT:"
)
"""What CTA 0 sends of its memory to CTA 1."""
CAST = (
    "mov.u16 %rs1, 3; setp.ne.u32 %p5, %r0, 0; add.u32 %r13, %r3, 512; @%p5 bra READY;"
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256; READY: @%p5 bra SENT; setp.ne.u32 %p6, %r4, 0;"
    "@%p6 bra SENT; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r13],"
    "[%rd100], 256, [%r3], %rs1; SENT:"
)
"""A copy of CTA 0 into both CTAs."""


@pytest.mark.parametrize(("end", "said"), [(STAY, []), ("", ["race"])], ids=["a cluster barrier", "nothing"])
def test_a_copy_to_a_peer_comes_before_the_end_of_its_source(end, said):
    fill = "shl.b32 %r5, %r0, 2; add.u32 %r7, %r3, %r5; st.shared.b32 [%r7+512], %r0; fence.proxy.async; bar.sync 0;"
    one = INIT.replace("64;", "1;", 1)
    rest = "setp.eq.u32 %p7, %r4, 0; @%p7 bra LEFT;" + TAIL.format("") + "LEFT:"
    assert kinds(one + fill + STAY + ONLY.format(SEND) + rest + end) == said


@pytest.mark.parametrize("rank", [0, 1])
def test_a_multicast_copy_comes_before_the_end_of_each_target(rank):
    one = INIT.replace("64;", "1;", 1)
    waits = f"setp.eq.u32 %p7, %r4, {rank}; @%p7 bra LEFT;" + TAIL.format("") + "LEFT:"
    assert kinds(one + GATHER + CAST + TAIL.format("")) == []
    assert "in-flight" in kinds(one + GATHER + CAST + waits)


def test_in_another_order_the_cta_has_ended():
    assert kinds(INIT + GATHER + ARRIVE.format("")) == ["race", "cluster"]


def test_the_own_cta_need_not_wait_for_itself():
    assert finding_kinds(INIT + "bar.sync 0; mbarrier.arrive.shared::cta.b64 _, [%r3];") == []


def test_what_is_told():
    machine = Machine(model=for_arch("sm_100a"))
    machine.monitor = Detector()
    ran = run_ptx(
        SMEM + MINE + INIT + GATHER + ONLY.format(ARRIVE.format("")), machine=machine, shared=8192, block=(64, 1, 1),
        grid=(2, 1, 1), cluster=(2, 1, 1), processes=1,
    )  # fmt: skip
    (finding,) = ran.grid.findings
    assert "CTA (1, 0, 0) (rank 1 of its cluster) may end before" in finding.message
    assert "mbarrier.arrive" in finding.message
    assert "of CTA (0, 0, 0)" in finding.message
    assert "in every stage" in finding.hint
