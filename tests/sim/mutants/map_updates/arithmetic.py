"""Rounding, operands and widths."""

from __future__ import annotations

from tests.sim.mutants.map_updates.places import half_store, row_of_tile, stores, tma
from tests.sim.mutants.outcome import Found, Mutants, Wrong

mutant = Mutants("arithmetic")

mutant("C is truncated", lambda k: [s.opcode("cvt.rn", "cvt.rz") for s in k.all("cvt.rn.f16x2")], Wrong(""))
mutant("C is bfloat16", lambda k: [s.opcode("f16x2", "bf16x2") for s in k.all("cvt.rn.f16x2")], Wrong("every output"))
mutant(
    "two columns of C exchanged",
    lambda k: k.one("cvt.rn.f16x2", 5).swap(1, 2),
    Wrong("rows 0-199 (all), columns "),
)
mutant("C is clamped at 0", lambda k: [s.opcode("rn.f16x2", "rn.relu.f16x2") for s in k.all("cvt.rn.f16x2")], Wrong(""))
mutant("half of a store", lambda k: half_store(stores(k)[3]), Found("never-written", ""))
mutant(
    "the tile's m coordinate in place of n",
    lambda k: tma(k, "B").set(
        1, tma(k, "B").operands[1].split("{")[0] + tma(k, "A").operands[1].split("{")[1].join(["{", ""])
    ),
    Wrong("rows 128-199, columns 0-127 (all)"),
)
mutant("the row of C without the tile's", row_of_tile, Found("out-of-bounds", "cute.autovec_copy(tDrC"))
mutant(
    "m of the tile count is not rounded up",
    lambda k: k.one("add.s32", 0, having=", 127").set(2, "0"),
    Found("out-of-bounds", "cute.autovec_copy(tDrC"),
)
mutant(
    "the CTA's number within the group is not taken",
    lambda k: k.following(k.one("ld.global", source="tile_in_group = tile"), "sub").set(2, "0"),
    Found("out-of-bounds", "cute.autovec_copy(tDrC"),
)
