from __future__ import annotations

import numpy as np
import pytest

from tests.sim.sync.harness import clean, faults, results, run

PAIR = {"grid": (2, 1, 1), "cluster": (2, 1, 1)}
QUAD = {"grid": (4, 2, 1), "cluster": (2, 2, 1)}


@pytest.mark.parametrize("arrive", ["", ".release", ".relaxed", ".aligned", ".release.aligned"])
@pytest.mark.parametrize("wait", ["", ".acquire", ".aligned", ".acquire.aligned"])
def test_a_cta_sees_what_its_peers_wrote_before(arrive, wait):
    body = f"""
mov.u32 %r1, %cluster_ctarank;
add.u32 %r2, %r1, 100;
@%p0 st.shared.b32 [%r99], %r2;
barrier.cluster.arrive{arrive};
barrier.cluster.wait{wait};
xor.b32 %r3, %r1, 1;
mapa.shared::cluster.u32 %r4, %r99, %r3;
ld.shared::cluster.b32 %r5, [%r4];
mov.u32 %r6, %ctaid.x;
barrier.cluster.arrive{arrive};
barrier.cluster.wait{wait};
mul.wide.u32 %rd1, %r6, 4; add.u64 %rd1, %rd1, %rd100;
@%p0 st.global.b32 [%rd1], %r5;
"""
    ran = clean(body, threads=64, buffers={"out": np.zeros(2, np.uint32)}, **PAIR)
    assert list(ran["out"]) == [101, 100]
    assert ran.grid.counters["barrier.cluster.completions"] == 2


def test_every_cluster_has_its_own_barrier():
    ran = clean("barrier.cluster.arrive;\nbarrier.cluster.wait;\n" * 3, threads=96, **QUAD)
    assert ran.grid.counters["barrier.cluster.completions"] == 6


def test_threads_that_exit_release_the_barrier():
    gone = "mov.u32 %r1, %cluster_ctarank; setp.eq.u32 %p1, %r1, 1;\n@%p1 exit;\n"
    clean(gone + "barrier.cluster.arrive;\nbarrier.cluster.wait;", threads=64, **PAIR)
    some = "setp.ge.u32 %p1, %r0, 40;\n@%p1 exit;\n"
    clean(some + "barrier.cluster.arrive;\nbarrier.cluster.wait;", threads=64, **PAIR)
    late = """
setp.lt.u32 %p1, %r0, 16;
@%p1 bra WAIT;
mov.u32 %r1, 0;
L: add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 50; @%p2 bra L;
exit;
WAIT: barrier.cluster.arrive;
barrier.cluster.wait;
"""
    clean(late, **PAIR)


def test_missing_warps_are_named():
    body = """
setp.lt.u32 %p1, %r0, 32;
@%p1 barrier.cluster.arrive;
@%p1 barrier.cluster.wait;
bar.sync 1, 64;
"""
    fault = faults("deadlock", "no warp can continue", body, threads=64, **PAIR)
    assert any("2 of 4 warps have not arrived: rank 0 warp 1, rank 1 warp 1" in note for note in fault.notes)


RULES = {
    "arrive twice": (
        "cluster",
        "arrived .* before and has not waited",
        "barrier.cluster.arrive;\nbarrier.cluster.arrive;",
    ),
    "arrive again after completion": (
        "cluster",
        "arrived .* before and has not waited",
        "barrier.cluster.arrive;\nbarrier.cluster.wait;\nbarrier.cluster.arrive;\nbarrier.cluster.arrive;",
    ),
    "wait alone": ("cluster", "has not arrived at it", "barrier.cluster.wait;"),
    "aligned by some": ("divergence", "lanes 0x00000001 execute it", "@%p0 barrier.cluster.arrive.aligned;"),
    "no such rank": (
        "cluster",
        "rank 2 of a cluster of 2",
        "mapa.shared::cluster.u32 %r1, %r99, 2;\nst.shared::cluster.b32 [%r1], %r0;",
    ),
    "no rank at all": (
        "cluster",
        "rank 255 of a cluster of 2",
        "mapa.shared::cluster.u32 %r1, %r99, 70000;\nst.shared::cluster.b32 [%r1], %r0;",
    ),
    "no shared address": ("out-of-bounds", "not an address of shared memory", "mapa.u64 %rd1, 4096, 1;"),
    "rank of nowhere": ("cluster", "is in CTA rank 5", "getctarank.shared::cluster.u32 %r1, 0x05000400;"),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules(rule):
    kind, words, body = RULES[rule]
    faults(kind, words, body, **PAIR)


def test_mapa_and_getctarank_in_all_forms():
    body = """
and.b32 %r1, %r0, 1;
mapa.shared::cluster.u32 %r2, mine+8, %r1;
mapa.shared::cluster.u32 %r3, mine, 1;
cvt.u64.u32 %rd1, %r3;
mapa.shared::cluster.u64 %rd2, %rd1, 0;
cvta.shared::cluster.u64 %rd3, %rd1;
mapa.u64 %rd4, %rd3, %r1;
getctarank.shared::cluster.u32 %r4, %r2;
getctarank.shared::cluster.u64 %r5, %rd2;
getctarank.u64 %r6, %rd4;
cvta.to.shared::cluster.u64 %rd5, %rd4;
cvt.u32.u64 %r7, %rd5;
cvt.u32.u64 %r8, %rd2;
mov.u32 %r9, mine;
mov.u32 %r10, %cluster_ctarank; setp.eq.u32 %p1, %r10, 1;
@%p1 exit;
"""
    names = [f"%r{number}" for number in range(2, 10)]
    variables = ".shared .align 8 .b8 mine[64];"
    mine8, one, of_mine8, of_zero, of_both, both, zero, mine = (
        [int(value) for value in column] for column in results(body, *names, globals_=variables, **PAIR)
    )
    base = mine[0]
    odd = [lane & 1 for lane in range(32)]
    assert mine8 == [base + 8 + (rank << 24) for rank in odd]
    assert one == [base + (1 << 24)] * 32
    assert of_mine8 == of_both == odd
    assert of_zero == [0] * 32
    assert both == [base + (rank << 24) for rank in odd]
    assert zero == mine


def test_addresses_for_every_lane_are_no_harm_while_only_the_ranks_that_exist_are_used():
    body = """
@%p0 mbarrier.init.shared.b64 [%r99], 2;
barrier.cluster.arrive; barrier.cluster.wait;
mapa.shared::cluster.u32 %r1, %r99, %r0;
setp.lt.u32 %p1, %r0, {ranks};
@%p1 mbarrier.arrive.shared::cluster.b64 _, [%r1];
W: mbarrier.try_wait.parity.shared.b64 %p2, [%r99], 0;
@!%p2 bra W;
barrier.cluster.arrive; barrier.cluster.wait;
"""
    assert clean(body.format(ranks=2), **PAIR).grid.counters["mbarrier.phases"] == 2
    faults("cluster", "rank 2 of a cluster of 2", body.format(ranks=3), **PAIR)


def test_one_cta_is_a_cluster_of_one():
    run("barrier.cluster.arrive;\nbarrier.cluster.wait;\nmapa.shared::cluster.u32 %r1, %r99, 0;")


@pytest.mark.parametrize(("shape", "explicit"), [(PAIR, 1), ({}, 0)])
def test_whether_a_cluster_was_asked_for_is_a_predicate(shape, explicit):
    body = """
mov.pred %p1, %is_explicit_cluster;
selp.u32 %r5, 1, 0, %p1;
@%p0 st.global.b32 [%rd100], %r5;
"""
    ran = clean(body, threads=32, buffers={"out": np.full(1, 7, np.uint32)}, **shape)
    assert list(ran["out"]) == [explicit]
