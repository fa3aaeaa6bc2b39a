"""Clusters: mapa, distributed shared memory, remote arrivals, asynchronous stores, barrier.cluster."""

from __future__ import annotations

from collections.abc import Iterator

from tests.silicon.cases.blocks import SEED, by_thread, flag
from tests.silicon.model import Case

__all__ = ["cases"]

MEET = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
PEER = """
mov.u32 %r90, %cluster_ctarank; mov.u32 %r91, %cluster_nctarank; add.u32 %r92, %r90, 1; rem.u32 %r92, %r92, %r91;
shl.b32 %r93, %r0, 2; add.u32 %r93, %r93, %r99;
mapa.shared::cluster.u32 %r94, %r93, %r92; mapa.shared::cluster.u32 %r95, %r99, %r92;
"""
"""%r90 the rank, %r92 the next; %r93 the thread's word here, %r94 there; %r95 shared memory there."""


def cases() -> Iterator[Case]:
    for size in (1, 2, 4):
        yield _ranks(size)
    yield _grid_of_clusters()
    for size in (2, 4):
        yield _neighbours(size)
        yield _remote_arrivals(size)
    yield _atomics()
    yield _asynchronous_stores()
    yield _barriers()


def _shape(size: int) -> dict[str, tuple[int, int, int]]:
    return {"cluster": (size, 1, 1)}


def _ranks(size: int) -> Case:
    """What the special registers say; ``getctarank`` of a mapped address."""
    names = (
        "cluster_ctarank", "cluster_nctarank", "clusterid.x", "nclusterid.x", "cluster_ctaid.x", "cluster_ctaid.y",
        "cluster_nctaid.x", "cluster_nctaid.z", "ctaid.x", "nctaid.x",
    )  # fmt: skip
    body = PEER + "".join(f"mov.u32 %r{10 + i}, %{name};\n" for i, name in enumerate(names))
    body += "getctarank.shared::cluster.u32 %r20, %r95; getctarank.shared::cluster.u32 %r21, %r99;\n"
    body += "mov.pred %p5, %is_explicit_cluster;\n" + flag("%r22", "%p5")
    body += "cvt.u64.u32 %rd1, %r95; cvta.shared::cluster.u64 %rd1, %rd1; getctarank.u64 %r23, %rd1;\n"
    body += "isspacep.shared::cluster %p6, %rd1; isspacep.shared::cta %p7, %rd1;\n" + flag("%r24", "%p6")
    body += flag("%r25", "%p7") + MEET
    registers = {name: f"%r{10 + i}" for i, name in enumerate(names)}
    registers |= {f"other {i}": f"%r{20 + i}" for i in range(6)}
    return by_thread(f"clusters.ranks.{size}", body, registers, ctas=4, **_shape(size))


def _grid_of_clusters() -> Case:
    names = [
        "clusterid.x", "clusterid.y", "nclusterid.x", "nclusterid.y", "cluster_ctaid.x", "cluster_ctaid.y",
        "cluster_nctaid.x", "cluster_nctaid.y", "cluster_ctarank", "cluster_nctarank",
    ]  # fmt: skip
    body = "mov.u32 %r2, %ctaid.y; mov.u32 %r3, %nctaid.x; mov.u32 %r4, %ctaid.x; mad.lo.u32 %r4, %r2, %r3, %r4;\n"
    body += "mad.lo.u32 %r4, %r4, 32, %r0; mul.wide.u32 %rd98, %r4, 4; add.u64 %rd99, %rd98, %rd100;\n"
    body += "".join(f"mov.u32 %r{10 + i}, %{name};\n" for i, name in enumerate(names))
    registers = {name: f"%r{10 + i}" for i, name in enumerate(names)}
    made = by_thread("clusters.ranks.2x2", body, registers, ctas=16, cluster=(2, 2, 1))
    object.__setattr__(made, "grid", (4, 4, 1))
    return made


def _neighbours(size: int) -> Case:
    """Every CTA reads the next one's words, then writes there."""
    body = PEER + SEED + "st.shared.b32 [%r93], %r1; st.shared.b32 [%r93+128], %r1;\n" + MEET
    body += "ld.shared::cluster.b32 %r10, [%r94];\ncvt.u64.u32 %rd1, %r94; cvta.shared::cluster.u64 %rd1, %rd1;\n"
    body += "ld.b32 %r11, [%rd1];\n" + MEET
    body += "mad.lo.u32 %r12, %r10, 3, %r90; st.shared::cluster.b32 [%r94], %r12; st.b32 [%rd1+128], %r0;\n" + MEET
    body += "ld.shared.b32 %r13, [%r93]; ld.shared.b32 %r14, [%r93+128];\n"
    registers = {"read": "%r10", "read generically": "%r11", "written": "%r13", "written generically": "%r14"}
    return by_thread(f"clusters.neighbours.{size}", body, registers, ctas=8, **_shape(size))


def _remote_arrivals(size: int) -> Case:
    """All threads of all CTAs arrive at a barrier of rank 0, which counts what they wrote."""
    body = PEER + SEED + f"@%p0 mbarrier.init.shared.b64 [%r99+512], {32 * size};\n"
    body += "fence.mbarrier_init.release.cluster;\n" + MEET
    body += """
mov.u32 %r2, 0; mad.lo.u32 %r3, %r90, 32, %r0; shl.b32 %r3, %r3, 2; add.u32 %r3, %r3, %r99;
mapa.shared::cluster.u32 %r4, %r3, %r2; add.u32 %r5, %r99, 512; mapa.shared::cluster.u32 %r6, %r5, %r2;
st.shared::cluster.b32 [%r4], %r1;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];
setp.ne.u32 %p1, %r90, 0; mov.u32 %r10, 0; @%p1 bra END;
W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r5], 0;
@!%p2 bra W;
""" + "".join(f"ld.shared.b32 %r7, [%r93+{128 * i}]; mad.lo.u32 %r10, %r10, 31, %r7;\n" for i in range(size))
    body += "END:\n" + MEET
    return by_thread(f"clusters.arrivals.{size}", body, {"sum": "%r10"}, ctas=2 * size, **_shape(size))


def _atomics() -> Case:
    body = PEER + "@%p0 st.shared.v2.b32 [%r99], {%r90, %r90}; @%p0 st.shared.b64 [%r99+8], 0;\n" + MEET
    body += "atom.shared::cluster.add.u32 %r2, [%r95], %r0; red.shared::cluster.max.u32 [%r95+4], %r0;\n"
    body += "mov.b64 %rd2, 0x100000001; red.shared::cluster.add.u64 [%r95+8], %rd2;\n" + MEET
    body += "ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r99];\n"
    return by_thread("clusters.atomics", body, ["%r10", "%r11", "%r12", "%r13"], ctas=4, **_shape(2))


def _asynchronous_stores() -> Case:
    """``st.async`` in all its sizes, counted at the other's barrier; ``red.async``."""
    body = PEER + SEED + "@%p0 mbarrier.init.shared.b64 [%r99+2048], 1;\n"
    body += "mov.u32 %r2, 7; st.shared.b32 [%r93+1536], %r2; @%p0 mbarrier.init.shared.b64 [%r99+2056], 1;\n"
    body += "fence.mbarrier_init.release.cluster;\n" + MEET
    body += f"@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r99+2048], {32 * (4 + 8 + 8 + 16)};\n"
    body += f"@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r99+2056], {32 * 4};\n"
    body += """
shl.b32 %r3, %r0, 3; add.u32 %r3, %r3, %r95; shl.b32 %r4, %r0, 4; add.u32 %r4, %r4, %r95; add.u32 %r5, %r95, 2048;
add.u32 %r6, %r1, 1; add.u32 %r7, %r1, 2; add.u32 %r8, %r1, 3; mov.b64 %rd2, {%r1, %r8}; add.u32 %r9, %r95, 2056;
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r94], %r1, [%r5];
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%r3+256], %rd2, [%r5];
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r3+512], {%r6, %r7}, [%r5];
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r4+1024], {%r1, %r6, %r7, %r8}, [%r5];
red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r94+1536], %r0, [%r9];
W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r99+2048], 0;
@!%p2 bra W;
V: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r99+2056], 0;
@!%p2 bra V;
shl.b32 %r3, %r0, 3; add.u32 %r3, %r3, %r99; shl.b32 %r4, %r0, 4; add.u32 %r4, %r4, %r99;
ld.shared.b32 %r10, [%r93]; ld.shared.v2.b32 {%r11, %r12}, [%r3+256]; ld.shared.v2.b32 {%r13, %r14}, [%r3+512];
ld.shared.v4.b32 {%r15, %r16, %r17, %r18}, [%r4+1024]; ld.shared.b32 %r19, [%r93+1536];
"""
    return by_thread(
        "clusters.st_async", body + MEET, [f"%r{i}" for i in range(10, 20)], ctas=4, shared=2064, **_shape(2)
    )


def _barriers() -> Case:
    """Arrivals and waits in every spelling, work between them, many times over."""
    body = PEER + "mov.u32 %r2, 0; mov.u32 %r10, 0; st.shared.b32 [%r93], %r0;\n"
    pairs = (
        ("barrier.cluster.arrive.aligned;", "barrier.cluster.wait.aligned;"),
        ("barrier.cluster.arrive.release;", "barrier.cluster.wait.acquire;"),
        ("fence.acq_rel.cluster;\nbarrier.cluster.arrive.relaxed.aligned;", "barrier.cluster.wait.aligned;"),
        ("barrier.cluster.arrive;", "barrier.cluster.wait;"),
    )
    for arrive, wait in pairs:
        body += f"{arrive}\nmul.lo.u32 %r10, %r10, 31;\n{wait}\nld.shared::cluster.b32 %r3, [%r94];\n"
        body += f"add.u32 %r10, %r10, %r3;\n{arrive}\n{wait}\nadd.u32 %r3, %r3, %r90; st.shared.b32 [%r93], %r3;\n"
    return by_thread("clusters.barriers", body + MEET, ["%r10"], ctas=4, **_shape(4))
