"""Mutants of ``kernels/nvfp4_group_gemm/sm90.py``."""

from __future__ import annotations

from tests.sim.mutants.mutate import Edit, Listing, Mutation, Site
from tests.sim.mutants.outcome import Equivalent, Found, Hidden, Mutants, Wrong


def waits(k: Listing, barrier: str) -> list[Site]:
    return k.all("mbarrier.try_wait", source=f"mbarrier_wait({barrier}")


def pass_all(k: Listing, barrier: str) -> list[Edit]:
    return [site.instead("mov.pred P1, -1;") for site in waits(k, barrier)]


def bulk(k: Listing) -> Site:
    return k.one("cp.async.bulk")


def inits(k: Listing, barrier: str, count: str) -> list[Edit]:
    return [site.set(1, count) for site in k.all("mbarrier.init", source=barrier)]


sync = Mutants("synchronisation", kernel="group_gemm_kernel")
sync(
    "full_w counts one arrival more",
    lambda k: inits(k, "full_w", "65"),
    Found("deadlock", "cute.arch.mbarrier_wait(full_w"),
)
sync("full_w counts one arrival less", lambda k: inits(k, "full_w", "63"), Found("mbarrier", "arrive_when_copied("))
sync(
    "empty_w counts one warp less",
    lambda k: inits(k, "empty_w", "7"),
    Hidden(
        "The stage is released one warp early and each round carries an arrival over, but the last warp reads its "
        "registers before anything is overwritten in these orders."
    ),
    Hidden(
        "The stage is released one warp early and each round carries an arrival over, but the last warp reads its "
        "registers before anything is overwritten in these orders."
    ),
    race=Found("race", "copy_async_16(target"),
)
sync(
    "empty_t counts the warps of one CTA",
    lambda k: inits(k, "empty_t", "8"),
    Found("deadlock", "cute.arch.mbarrier_wait(empty_t"),
    Found("deadlock", "cute.arch.mbarrier_wait(full_t", ("has left its loop",)),
)
sync("full_t counts both CTAs", lambda k: inits(k, "full_t", "2"), Found("deadlock", "cute.arch.mbarrier_wait(full_t"))
sync(
    "no wait for weights",
    lambda k: pass_all(k, "full_w"),
    Hidden("The consumers wait for the producers' registers first, and by then eager cp.async is done."),
    Found("in-flight", "scale_words = [load_shared("),
    race=Found("race", "scale_words = [load_shared("),
)
sync("no wait for tokens", lambda k: pass_all(k, "full_t"), Found("in-flight", "target"))
sync(
    "no wait for an empty stage of weights",
    lambda k: pass_all(k, "empty_w"),
    Found("deadlock", "cute.arch.mbarrier_wait(full_w"),
    Found("in-flight", "scale_words = [load_shared("),
    race=Found("race", "copy_async_16(target"),
)
sync(
    "no wait for an empty stage of tokens",
    lambda k: pass_all(k, "empty_t"),
    Found("mbarrier", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
sync(
    "expect_tx of one row less",
    lambda k: k.one("mbarrier.arrive.expect_tx").compute(2, "sub.s32 #, $, 128;", kind="r"),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
sync(
    "expect_tx of the own CTA's share only",
    lambda k: k.one("mbarrier.arrive.expect_tx").compute(2, "shr.u32 #, $, 1;", kind="r"),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
    race=Found("race", "target"),
)
sync(
    "weights do not arrive when copied",
    lambda k: k.one("cp.async.mbarrier.arrive.noinc").drop(),
    Found("deadlock", "cute.arch.mbarrier_wait(empty_t"),
)
sync(
    "weights arrive at once",
    lambda k: k.one("cp.async.mbarrier.arrive.noinc").instead(
        "mbarrier.arrive.shared::cta.b64 _, " + k.one("cp.async.mbarrier.arrive.noinc").operands[0] + ";"
    ),
    Hidden("Eager cp.async is done when it is issued."),
    Found("in-flight", "scale_words = [load_shared("),
    race=Found("race", "scale_words = [load_shared("),
)
sync(
    "a stage of tokens is given back to the own CTA only",
    lambda k: [site.set(2, "0") for site in k.all("mapa")],
    Found("deadlock", "cute.arch.mbarrier_wait(empty_t"),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar", ("another CTA",)),
)
sync("no wgmma.fence", lambda k: [site.drop() for site in k.all("wgmma.fence")], Found("wgmma", "cute.gemm("))
sync(
    "no wgmma.commit_group",
    lambda k: [site.drop() for site in k.all("wgmma.commit_group")],
    Found("wgmma", "pair = pack_f16x2(acc"),
)
sync(
    "no wgmma.wait_group",
    lambda k: [site.drop() for site in k.all("wgmma.wait_group")],
    Found("wgmma", "pair = pack_f16x2(acc"),
)
sync(
    "one more wgmma may be under way",
    lambda k: [site.set(0, "2") for site in k.all("wgmma.wait_group", having=" 1")],
    Hidden("Eager wgmma is done when it is issued, so the fragments may be overwritten."),
    Wrong("columns 0-63"),
    race=Found("race", "target"),
)
sync(
    "the last wgmma is not waited for",
    lambda k: [site.set(0, "1") for site in k.all("wgmma.wait_group", having=" 0")],
    Found("wgmma", "pair = pack_f16x2(acc"),
)
sync(
    "no cluster barrier after the prologue",
    lambda k: [k.one("barrier.cluster.arrive", 0).drop(), k.one("barrier.cluster.wait", 0).drop()],
    Found("uninitialised", "target"),
)
sync(
    "no cluster barrier at the end",
    lambda k: [site.drop() for name in ("barrier.cluster.arrive", "barrier.cluster.wait") for site in k.all(name)[1:]],
    Found("cluster", "arrive_at("),
)
sync(
    "no wait at the first cluster barrier",
    lambda k: k.one("barrier.cluster.wait", 0).drop(),
    Found("uninitialised", "target"),
)
sync(
    "no griddepcontrol.wait",
    lambda k: k.one("griddepcontrol.wait").drop(),
    Found("griddepcontrol", ""),
)
sync(
    "no fence.proxy.async behind it",
    lambda k: k.one("fence.proxy.async").drop(),
    Equivalent(
        "The bytes were written by an earlier launch, which is complete; whether griddepcontrol.wait alone makes "
        "generic writes of another grid visible to the async proxy the ISA does not say, and the analysis starts "
        "anew with each launch.",
        ("fence.proxy.async.global",),
    ),
)
sync(
    "the producers' registers are not released",
    lambda k: k.one("setmaxnreg.dec").drop(),
    Found("deadlock", "cute.arch.setmaxregister_increase("),
)
sync(
    "more registers than there are",
    lambda k: k.one("setmaxnreg.inc").set(0, "240"),
    Found("deadlock", "cute.arch.setmaxregister_increase("),
)

address = Mutants("address", kernel="group_gemm_kernel")
address(
    "tokens to the own CTA only",
    lambda k: bulk(k).set(4, "1"),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
address(
    "tokens of a row further",
    lambda k: bulk(k).compute(1, "add.s64 #, $, 128;", kind="d"),
    Found("out-of-bounds", "target"),
)
address("tokens 16 bytes further in the stage", lambda k: bulk(k).compute(0, "add.s32 #, $, 16;", kind="r"), Wrong(""))
address(
    "tokens signal the next stage",
    lambda k: bulk(k).compute(3, "add.s32 #, $, 8;", kind="r"),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
address(
    "size of the copy is not a multiple of 16",
    lambda k: bulk(k).compute(2, "sub.s32 #, $, 8;", kind="r"),
    Found("bulk-copy", "target"),
)
address(
    "a chunk of weights 16 bytes further in the stage",
    lambda k: k.one("cp.async.cg", 3).compute(0, "add.s32 #, $, 16;", kind="r"),
    Found("uninitialised", "packed = [load_shared_4("),
)
address(
    "a chunk of weights from 8 bytes further",
    lambda k: k.one("cp.async.cg", 3).compute(1, "add.s64 #, $, 8;", kind="d"),
    Found("misaligned", "copy_async_16(target"),
)
address(
    "scales of weights from the next k-block",
    lambda k: k.one("cp.async.cg", 16).compute(1, "add.s64 #, $, 512;", kind="d"),
    Wrong(""),
)
address(
    "weights are read from the next row",
    lambda k: k.all("ld.shared.v4")[0].compute(1, "add.s32 #, $, 128;", kind="r"),
    Wrong("columns 0-126 (64 of them)"),
)
address(
    "C one row further",
    lambda k: k.all("st.global.b32")[2].compute(0, "add.s64 #, $, 256;", kind="d"),
    Found("never-written", ""),
)

descriptor = Mutants("descriptor", kernel="group_gemm_kernel")


def tokens_desc(mask: int) -> Mutation:
    """Bits of B's descriptor flipped, in the first wgmma: the operand behind the accumulator and A's registers."""
    return lambda k: k.one("wgmma.mma_async", 0).compute(2, f"xor.b64 #, $, {mask};", kind="d")


descriptor("tokens of wgmma start 32 bytes further", tokens_desc(2), Wrong(""))
descriptor("SBO of the tokens is 512", tokens_desc((64 ^ 32) << 32), Wrong("rows 8-"))
descriptor(
    "swizzle of the tokens is that of 64 bytes",
    tokens_desc((1 ^ 2) << 62),
    Wrong("rows 1-"),
)
descriptor("swizzle of the tokens is none", tokens_desc(1 << 62), Wrong("rows 1-"))
descriptor(
    "LBO of the tokens is 16",
    tokens_desc(1 << 16),
    Equivalent(
        "A K-major operand with a swizzle whose tile is one swizzle row wide has no second column of atoms: LBO is "
        "not used (PTX ISA, matrix descriptor)."
    ),
)

predicate = Mutants("predicate", kernel="group_gemm_kernel")
predicate("wgmma starts the sum anew", lambda k: k.one("wgmma.mma_async", 5).set(3, "0"), Wrong(""))
predicate(
    "C is stored without a bound",
    lambda k: [site.unguard() for site in k.all("st.global.b32")],
    Found("out-of-bounds", "pair = pack_f16x2(acc"),
)
predicate(
    "tokens are loaded by all lanes",
    lambda k: k.previous(k.one("mbarrier.arrive.expect_tx"), "bra").drop(),
    Found("mbarrier", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
predicate(
    "the stage of weights is given back by all lanes",
    lambda k: [k.previous(site, "bra").drop() for site in k.all("mbarrier.arrive.shared.b64")],
    Found("mbarrier", "cute.arch.mbarrier_arrive(empty_w"),
)


count = Mutants("count", kernel="group_gemm_kernel")
count(
    "two stages of weights are written, three read",
    lambda k: k.following(k.one("cp.async.mbarrier.arrive.noinc"), "setp.eq").set(2, "2"),
    Found("deadlock", "cute.arch.mbarrier_wait(empty_t"),
)
count(
    "four of five stages of tokens are written",
    lambda k: k.following(bulk(k), "setp.eq").set(2, "4"),
    Found("deadlock", "cute.arch.mbarrier_wait(empty_t"),
)
count(
    "a chunk of weights is not copied",
    lambda k: k.one("cp.async.cg", 7).drop(),
    Found("uninitialised", "packed = [load_shared_4("),
)
count(
    "scales of weights are not copied",
    lambda k: k.one("cp.async.cg", 17).drop(),
    Found("uninitialised", "scale_words = [load_shared("),
)
count("a wgmma is missing", lambda k: k.one("wgmma.mma_async", 2).drop(), Wrong(""))
count(
    "the dequantising kernel leaves a row out",
    lambda k: k.one("st.global.v4", 1).drop(),
    Wrong("every output"),
    kernel="dequantise_kernel",
)

arithmetic = Mutants("arithmetic", kernel="group_gemm_kernel")
arithmetic("C is truncated", lambda k: [s.opcode("cvt.rn", "cvt.rz") for s in k.all("cvt.rn.f16x2.f32")], Wrong(""))
arithmetic(
    "even and odd elements exchanged",
    lambda k: k.all("lop3")[0].swap(1, 2),
    Wrong("columns 0-126 (64 of them)"),
)
arithmetic("scale of the other k-block", lambda k: k.all("prmt")[0].set(3, "0x51"), Wrong(""))

MUTANTS = tuple(one for part in (sync, address, descriptor, predicate, count, arithmetic) for one in part.made)
