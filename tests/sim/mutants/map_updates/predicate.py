"""A guard, an election or an accumulate flag dropped or inverted."""

from __future__ import annotations

from tests.sim.mutants.map_updates.places import bounds, by_lane_3, elect_branch, mma_end, stores, tma
from tests.sim.mutants.outcome import Equivalent, Found, Mutants, Wrong

mutant = Mutants("predicate")

mutant(
    "rows of C are stored without a bound",
    lambda k: k.previous(stores(k)[0], "bra").drop(),
    Found("out-of-bounds", "cute.autovec_copy(tDrC"),
)
mutant(
    "rows of C are stored from m on",
    lambda k: k.previous(stores(k)[0], "bra").invert(),
    Found("out-of-bounds", "cute.autovec_copy(tDrC"),
)
mutant("row m of C is stored", lambda k: bounds(k).opcode("ge", "gt"), Found("out-of-bounds", "cute.autovec_copy(tDrC"))
mutant(
    "the last row of C is not stored",
    lambda k: bounds(k).compute(1, "add.s32 #, $, 1;", kind="r"),
    Found("never-written", ""),
)
mutant(
    "the first MMA accumulates on what TMEM holds",
    lambda k: k.one("tcgen05.mma", 0).compute(6, "mov.pred #, -1;", kind="p"),
    Found("uninitialised", "cute.gemm(tiled_mma"),
)
mutant(
    "each k-tile starts the sum anew",
    lambda k: k.one("tcgen05.mma", 0).compute(6, "mov.pred #, 0;", kind="p"),
    Wrong(""),
)
mutant(
    "the second MMA starts the sum anew",
    lambda k: k.one("tcgen05.mma", 1).compute(6, "mov.pred #, 0;", kind="p"),
    Wrong(""),
)
mutant(
    "barriers are initialised by all lanes",
    lambda k: elect_branch(k, k.one("mbarrier.init", 0)).drop(),
    Equivalent(
        "All lanes write the same state at once and nobody has used the barrier; NVIDIA's kernels do so, and it is "
        "accepted on purpose."
    ),
)
mutant(
    "expect_tx by all lanes",
    lambda k: elect_branch(k, k.one("mbarrier.arrive.expect_tx")).drop(),
    Found("mbarrier", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
mutant(
    "A is loaded by all lanes",
    lambda k: elect_branch(k, tma(k, "A")).drop(),
    Found("multi-lane", "cute.copy(tma_atom_a"),
)
mutant(
    "scale factors are copied by all lanes",
    lambda k: elect_branch(k, k.one("tcgen05.cp", 0)).drop(),
    Found("multi-lane", "cute.copy(s2t_sfa"),
)
mutant(
    "MMA by all lanes",
    lambda k: elect_branch(k, k.one("tcgen05.mma", 0)).drop(),
    Found("multi-lane", "cute.gemm(tiled_mma"),
)
mutant(
    "MMA by the lanes that are not elected",
    lambda k: elect_branch(k, k.one("tcgen05.mma", 0)).invert(),
    Found("multi-lane", "cute.gemm(tiled_mma"),
)
mutant(
    "commit by all lanes",
    lambda k: elect_branch(k, k.one("tcgen05.commit", source="empty_mbar")).drop(),
    Found("multi-lane", "tcgen05.commit(empty_mbar"),
)
mutant(
    "commit to acc_mbar by all lanes",
    lambda k: elect_branch(k, k.one("tcgen05.commit", source="acc_mbar")).drop(),
    Found("multi-lane", "tcgen05.commit(acc_mbar"),
)
mutant(
    "A is loaded by lane 3",
    lambda k: by_lane_3(k, tma(k, "A")),
    Equivalent("Any one lane may issue a TMA load; the mbarrier does not care which."),
)
mutant(
    "MMAs from different lanes",
    lambda k: by_lane_3(k, k.one("tcgen05.mma", 1)),
    Found("commit", "cute.gemm(tiled_mma"),
)
mutant(
    "commit from another lane than the MMAs",
    lambda k: by_lane_3(k, mma_end(k)),
    Found("commit", "tcgen05.commit(empty_mbar"),
)
mutant(
    "template copied by all lanes",
    lambda k: [
        elect_branch(k, k.previous(k.previous(s, "elect"), "st.shared.v2")).drop()
        for s in k.all("tensormap.replace.tile.global_address")
    ],
    Equivalent("All lanes write the same bytes to the same place, and bar.warp.sync follows."),
)
mutant(
    "fields replaced by all lanes",
    lambda k: [elect_branch(k, s).drop() for s in k.all("tensormap.replace.tile.global_address")],
    Equivalent("All lanes write the same values to the same map, and bar.warp.sync follows."),
)
mutant(
    "dealloc by the TMA warp as well",
    lambda k: k.previous(k.one("tcgen05.dealloc"), "bra").drop(),
    Found("tmem", "cute.arch.dealloc_tmem(tmem_ptr"),
)
mutant(
    "upper half of the search: P(g) < b",
    lambda k: k.one("setp.gt.s64").opcode("gt", "ge"),
    Found("written-by-two", ""),
)
