"""Barriers, arrivals, waits, fences, TMEM allocations: one dropped or changed."""

from __future__ import annotations

from tests.sim.mutants.map_updates.places import commit_first, mma_end, parity, published, wait
from tests.sim.mutants.outcome import Equivalent, Found, Hidden, Mutants, Wrong

mutant = Mutants("synchronisation")

mutant(
    "full_mbar[0] counts 2 arrivals",
    lambda k: k.one("mbarrier.init", 0, source="full_mbar").set(1, "2"),
    Found("deadlock", "cute.arch.mbarrier_wait(full_mbar"),
)
mutant(
    "full_mbar[0] counts 0 arrivals",
    lambda k: k.one("mbarrier.init", 0, source="full_mbar").set(1, "0"),
    Found("mbarrier", "cute.arch.mbarrier_init(full_mbar"),
)
mutant(
    "empty_mbar[0] counts 2 arrivals",
    lambda k: k.one("mbarrier.init", 0, source="empty_mbar").set(1, "2"),
    Found("deadlock", "cute.arch.mbarrier_wait(empty_mbar"),
)
mutant(
    "acc_mbar counts 2 arrivals",
    lambda k: k.one("mbarrier.init", source="acc_mbar").set(1, "2"),
    Found("deadlock", "cute.arch.mbarrier_wait(acc_mbar"),
)
mutant(
    "empty_mbar[1] is not initialised",
    lambda k: k.one("mbarrier.init", 1, source="empty_mbar").drop(),
    Found("uninitialised", "cute.arch.mbarrier_wait(empty_mbar"),
)
mutant(
    "full_mbar[2] is not initialised",
    lambda k: k.one("mbarrier.init", 2, source="full_mbar").drop(),
    Found("uninitialised", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
mutant(
    "acc_mbar is not initialised",
    lambda k: k.one("mbarrier.init", source="acc_mbar").drop(),
    Found("uninitialised", "cute.arch.mbarrier_wait(acc_mbar"),
)
mutant(
    "full_mbar[0] is initialised in place of full_mbar[1]",
    lambda k: k.one("mbarrier.init", 1, source="full_mbar").shift(0, -8),
    Found("uninitialised", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
mutant(
    "full_mbar[0] is initialised again by the TMA warp",
    lambda k: k.one("mbarrier.arrive.expect_tx").before(
        "mbarrier.init.shared.b64 " + k.one("mbarrier.arrive.expect_tx").operands[1] + ", 1;"
    ),
    Found("mbarrier", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
mutant(
    "no fence.mbarrier_init",
    lambda k: k.one("fence.mbarrier_init").drop(),
    Hidden(
        "The CTA barrier orders initialisation and use among the CTA's threads; NVIDIA's kernels leave the fence "
        "out, so it is told with race_warnings only."
    ),
    Hidden(
        "The CTA barrier orders initialisation and use among the CTA's threads; NVIDIA's kernels leave the fence "
        "out, so it is told with race_warnings only."
    ),
    race=Found("race-warning", "cute.copy(tma_atom_a"),
)
mutant(
    "no expect_tx, no arrival",
    lambda k: k.one("mbarrier.arrive.expect_tx").drop(),
    Found("deadlock", "cute.copy(tma_atom_sfb"),
)
mutant(
    "expect_tx of 16 bytes more",
    lambda k: k.one("mbarrier.arrive.expect_tx").set(2, "36880"),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
mutant(
    "expect_tx of 16 bytes less",
    lambda k: k.one("mbarrier.arrive.expect_tx").set(2, "36848"),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
mutant(
    "expect_tx of 0 bytes",
    lambda k: k.one("mbarrier.arrive.expect_tx").set(2, "0"),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
    Found("in-flight", "cute.copy(s2t_sfa"),
    race=Found("race", "cute.copy(s2t_sfa"),
)
mutant(
    "expect_tx of A and B without scale factors",
    lambda k: k.one("mbarrier.arrive.expect_tx").set(2, "32768"),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
    race=Found("race", "cute.copy(s2t_sfa"),
)
mutant(
    "expect_tx on the next stage's barrier",
    lambda k: k.one("mbarrier.arrive.expect_tx").shift(1, 8),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
mutant(
    "arrival without expect_tx",
    lambda k: k.one("mbarrier.arrive.expect_tx").instead(
        "mbarrier.arrive.shared.b64 %mutd0, " + k.one("mbarrier.arrive.expect_tx").operands[1] + ";"
    ),
    Found("deadlock", "cute.copy(tma_atom_sfb"),
    Found("in-flight", "cute.copy(s2t_sfa"),
    race=Found("race", "cute.copy(s2t_sfa"),
)
mutant(
    "expect_tx twice",
    lambda k: k.one("mbarrier.arrive.expect_tx").after(
        "mbarrier.arrive.expect_tx.shared.b64 %mutd0, " + k.one("mbarrier.arrive.expect_tx").operands[1] + ", 36864;"
    ),
    Found("mbarrier", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
mutant(
    "no wait for a full stage",
    lambda k: wait(k, "full_mbar").instead("mov.pred P1, -1;"),
    Found("deadlock", "cute.arch.mbarrier_wait(empty_mbar"),
    Found("in-flight", "cute.copy(s2t_sfa"),
    race=Found("race", "cute.copy(s2t_sfa"),
)
mutant(
    "no wait for an empty stage",
    lambda k: wait(k, "empty_mbar").instead("mov.pred P1, -1;"),
    Found("deadlock", "cute.arch.mbarrier_wait(full_mbar"),
    Found("mbarrier", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
    race=Found("race", "cute.copy(tma_atom_a"),
)
mutant(
    "no wait for the accumulator",
    lambda k: wait(k, "acc_mbar").instead("mov.pred P1, -1;"),
    Found("uninitialised", "cute.copy(t2r"),
)
mutant(
    "one try of try_wait on a full stage, not repeated",
    lambda k: k.following(wait(k, "full_mbar"), "bra").unguard(),
    Found("deadlock", "cute.arch.mbarrier_wait(empty_mbar"),
    Found("in-flight", "cute.copy(s2t_sfa"),
)
mutant(
    "wait for a full stage with the other parity",
    lambda k: wait(k, "full_mbar").compute(2, "xor.b32 #, $, 1;", kind="r"),
    Found("deadlock", "cute.arch.mbarrier_wait(full_mbar"),
    Found("in-flight", "cute.copy(s2t_sfa"),
)
mutant(
    "wait for an empty stage with the other parity",
    lambda k: wait(k, "empty_mbar").compute(2, "xor.b32 #, $, 1;", kind="r"),
    Found("deadlock", "cute.arch.mbarrier_wait(empty_mbar"),
)
mutant(
    "wait for the accumulator with the other parity",
    lambda k: wait(k, "acc_mbar").set(2, "1"),
    Found("uninitialised", "cute.copy(t2r"),
)
mutant(
    "parity of full stages never flips",
    lambda k: parity(k, "full_mbar").drop(),
    Found("deadlock", "cute.arch.mbarrier_wait(full_mbar"),
    Found("in-flight", "cute.copy(tma_atom_a"),
)
mutant(
    "parity of empty stages never flips",
    lambda k: parity(k, "empty_mbar").drop(),
    Found("deadlock", "cute.arch.mbarrier_wait(empty_mbar"),
    Found("mbarrier", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
    race=Found("race", "cute.copy(tma_atom_a"),
)
mutant(
    "wait for an empty stage on its full barrier",
    lambda k: wait(k, "empty_mbar").shift(1, -24),
    Found("deadlock", "cute.arch.mbarrier_wait(empty_mbar"),
    Found("in-flight", "cute.copy(s2t_sfa"),
)
mutant(
    "wait for a full stage on the next stage's barrier",
    lambda k: wait(k, "full_mbar").shift(1, 8),
    Found("deadlock", "cute.arch.mbarrier_wait(full_mbar"),
    Found("in-flight", "cute.copy(s2t_sfa"),
    race=Found("race", "cute.copy(s2t_sfa"),
)
mutant(
    "wait for a full stage on its empty barrier",
    lambda k: wait(k, "full_mbar").shift(1, 24),
    Found("deadlock", "cute.arch.mbarrier_wait(full_mbar"),
)
mutant(
    "no commit to the empty barrier",
    lambda k: k.one("tcgen05.commit", source="empty_mbar").drop(),
    Found("deadlock", "cute.arch.mbarrier_wait(empty_mbar"),
)
mutant(
    "no commit to acc_mbar",
    lambda k: k.one("tcgen05.commit", source="acc_mbar").drop(),
    Found("deadlock", "cute.arch.mbarrier_wait(acc_mbar"),
)
mutant(
    "commit to the next stage's empty barrier",
    lambda k: k.one("tcgen05.commit", source="empty_mbar").shift(0, 8),
    Found("deadlock", "cute.arch.mbarrier_wait(empty_mbar"),
)
mutant(
    "commit to the full barrier",
    lambda k: k.one("tcgen05.commit", source="empty_mbar").shift(0, -24),
    Found("deadlock", "cute.arch.mbarrier_wait(empty_mbar"),
)
mutant(
    "commit to acc_mbar by an arrival of the thread",
    lambda k: k.one("tcgen05.commit", source="acc_mbar").instead(
        "mbarrier.arrive.shared.b64 %mutd0, " + k.one("tcgen05.commit", source="acc_mbar").operands[0] + ";"
    ),
    Hidden("Eager MMAs are done when they are issued, so an arrival right behind them comes late enough."),
    Wrong(""),
    race=Found("race", "cute.copy(t2r"),
)
mutant(
    "empty stage by an arrival of the thread, not a commit",
    lambda k: mma_end(k).instead("mbarrier.arrive.shared.b64 %mutd0, " + mma_end(k).operands[0] + ";"),
    Hidden("Eager MMAs are done when they are issued, so an arrival right behind them comes late enough."),
    Wrong(""),
    race=Found("race", "cute.copy(tma_atom_a"),
)
mutant(
    "commit to the empty barrier before the MMAs",
    commit_first,
    Hidden("The TMA warp gets its turn when the MMA warp waits, and by then eager MMAs are done."),
    Wrong(""),
    race=Found("race", "cute.copy(tma_atom_a"),
)
mutant(
    "no CTA barrier after the prologue",
    lambda k: k.one("bar.sync", 0, source="sync_threads").drop(),
    Found("uninitialised", "cute.arch.mbarrier_wait(acc_mbar"),
)
mutant(
    "no CTA barrier before TMEM is freed",
    lambda k: k.one("bar.sync", 1, source="sync_threads").drop(),
    Found("tmem", "cute.copy(t2r"),
)
mutant(
    "CTA barrier after the prologue for 160 threads",
    lambda k: k.one("bar.sync", 0, source="sync_threads").instead("bar.sync 0, 160;"),
    Found("deadlock", "cute.arch.mbarrier_wait(acc_mbar"),
)
mutant(
    "CTA barrier after the prologue for 224 threads",
    lambda k: k.one("bar.sync", 0, source="sync_threads").instead("bar.sync 0, 224;"),
    Found("barrier", "cute.arch.sync_threads("),
)
mutant(
    "the second CTA barrier has another number",
    lambda k: k.one("bar.sync", 1, source="sync_threads").set(0, "1"),
    Equivalent("All 192 threads of the CTA come to barrier 1 as they would to barrier 0, and nothing else uses it."),
)
mutant(
    "no warp barrier before the template is copied",
    lambda k: [s.drop() for s in k.all("bar.warp.sync")[::3]],
    Hidden(
        "elect.sync behind it waits for all lanes of the warp, and lanes of one warp execute in program order here; "
        "what is lost is the memory ordering between lanes that bar.warp.sync promises."
    ),
    Hidden(
        "elect.sync behind it waits for all lanes of the warp, and lanes of one warp execute in program order here; "
        "what is lost is the memory ordering between lanes that bar.warp.sync promises."
    ),
    race=Found("race", "cpasync.copy_tensormap"),
)
mutant(
    "no warp barrier before fields are replaced",
    lambda k: [s.drop() for s in k.all("bar.warp.sync")[1::3]],
    Equivalent(
        "elect.sync behind it waits for all lanes of the warp, and elects the lane that copied the template, so "
        "one thread does both in order."
    ),
)
mutant(
    "no warp barrier before the map is published",
    lambda k: [s.drop() for s in k.all("bar.warp.sync")[2::3]],
    Hidden(
        "tensormap.cp_fenceproxy is .sync.aligned: it waits for all lanes of the warp, the elected one behind its "
        "replacements among them; but the ISA gives an order of memory to bar.warp.sync alone."
    ),
    Hidden(
        "tensormap.cp_fenceproxy is .sync.aligned: it waits for all lanes of the warp, the elected one behind its "
        "replacements among them; but the ISA gives an order of memory to bar.warp.sync alone."
    ),
    race=Found("race", "cpasync.cp_fence_tma_desc_release"),
)
mutant("the map of A is not published", lambda k: published(k, "A").drop(), Found("tensor map", "cute.copy(tma_atom_a"))
mutant(
    "tensor maps are not acquired",
    lambda k: [s.drop() for s in k.all("fence.proxy.tensormap::generic")],
    Found("tensormap", "cute.copy(tma_atom_a"),
)
mutant(
    "tensor maps are published for the CTA only",
    lambda k: [s.opcode("release.gpu", "release.cta") for s in k.all("tensormap.cp_fenceproxy")],
    Equivalent(
        "Publisher and reader are warps of one CTA, which .cta scope contains.",
        (
            "fence.proxy.tensormap::generic.release.cta",
            "fence.proxy.tensormap::generic.release.gpu",
        ),
    ),
)
mutant(
    "no tcgen05.fence before the CTA barriers",
    lambda k: [s.drop() for s in k.all("tcgen05.fence::before_thread_sync")],
    Hidden(
        "Nearly all of NVIDIA's kernels leave these fences out: bar.sync and mbarriers order the same accesses; it is "
        "told with race_warnings only."
    ),
    Hidden(
        "Nearly all of NVIDIA's kernels leave these fences out: bar.sync and mbarriers order the same accesses; it is "
        "told with race_warnings only."
    ),
    race=Found("race-warning", "cute.arch.dealloc_tmem("),
)
mutant(
    "no tcgen05.fence after any synchronisation",
    lambda k: [s.drop() for s in k.all("tcgen05.fence::after_thread_sync")],
    Hidden(
        "Nearly all of NVIDIA's kernels leave these fences out: bar.sync and mbarriers order the same accesses; it is "
        "told with race_warnings only."
    ),
    Hidden(
        "Nearly all of NVIDIA's kernels leave these fences out: bar.sync and mbarriers order the same accesses; it is "
        "told with race_warnings only."
    ),
    race=Found("race-warning", "cute.copy(t2r, tDtAcc"),
)
mutant(
    "no tcgen05.wait::ld",
    lambda k: k.one("tcgen05.wait::ld").drop(),
    Hidden(
        "Registers hold the loaded words as soon as the instruction is executed here, and ptxas tracks them on a "
        "device; NVIDIA's kernels leave it out, so it is told with race_warnings only."
    ),
    Hidden(
        "Registers hold the loaded words as soon as the instruction is executed here, and ptxas tracks them on a "
        "device; NVIDIA's kernels leave it out, so it is told with race_warnings only."
    ),
    race=Found("race-warning", "tDrC.store("),
)
mutant(
    "the permit to allocate is not given up",
    lambda k: k.one("tcgen05.relinquish_alloc_permit").drop(),
    Equivalent(
        "The permit only keeps another CTA of the SM from allocating, which waits until this one ends: slower, "
        "never wrong. It has no effect on values."
    ),
)
mutant(
    "the permit is given up before the allocation",
    lambda k: [
        k.one("tcgen05.relinquish_alloc_permit").drop(),
        k.one("tcgen05.alloc").before(
            k.ptx[k.one("tcgen05.relinquish_alloc_permit").start : k.one("tcgen05.relinquish_alloc_permit").end]
        ),
    ],
    Found("tmem", "cute.arch.alloc_tmem(TMEM_COLUMNS"),
)
mutant("TMEM is not freed", lambda k: k.one("tcgen05.dealloc").drop(), Found("tmem", "cute.arch.alloc_tmem"))
mutant(
    "TMEM is freed twice",
    lambda k: k.one("tcgen05.dealloc").after(k.ptx[k.one("tcgen05.dealloc").start : k.one("tcgen05.dealloc").end]),
    Found("tmem", "cute.arch.dealloc_tmem(tmem_ptr"),
)
mutant(
    "128 columns of TMEM are allocated and freed",
    lambda k: [k.one("tcgen05.alloc").set(1, "128"), k.one("tcgen05.dealloc").set(1, "128")],
    Found("tmem", "cute.copy(s2t_sfa"),
)
mutant(
    "160 columns of TMEM are allocated and freed",
    lambda k: [k.one("tcgen05.alloc").set(1, "160"), k.one("tcgen05.dealloc").set(1, "160")],
    Found("tmem", "cute.arch.alloc_tmem(TMEM_COLUMNS"),
)
mutant(
    "1024 columns of TMEM are allocated",
    lambda k: k.one("tcgen05.alloc").set(1, "1024"),
    Found("tmem", "cute.arch.alloc_tmem(TMEM_COLUMNS"),
)
mutant(
    "512 columns of TMEM are allocated, 256 freed",
    lambda k: k.one("tcgen05.alloc").set(1, "512"),
    Found("tmem", "cute.arch.dealloc_tmem(tmem_ptr"),
)
mutant(
    "512 columns of TMEM are allocated and freed",
    lambda k: [k.one("tcgen05.alloc").set(1, "512"), k.one("tcgen05.dealloc").set(1, "512")],
    Equivalent(
        "More columns than are used: only one CTA fits an SM, which the cost check counts (tmem.columns); values "
        "are the same.",
        ("tmem.columns",),
    ),
)
mutant(
    "128 of 256 columns of TMEM are freed",
    lambda k: k.one("tcgen05.dealloc").set(1, "128"),
    Found("tmem", "cute.arch.dealloc_tmem(tmem_ptr"),
)
mutant(
    "TMEM is freed 32 columns further",
    lambda k: k.one("tcgen05.dealloc").compute(0, "add.s32 #, $, 32;", kind="r"),
    Found("tmem", "cute.arch.dealloc_tmem(tmem_ptr"),
)
