"""Mutants of ``kernels/nvfp4_group_gemm/sm90.py``."""

from __future__ import annotations

from tests.sim.mutants.mutate import Edit, Listing, Mutation, Site
from tests.sim.mutants.outcome import Equivalent, Found, Hidden, Mutants, Wrong


def waits(k: Listing, barrier: str) -> list[Site]:
    return k.all("mbarrier.try_wait", source=f"mbarrier_wait({barrier}")


def pass_all(k: Listing, barrier: str) -> list[Edit]:
    return [site.instead("mov.pred P1, -1;") for site in waits(k, barrier)]


def tokens(k: Listing) -> Site:
    """The copy of tokens."""
    return k.one("cp.async.bulk.shared::cluster", having="multicast")


def scales(k: Listing) -> Site:
    """The copy of the weights' scales."""
    return k.one("cp.async.bulk.shared::cluster", 1)


def weights(k: Listing) -> Site:
    """The copy of weights."""
    return k.one("cp.async.bulk.tensor")


def expected(k: Listing, index: int) -> Site:
    """What is expected of tokens, 0, or weights, 1."""
    return k.one("mbarrier.arrive.expect_tx", index)


def inits(k: Listing, barrier: str, count: str) -> list[Edit]:
    return [site.set(1, count) for site in k.all("mbarrier.init", source=barrier)]


sync = Mutants("synchronisation", kernel="group_gemm_kernel")
sync(
    "full_w counts one arrival more",
    lambda k: inits(k, "full_w", "2"),
    Found("deadlock", "cute.arch.mbarrier_wait(full_w"),
)
sync(
    "weights are not expected",
    lambda k: expected(k, 1).instead("mbarrier.arrive.shared::cta.b64 _, " + expected(k, 1).operands[1] + ";"),
    Found("deadlock", "copy_bulk("),
)
sync(
    "expect_tx of a row of weights less",
    lambda k: expected(k, 1).compute(2, "sub.s32 #, $, 128;", kind="r"),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar, WEIGHT_STAGE"),
)
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
    race=Found("race", "copy_tile(target"),
)
sync(
    "empty_t counts the warps of one CTA",
    lambda k: inits(k, "empty_t", "8"),
    Found("deadlock", "cute.arch.mbarrier_wait(full_t", ("has filled the stage again before it was read",)),
)
sync("full_t counts both CTAs", lambda k: inits(k, "full_t", "2"), Found("deadlock", "cute.arch.mbarrier_wait(full_t"))
sync(
    "no wait for weights",
    lambda k: pass_all(k, "full_w"),
    Found("in-flight", "copy_bulk("),
    Found("in-flight", "[load_shared"),
    race=Found("race", "[load_shared"),
)
sync("no wait for tokens", lambda k: pass_all(k, "full_t"), Found("in-flight", "target"))
sync(
    "no wait for an empty stage of weights",
    lambda k: pass_all(k, "empty_w"),
    Found("deadlock", "cute.arch.mbarrier_wait(full_w"),
    Found("mbarrier", "cute.arch.mbarrier_arrive_and_expect_tx(mbar, WEIGHT_STAGE"),
    race=Found("race", "copy_tile(target"),
)
sync(
    "no wait for an empty stage of tokens",
    lambda k: pass_all(k, "empty_t"),
    Found("mbarrier", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
sync(
    "expect_tx of one row less",
    lambda k: expected(k, 0).compute(2, "sub.s32 #, $, 128;", kind="r"),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
sync(
    "expect_tx of the own CTA's share only",
    lambda k: expected(k, 0).compute(2, "shr.u32 #, $, 1;", kind="r"),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
    race=Found("race", "cute.gemm("),
)
sync(
    "weights signal the next stage",
    lambda k: weights(k).compute(2, "add.s32 #, $, 8;", kind="r"),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar, WEIGHT_STAGE"),
)
sync(
    "a stage of tokens is given back to the own CTA only",
    lambda k: [site.set(2, "0") for site in k.all("mapa")],
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
    lambda k: [site.drop() for name in ("barrier.cluster.arrive", "barrier.cluster.wait") for site in k.all(name)],
    Found("uninitialised", "target"),
)
sync(
    "no fence.proxy.async before the weights are freed",
    lambda k: [site.drop() for site in k.all("fence.proxy.async.shared::cta")],
    Hidden("A load has read when it is executed here; on an H200 the next weights overwrite some that wait."),
    Hidden("A load has read when it is executed here; on an H200 the next weights overwrite some that wait."),
    race=Found("proxy", "copy_tile(target"),
)
sync(
    "the CTA leaves when its list ends",
    lambda k: waits(k, "empty_t")[1].instead("mov.pred P1, -1;"),
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
    Found("griddepcontrol", "state = (begin, fields["),
)
sync(
    "no fence.proxy.async behind it",
    lambda k: k.one("fence.proxy.async.global").drop(),
    Equivalent(
        "The bytes were written by an earlier launch, which is complete; whether griddepcontrol.wait alone makes "
        "generic writes of another grid visible to the async proxy the ISA does not say, and the analysis starts "
        "anew with each launch.",
        ("fence.proxy.async.global",),
    ),
)
sync(
    "no acquire of tensor maps",
    lambda k: [site.drop() for site in k.all("fence.proxy.tensormap::generic")],
    Hidden(
        "The host copied the maps to memory before the launch; what the copy engine may have cached, the simulator "
        "reads anew."
    ),
    race=Found("race-warning", "copy_tile(target"),
)
sync(
    "the producers' registers are not released",
    lambda k: k.one("setmaxnreg.dec").drop(),
    Found("deadlock", "cute.arch.setmaxregister_increase("),
)

address = Mutants("address", kernel="group_gemm_kernel")
address(
    "tokens to the own CTA only",
    lambda k: tokens(k).set(4, "1"),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
address(
    "tokens of a row further",
    lambda k: tokens(k).compute(1, "add.s64 #, $, 128;", kind="d"),
    Found("out-of-bounds", "target"),
)
address(
    "tokens 16 bytes further in the stage", lambda k: tokens(k).compute(0, "add.s32 #, $, 16;", kind="r"), Wrong("")
)
address(
    "tokens signal the next stage",
    lambda k: tokens(k).compute(3, "add.s32 #, $, 8;", kind="r"),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
address(
    "size of the copy is not a multiple of 16",
    lambda k: tokens(k).compute(2, "sub.s32 #, $, 8;", kind="r"),
    Found("bulk-copy", "target"),
)
address(
    "weights 1 KiB further in the stage",
    lambda k: weights(k).compute(0, "add.s32 #, $, 1024;", kind="r"),
    Found("uninitialised", "[load_shared"),
)
address(
    "weights of the next unit",
    lambda k: k.previous(weights(k), "shl").compute(1, "add.s32 #, $, 1;", kind="r"),
    Wrong(""),
)
address(
    "weights from 8 bytes further in the stage",
    lambda k: weights(k).compute(0, "add.s32 #, $, 8;", kind="r"),
    Found("misaligned", "copy_tile("),
)
address(
    "scales of weights from the next k-block",
    lambda k: scales(k).compute(1, "add.s64 #, $, 512;", kind="d"),
    Found("out-of-bounds", "copy_bulk("),
)
address(
    "weights are read from the next row",
    lambda k: k.all("ld.shared.v2")[0].compute(1, "add.s32 #, $, 128;", kind="r"),
    Wrong(""),
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
    lambda k: k.previous(expected(k, 0), "bra").drop(),
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
    lambda k: k.following(scales(k), "setp.eq").set(2, "2"),
    Found("deadlock", "cute.arch.mbarrier_wait(empty_t"),
)
count(
    "four of five stages of tokens are written",
    lambda k: k.following(tokens(k), "setp.eq").set(2, "4"),
    Found("deadlock", "cute.arch.mbarrier_wait(empty_t"),
)
count(
    "weights are not copied",
    lambda k: weights(k).drop(),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar, WEIGHT_STAGE"),
)
count(
    "scales of weights are not copied",
    lambda k: scales(k).drop(),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar, WEIGHT_STAGE"),
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
    Wrong("columns 0-254 (128 of them)"),
)
arithmetic(
    "scale of the other k-block", lambda k: k.all("prmt")[0].compute(3, "xor.b32 #, $, 17;", kind="r"), Wrong("")
)

MUTANTS = tuple(one for part in (sync, address, descriptor, predicate, count, arithmetic) for one in part.made)
