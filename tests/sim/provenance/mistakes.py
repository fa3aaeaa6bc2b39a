"""Mistakes in the Python of kernels that make an MMA read the wrong data, and what must be said of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest_nvfp4

ROOT = Path(pytest_nvfp4.__file__).parents[1]
SHIPPED = ROOT / "kernels" / "nvfp4_group_gemm" / "steps" / "map_updates.py"
STRUCTURES = ROOT / "tests" / "sim" / "mutants" / "structures"
EQUAL = "256x256x1024,256x256x1024"
"""Groups of one size: tensors that are exchanged still fit each other's tensor maps."""
MMA, CP_SFA, CP_SFB = "cute.gemm(tiled_mma", "cute.copy(s2t_sfa", "cute.copy(s2t_sfb"
LOAD_A, LOAD_B = "cute.copy(tma_atom_a, tAgA", "cute.copy(tma_atom_b, tBgB"
LOAD_SFA, LOAD_SFB = "cute.copy(\n                tma_atom_sfa", "cute.copy(\n                tma_atom_sfb"
T2R = "cute.copy(t2r, tDtAcc, tDrAcc)"


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Attributes:
        old, new: Text that stands once in the kernel, and its replacement.
        at: Begin of the statement that the finding points at, in the changed kernel.
        says: Words of the message; ``{...}`` is the place of the statement that begins so.
        shape: The problem.
    """

    name: str
    old: str
    new: str
    at: str
    says: tuple[str, ...]
    shape: str = EQUAL
    kernel: Path = SHIPPED

    def text(self) -> str:
        """The kernel with the mistake. Raises ValueError if the kernel has not the text once."""
        text = self.kernel.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.old!r} stands {text.count(self.old)} times in {self.kernel.name}")
        return text.replace(self.old, self.new)

    def line(self, statement: str) -> int:
        """The line where a statement of the changed kernel begins."""
        text = self.text()
        assert text.count(statement) == 1, statement
        return text[: text.index(statement)].count("\n") + 1


MISTAKES = [
    Mistake(
        "SFA is loaded from SFB's map",
        "tAsSFA[None, stage], tma_bar_ptr=mbar, tma_desc_ptr=descriptor[2]",
        "tAsSFA[None, stage], tma_bar_ptr=mbar, tma_desc_ptr=descriptor[3]",
        LOAD_SFA,
        (f"the SFA operand of the MMA at {{{MMA}}} reads SFB of group 0, rows 0-127, k 0-63",
         f"loaded by {{{LOAD_SFA}}}", "needs SFA of group 0"),
    ),
    Mistake(
        "SFA is copied from SFB's buffer",
        "cute.copy(s2t_sfa, tSsSFA[None",
        "cute.copy(s2t_sfa, tSsSFB[None",
        CP_SFA,
        (f"the SFA operand of the MMA at {{{MMA}}} reads SFB of group 0", f"loaded by {{{LOAD_SFB}}}",
         f"copied to TMEM by {{{CP_SFA}}}"),
    ),
    Mistake(
        "the MMA's SFA is SFB",
        "tcgen05.Field.SFA, tCtSFA[None",
        "tcgen05.Field.SFA, tCtSFB[None",
        MMA,
        (f"the SFA operand of the MMA at {{{MMA}}} reads SFB of group 0", "what it needs lies in TMEM column 128",
         f"copied by {{{CP_SFA}}}"),
    ),
    Mistake(
        "the MMA reads scale factors in another format",
        "tcgen05.MmaMXF4NVF4Op(SF_DTYPE",
        "tcgen05.MmaMXF4NVF4Op(cutlass.Float8E8M0FNU",
        MMA,
        (f"the MMA at {{{MMA}}} reads scale factors as UE8M0 (bit 23), and they are UE4M3",),
    ),
    Mistake(
        "the MMA negates A",
        "tiled_mma.set(tcgen05.Field.ACCUMULATE, False)",
        "tiled_mma.set(tcgen05.Field.ACCUMULATE, False); tiled_mma.set(tcgen05.Field.NEGATE_A, True)",
        MMA,
        (f"the MMA at {{{MMA}}} negates A (bit 13)",),
    ),
    Mistake(
        "SFA and SFB are exchanged on the host",
        "sfa.data_ptr(), sfb.data_ptr(), c.data_ptr()",
        "sfb.data_ptr(), sfa.data_ptr(), c.data_ptr()",
        MMA,
        ("reads SFB of group 0", "because its A operand reads A of group 0", "the SFB operand", "reads SFA of group 0"),
    ),
    Mistake(
        "A of every k block is that of the first",
        "tCrA[None, None, k_block, stage]",
        "tCrA[None, None, 0, stage]",
        MMA,
        ("the A operand", "reads A of group 0, rows 0-127, k 0-63 again", "needs A of group 0, rows 0-127, k 64-127"),
    ),
    Mistake(
        "B of the next k block",
        "tCrB[None, None, k_block, stage]",
        "tCrB[None, None, (k_block + 1) % 4, stage]",
        MMA,
        ("the B operand", "reads B of group 0, rows 0-127, k 64-127", "needs B of group 0, rows 0-127, k 0-63"),
    ),
    Mistake(
        "B of every k tile is that of the first",
        "tBgB[None, k_tile]",
        "tBgB[None, 0]",
        LOAD_B,
        ("the B operand", "k 0-63 again", "needs B of group 0, rows 0-127, k 256-319"),
    ),
    Mistake(
        "A of another stage",
        "tCrA[None, None, k_block, stage]",
        "tCrA[None, None, k_block, (stage + 1) % NUM_STAGES]",
        MMA,
        ("the A operand", "reads A of group 0, rows 0-127, k 256-319", "needs A of group 0, rows 0-127, k 0-63"),
    ),
    Mistake(
        "SFB is always copied from the first stage",
        "tSsSFB[None, None, None, None, stage]",
        "tSsSFB[None, None, None, None, 0]",
        CP_SFB,
        ("the SFB operand", "k 0-63 again", "needs SFB of group 0, rows 0-127, k 256-319",
         f"{{{CP_SFB}}} copies from bytes"),
    ),
    Mistake(
        "SFA is loaded to another stage",
        "tAsSFA[None, stage]",
        "tAsSFA[None, (stage + 1) % NUM_STAGES]",
        CP_SFA,
        ("the SFA operand", f"loaded by {{{LOAD_SFA}}}", "needs SFA of group 0, rows 0-127, k 0-63"),
    ),
    Mistake(
        "SFB's columns overlap SFA's",
        "sfb_tmem_ptr = sfa_tmem_ptr + tcgen05.find_tmem_tensor_col_offset(tCtSFA)",
        "sfb_tmem_ptr = sfa_tmem_ptr + 8",
        CP_SFB,
        ("SFB of group 0", "lies over SFA of group 0", f"{{{CP_SFB}}} writes it to TMEM columns [136, 140)",
         f"where {{{CP_SFA}}} had put SFA of group 0, rows 0-127, k 128-191"),
    ),
    Mistake(
        "SFA of the first row of tiles",
        "tAgSFA = tAgSFA[None, x, None, 0]",
        "tAgSFA = tAgSFA[None, 0, None, 0]",
        LOAD_SFA,
        ("the SFA operand", "reads SFA of group 0, rows 0-71", "needs SFA of group 0, rows 128-199",
         "because its A operand reads A"),
        "200x256x1024",
    ),
    Mistake(
        "A of the first row of tiles",
        "tAgA = tAgA[None, x, None, 0]",
        "tAgA = tAgA[None, 0, None, 0]",
        LOAD_A,
        ("the A operand", "reads A of group 0, rows 0-71", "needs A of group 0, rows 128-199"),
        "200x256x1024",
    ),
    Mistake(
        "B's box lies outside B",
        "tBgB = tBgB[None, y, None, 0]",
        "tBgB = tBgB[None, y + 64, None, 0]",
        LOAD_B,
        ("the B operand", "reads zeros", f"the box of {{{LOAD_B}}} at coordinates (0, 8192) lies wholly outside",
         "TMA filled in zeros"),
        "128x256x512",
    ),
    Mistake(
        "B of the first group",
        "table[group, B], table[group, SFA]",
        "table[0, B], table[group, SFA]",
        LOAD_B,
        ("the B operand", "reads B of group 0, rows 0-127, k 0-63", "needs B of group 1, rows 0-127, k 0-63"),
    ),
    Mistake(
        "scale factors of the first group",
        "table[group, SFA], table[group, SFB]",
        "table[0, SFA], table[0, SFB]",
        LOAD_SFA,
        ("reads SFA of group 0", "needs SFA of group 1", "the SFB operand", "reads SFB of group 0"),
    ),
    Mistake(
        "the accumulator is cleared by every MMA",
        "                tiled_mma.set(tcgen05.Field.ACCUMULATE, True)\n",
        "                tiled_mma.set(tcgen05.Field.ACCUMULATE, False)\n",
        MMA,
        ("clears the accumulator (ACCUMULATE false) before anything has read it", "k 0-959 are lost"),
    ),
    Mistake(
        "C's tile is stored one column of tiles further",
        "gC = cute.local_tile(mC_mn, (TILE_M, TILE_N), (x, y))",
        "gC = cute.local_tile(mC_mn, (TILE_M, TILE_N), (x, (y + 1) % (n // TILE_N)))",
        T2R,
        ("stores columns 128-255 of C of group 0", "has columns 0-127 of it", f"reads the accumulator at {{{T2R}}}"),
    ),
    Mistake(
        "B of every k tile of a pair of CTAs is that of the first",
        "tBgB[None, k_tile]",
        "tBgB[None, 0]",
        "cute.copy(atoms[1]",
        ("the B operand", "k 0-63 again", "loaded by {cute.copy(atoms[1]}"),
        "256x256x1024",
        STRUCTURES / "two_cta.py",
    ),
    Mistake(
        "multicast SFB is that of the next tile of k",
        "tBgSFB[None, y, k_tile, 0]",
        "tBgSFB[None, y, k_tile ^ 1, 0]",
        CP_SFB,
        ("the SFB operand", "k 128-191", "loaded by {cute.copy(atoms[3]}", "needs SFB of group 0, rows 0-127, k 0-63"),
        "256x256x1024",
        STRUCTURES / "multicast.py",
    ),
    Mistake(
        "a persistent CTA copies SFA from SFB's buffer",
        "cute.copy(s2t_sfa, tSsSFA[None",
        "cute.copy(s2t_sfa, tSsSFB[None",
        CP_SFA,
        (f"the SFA operand of the MMA at {{{MMA}}} reads SFB of group 0",),
        "256x256x512",
        STRUCTURES / "persistent.py",
    ),
]  # fmt: skip
"""Each is found with the statement, and says what was read and what was needed."""
