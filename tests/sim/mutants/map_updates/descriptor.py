"""A field of a shared memory descriptor, the instruction descriptor or a tensor map changed."""

from __future__ import annotations

from tests.sim.mutants.map_updates.places import field, idesc, sf_add, sf_desc, smem_desc, tensormap
from tests.sim.mutants.outcome import Equivalent, Found, Mutants, Wrong

mutant = Mutants("descriptor")

mutant("A starts 32 bytes further", smem_desc("A", 2), Wrong(""))
mutant("A starts 128 bytes further", smem_desc("A", 8), Wrong(""))
mutant("B starts 1024 bytes further", smem_desc("B", 64), Wrong(""))
mutant(
    "LBO of A is 0",
    smem_desc("A", 1 << 16),
    Equivalent(
        "A K-major operand with a swizzle whose tile is one swizzle row wide has no second column of atoms: LBO is "
        "not used (PTX ISA, matrix descriptor)."
    ),
)
mutant(
    "LBO of B is 48",
    smem_desc("B", 2 << 16),
    Equivalent(
        "A K-major operand with a swizzle whose tile is one swizzle row wide has no second column of atoms: LBO is "
        "not used (PTX ISA, matrix descriptor)."
    ),
)
mutant("SBO of A is 512", smem_desc("A", (64 ^ 32) << 32), Wrong("rows 8-199 (184 of them), columns 0-127 (all)"))
mutant("SBO of B is 2048", smem_desc("B", (64 ^ 128) << 32), Found("out-of-bounds", "cute.gemm(tiled_mma"))
mutant("version of A's descriptor is 2", smem_desc("A", 3 << 46), Found("descriptor", "cute.gemm(tiled_mma"))
mutant("base offset of B is 1", smem_desc("B", 1 << 49), Found("unsupported", "cute.gemm(tiled_mma"))
mutant(
    "swizzle of A is that of 64 bytes",
    smem_desc("A", (2 ^ 4) << 61),
    Wrong("rows 1-199 (175 of them), columns 0-127 (all)"),
)
mutant("swizzle of B is none", smem_desc("B", 2 << 61), Wrong("rows 0-199 (all), columns 1-127 (112 of them)"))
mutant("swizzle of B is a reserved value", smem_desc("B", (2 ^ 7) << 61), Found("descriptor", "cute.gemm(tiled_mma"))
mutant("A and B exchanged", lambda k: k.one("tcgen05.mma", 0).swap(1, 2), Wrong(""))
mutant("scale factors start 16 bytes further", sf_add(1), Wrong(""))
mutant("scale factors of the next k-block", sf_add(32), Wrong(""))
mutant(
    "SBO of the scale factors is 256",
    sf_desc((8 ^ 16) << 32),
    Wrong("rows 8-191 (144 of them), columns 0-127 (all)"),
)
mutant(
    "LBO of the scale factors is 32",
    sf_desc(3 << 16),
    Equivalent(
        "A copy of 32x128b is 16 bytes wide, one core matrix: there is no second one that LBO could be the distance to."
    ),
)
mutant(
    "swizzle of the scale factors is that of 128 bytes",
    sf_desc(2 << 61),
    Wrong("rows 1-199 (193 of them), columns 0-127 (all)"),
)
mutant("scale factors start behind shared memory", sf_add((200 * 1024) >> 4), Found("descriptor", "cute.copy(s2t_sfa"))
mutant("version of the scale factors' descriptor is 2", sf_desc(3 << 46), Found("descriptor", "cute.copy(s2t_sfa"))
mutant("N is 64", idesc((16 ^ 8) << 17), Found("uninitialised", "cute.copy(t2r"))
mutant("N is 256", idesc((16 ^ 32) << 17), Found("tmem", "cute.gemm(tiled_mma"))
mutant("N is 120", idesc((16 ^ 15) << 17), Found("uninitialised", "cute.copy(t2r"))
mutant("M is 64", idesc((8 ^ 4) << 24), Found("descriptor", "cute.gemm(tiled_mma"))
mutant("M is 256", idesc((8 ^ 16) << 24), Found("descriptor", "cute.gemm(tiled_mma"))
mutant("format of A is 0", idesc(1 << 7), Found("descriptor", "cute.gemm(tiled_mma"))
mutant("format of B is 2", idesc(3 << 10), Found("descriptor", "cute.gemm(tiled_mma"))
mutant("A is negated", idesc(1 << 13), Wrong("every output"))
mutant("B is negated", idesc(1 << 14), Wrong("every output"))
mutant("A is M-major", idesc(1 << 15), Found("descriptor", "cute.gemm(tiled_mma"))
mutant("B is N-major", idesc(1 << 16), Found("descriptor", "cute.gemm(tiled_mma"))
mutant("scale factors are E8M0", idesc(1 << 23), Wrong("every output"))
mutant("sf_id of A is 1", idesc(1 << 29), Found("descriptor", "cute.gemm(tiled_mma"))
mutant("sf_id of B is 2", idesc(2 << 4), Found("descriptor", "cute.gemm(tiled_mma"))
mutant("sparse", idesc(1 << 2), Found("unsupported", "cute.gemm(tiled_mma"))
mutant("k_size is 1", idesc(1 << 31), Found("descriptor", "cute.gemm(tiled_mma"))
mutant(
    "sf_id 1 in the address of SFA",
    lambda k: k.one("tcgen05.mma", 0).compute(4, "or.b32 #, $, 1073741824;", kind="r"),
    Found("sf-id", "cute.gemm(tiled_mma"),
)
mutant(
    "map of A: m is one row more",
    lambda k: tensormap(k, "A", "global_dim", 1).compute(2, "add.s32 #, $, 1;", kind="r"),
    Found("tensor map", "cute.copy(tma_atom_a"),
)
mutant(
    "map of A: m is one row less",
    lambda k: tensormap(k, "A", "global_dim", 1).compute(2, "sub.s32 #, $, 1;", kind="r"),
    Wrong("rows 199, columns 0-127 (all)"),
)
mutant(
    "map of A: m is rounded up to 128",
    lambda k: tensormap(k, "A", "global_dim", 1).compute(2, "add.s32 #, $, 127; and.b32 #, #, -128;", kind="r"),
    Found("tensor map", "cute.copy(tma_atom_a"),
)
mutant(
    "map of A: m is not replaced",
    lambda k: tensormap(k, "A", "global_dim", 1).drop(),
    Found("tensor map", "cute.copy(tma_atom_a"),
)
mutant(
    "map of B: k is 256 less",
    lambda k: tensormap(k, "B", "global_dim", 0).compute(2, "sub.s32 #, $, 256;", kind="r"),
    Wrong(""),
)
mutant(
    "map of B: k in bytes",
    lambda k: tensormap(k, "B", "global_dim", 0).compute(2, "shr.u32 #, $, 1;", kind="r"),
    Wrong(""),
)
mutant(
    "map of A: stride in elements",
    lambda k: tensormap(k, "A", "global_stride", 0).compute(2, "shl.b64 #, $, 1;", kind="d"),
    Found("tensor map", "cute.copy(tma_atom_a"),
)
mutant(
    "map of B: stride 16 bytes more",
    lambda k: tensormap(k, "B", "global_stride", 0).compute(2, "add.s64 #, $, 16;", kind="d"),
    Found("tensor map", "cute.copy(tma_atom_b"),
)
mutant(
    "map of B: stride 8 bytes more",
    lambda k: tensormap(k, "B", "global_stride", 0).compute(2, "add.s64 #, $, 8;", kind="d"),
    Found("tensor map", "cpasync.update_tma_descriptor(atoms"),
)
mutant(
    "map of B: stride is not replaced",
    lambda k: tensormap(k, "B", "global_stride", 0).drop(),
    Wrong("rows 0-199 (all), columns 1-127"),
)
mutant(
    "map of A: address is not replaced",
    lambda k: tensormap(k, "A", "global_address").drop(),
    Found("tensor map", "cute.copy(tma_atom_a"),
)
mutant(
    "map of A: address 16 bytes further",
    lambda k: tensormap(k, "A", "global_address").compute(1, "add.s64 #, $, 16;", kind="d"),
    Found("tensor map", "cute.copy(tma_atom_a"),
)
mutant(
    "map of A: address 8 bytes further",
    lambda k: tensormap(k, "A", "global_address").compute(1, "add.s64 #, $, 8;", kind="d"),
    Found("tensor map", "cute.copy(tma_atom_a"),
)
mutant(
    "map of SFA: one block of k less",
    lambda k: tensormap(k, "SFA", "global_dim", 1).compute(2, "sub.s32 #, $, 1;", kind="r"),
    Wrong(""),
)
mutant(
    "map of SFA: stride of blocks of m is that of k",
    lambda k: tensormap(k, "SFA", "global_stride", 1).set(2, "512"),
    Wrong("rows 128-199, columns 0-127 (all)"),
)
mutant(
    "map of SFB: the CTA's blocks of n are one",
    lambda k: tensormap(k, "SFB", "global_dim", 2).set(2, "1"),
    Wrong("rows 0-71 (all), columns 128-255"),
)
mutant(
    "map of A: box of 64 rows",
    field("A", "box_dim", "1", "64"),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
mutant(
    "map of A: box of 128 elements",
    field("A", "box_dim", "0", "128"),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
mutant("map of B: swizzle of 64 bytes", field("B", "swizzle_mode", "2"), Found("tensor map", "cute.copy(tma_atom_b"))
mutant("map of B: no swizzle", field("B", "swizzle_mode", "0"), Wrong("rows 0-199 (all), columns 1-127 (112 of them)"))
mutant("map of A: element type u8", field("A", "elemtype", "0"), Found("tensor map", "cute.copy(tma_atom_a"))
mutant(
    "map of A: element stride 2",
    field("A", "element_stride", "1", "2"),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
mutant("map of SFA: rank 2", field("SFA", "rank", "1"), Found("tensor map", "cute.copy(tma_atom_sfa"))
mutant("map of A: out of bounds is NaN", field("A", "fill_mode", "1"), Found("tensor map", "cute.copy(tma_atom_a"))
