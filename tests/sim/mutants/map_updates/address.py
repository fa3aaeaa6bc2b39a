"""A tile, a column, a lane or a pointer somewhere else."""

from __future__ import annotations

from tests.sim.mutants.map_updates.places import (
    load_of,
    other_map,
    published_in_place,
    stage_pitch,
    stores,
    template,
    tma,
    width,
)
from tests.sim.mutants.outcome import Found, Mutants, Wrong

mutant = Mutants("address")

mutant(
    "A of a stage 1024 bytes further",
    lambda k: tma(k, "A").shift(0, 1024),
    Found("uninitialised", "cute.gemm(tiled_mma"),
)
mutant(
    "A of a stage 128 bytes further",
    lambda k: tma(k, "A").shift(0, 128),
    Found("uninitialised", "cute.gemm(tiled_mma"),
)
mutant("A of a stage 16 bytes further", lambda k: tma(k, "A").shift(0, 16), Found("misaligned", "cute.copy(tma_atom_a"))
mutant(
    "B of a stage over A",
    lambda k: tma(k, "B").set(0, tma(k, "A").operands[0]),
    Found("uninitialised", "cute.gemm(tiled_mma"),
)
mutant(
    "SFA of a stage 512 bytes further",
    lambda k: tma(k, "SFA").shift(0, 512),
    Found("uninitialised", "cute.copy(s2t_sfa"),
)
mutant(
    "SFB of a stage 512 bytes lower",
    lambda k: tma(k, "SFB").shift(0, -512),
    Found("uninitialised", "cute.copy(s2t_sfb"),
)
mutant("SFA loaded from the map of SFB", other_map, Wrong(""))
mutant(
    "A signals the next stage's barrier",
    lambda k: tma(k, "A").shift(2, 8),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
mutant(
    "A signals the empty barrier",
    lambda k: tma(k, "A").shift(2, 24),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
mutant("A from 8 rows further", lambda k: tma(k, "A").coordinate(1, 8), Wrong("every output"))
mutant("B from 64 elements of k further", lambda k: tma(k, "B").coordinate(0, 64), Wrong(""))
mutant("SFA from a block of k further", lambda k: tma(k, "SFA").coordinate(1, 1), Wrong(""))
mutant("SFB from a block of n further", lambda k: tma(k, "SFB").coordinate(2, 1), Wrong("every output"))
mutant(
    "accumulator 32 columns further for all MMAs",
    lambda k: [s.compute(0, "add.s32 #, $, 32;", kind="r") for s in k.all("tcgen05.mma")],
    Found("tmem", "cute.gemm(tiled_mma"),
)
mutant(
    "accumulator 128 columns further for all MMAs",
    lambda k: [s.compute(0, "add.s32 #, $, 128;", kind="r") for s in k.all("tcgen05.mma")],
    Found("tmem", "cute.gemm(tiled_mma"),
)
mutant(
    "accumulator at lane 16 for all MMAs",
    lambda k: [s.compute(0, "add.s32 #, $, 1048576;", kind="r") for s in k.all("tcgen05.mma")],
    Found("tmem", "cute.gemm(tiled_mma"),
)
mutant(
    "SFA of the first MMA is that of the second",
    lambda k: k.one("tcgen05.mma", 0).compute(4, "add.s32 #, $, 4;", kind="r"),
    Wrong(""),
)
mutant(
    "SFB of the first MMA is SFA",
    lambda k: k.one("tcgen05.mma", 0).set(5, k.one("tcgen05.mma", 0).operands[4]),
    Found("tmem-overlap", "cute.gemm(tiled_mma", ("SFB operand", "its SFA operand")),
)
mutant(
    "SFA of the first MMA 2 columns further",
    lambda k: k.one("tcgen05.mma", 0).compute(4, "add.s32 #, $, 2;", kind="r"),
    Wrong(""),
)
mutant(
    "SFA is copied over the accumulator",
    lambda k: k.one("tcgen05.cp", 0).compute(0, "sub.s32 #, $, 128;", kind="r"),
    Found("uninitialised", "cute.gemm(tiled_mma"),
)
mutant(
    "SFB is copied 4 columns further",
    lambda k: k.one("tcgen05.cp", 4).compute(0, "add.s32 #, $, 4;", kind="r"),
    Found("uninitialised", "cute.gemm(tiled_mma"),
)
mutant(
    "SFB is copied behind the allocation",
    lambda k: k.one("tcgen05.cp", 7).compute(0, "add.s32 #, $, 256;", kind="r"),
    Found("tmem", "cute.copy(s2t_sfb"),
)
mutant(
    "the accumulator is read one column further",
    lambda k: k.one("tcgen05.ld").compute(1, "add.s32 #, $, 1;", kind="r"),
    Wrong(""),
)
mutant(
    "the accumulator is read 160 columns further",
    lambda k: k.one("tcgen05.ld").compute(1, "add.s32 #, $, 160;", kind="r"),
    Found("tmem", "cute.copy(t2r"),
)
mutant(
    "each warp reads the next warp's lanes",
    lambda k: k.one("tcgen05.ld").compute(1, "add.s32 #, $, 2097152;", kind="r"),
    Found("lane-quadrant", "cute.copy(t2r"),
)
mutant(
    "all warps read lane 0",
    lambda k: k.one("tcgen05.ld").compute(1, "and.b32 #, $, 65535;", kind="r"),
    Found("own-quadrant", "cute.copy(t2r", ("taken for lane",)),
)
mutant(
    "the address of TMEM is read 4 bytes further",
    lambda k: k.one("ld.shared").shift(1, 4),
    Found("uninitialised", "cute.arch.retrieve_tmem_ptr"),
)
mutant(
    "the address of TMEM is written over acc_mbar",
    lambda k: k.one("tcgen05.alloc").shift(0, -8),
    Found("mbarrier", "cute.arch.alloc_tmem(TMEM_COLUMNS"),
)
mutant(
    "C of a row 8 or 16 columns further",
    lambda k: [s.shift(0, width(k)) for s in stores(k)],
    Found("out-of-bounds", "cute.autovec_copy(tDrC"),
)
mutant(
    "C of a row 256 bytes lower",
    lambda k: [s.shift(0, -256) for s in stores(k)],
    Found("out-of-bounds", "cute.autovec_copy(tDrC"),
)
mutant(
    "C 8 bytes further, misaligned",
    lambda k: [s.shift(0, 8) for s in stores(k)],
    Found("misaligned", "cute.autovec_copy(tDrC"),
)
mutant("two stores of C at one address", lambda k: stores(k)[1].shift(0, -width(k)), Found("never-written", ""))
mutant(
    "C of the group above",
    lambda k: k.one("ld.global", source="table[group, C]").shift(1, -72),
    Found("out-of-bounds", "c_ptr = cute.make_ptr(C_DTYPE"),
)
mutant(
    "address of C from the column of SFB",
    lambda k: k.one("ld.global", source="table[group, C]").shift(1, -8),
    Found("read-only", "cute.autovec_copy(tDrC"),
)
mutant(
    "address of A from the column of B",
    lambda k: load_of(k, "A").shift(1, 8),
    Found("tensor map", "cute.copy(tma_atom_a"),
)
mutant("template of A from the map of SFA", template, Found("tensor map", "cute.copy(tma_atom_a"))
mutant("map of A published in place of that of B", published_in_place, Wrong(""))
mutant("stages of A half as far apart", stage_pitch, Found("uninitialised", "cute.gemm(tiled_mma"))
