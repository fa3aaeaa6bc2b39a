"""Scale factors of one operand of a kernel, and their expected layouts in shared memory and TMEM.

A tile has ``rows`` rows and KB k-blocks of one MMA (64 elements) each; a factor belongs to V elements, so one MMA takes
64 / V = 4 (NVFP4) or 2 (MXFP4) factors of each row. Shared memory has the 128x4 blocks of global memory, 512 bytes each
(`pytest_nvfp4.proof.scale_factors`).

TMEM addresses of one-byte elements count bytes: the lane is ``address >> 18``, the column ``address >> 2 & 0xffff``.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_nvfp4.layout.grammar import parse_plain_layout
from pytest_nvfp4.layout.notation import Layout

LANE = 1 << 18
"""Step of one lane in a TMEM address of one-byte elements."""
LANES, LANE_BYTES = 128, 2048
MMA_K = 64
"""Elements of k of one MMA: 4-bit operands have K = 64 (PTX ISA, "Matrix Shape")."""
BLOCK = 512
"""Bytes of 128 rows by 4 factors."""


@dataclass(frozen=True, slots=True)
class ScaleOperand:
    """Scale factors of A or B in one kernel.

    Attributes:
        name: ``SFA`` or ``SFB``.
        rows: Rows that one CTA's MMA scales: M of a CTA, or N.
        vector: Elements that share a factor.
        smem: Shared memory, ``((rows, 64), 1, KB[, stages])`` -> byte.
        tmem: TMEM, ``(((rows, 4 copies), 64), 1, KB)`` -> address of a byte.
        source: The copy's matrix descriptors, ``(line.., 1, .., KB[, stages])`` -> 16-byte unit; None if not found.
        target: The copy's TMEM side, ``((32, 16, 4).., 1, .., KB)`` -> address of a byte; None if not found.
        names: The kernel's variables that hold these layouts.
    """

    name: str
    rows: int
    vector: int
    smem: Layout
    tmem: Layout
    source: Layout | None = None
    target: Layout | None = None
    names: tuple[str, ...] = ()

    @property
    def factors(self) -> int:
        """Number of factors of a row for one MMA."""
        return MMA_K // self.vector


def explicit_smem(*, rows: int, tile_k: int, vector: int, stages: int) -> str:
    """Return the shared-memory layout of ``rows`` x ``tile_k`` elements a stage, in whole blocks of 128 rows."""
    blocks, ktiles = -(-rows // 128), tile_k // (4 * vector)
    shape_k, stride_k = _mma_modes(tile_k, vector, step=BLOCK)
    return (
        f"((((32,4),{blocks}),({vector},{MMA_K // vector})),1,{shape_k},{stages}):"
        f"((((16,4),{BLOCK * ktiles}),(0,1)),0,{stride_k},{BLOCK * ktiles * blocks})"
    )


def explicit_tmem(*, rows: int, tile_k: int, vector: int) -> str:
    """Return the TMEM layout of the same tile: one column for 32 rows and four factors, in four copies."""
    columns = 4 * -(-rows // 128)
    shape_k, stride_k = _mma_modes(tile_k, vector, step=4 * columns)
    return (
        f"((((32,{columns}),4),({vector},{MMA_K // vector})),1,{shape_k}):"
        f"(((({LANE},4),{32 * LANE}),(0,1)),0,{stride_k})"
    )


def explicit_copy(*, rows: int, tile_k: int, vector: int, stages: int) -> tuple[str, str]:
    """Return the copy's source in 16-byte units and its target: one instruction for each 512-byte block."""
    blocks, ktiles = -(-rows // 128), tile_k // (4 * vector)
    return (
        f"(((32,4),1),{blocks},{ktiles},{stages}):(((1,0),0),{32 * ktiles},32,{32 * ktiles * blocks})",
        f"(((32,16,4),1),{blocks},{ktiles}):((({LANE},1,{32 * LANE}),0),16,{16 * blocks})",
    )


def _mma_modes(tile_k: int, vector: int, *, step: int) -> tuple[str, str]:
    """Return size and stride of the k-blocks: 4 factors belong to one MMA (V = 16) or two (V = 32)."""
    count = tile_k // MMA_K
    return (str(count), str(step)) if vector == 16 else (f"(2,{count // 2})", f"(2,{step})")


def explicit_operand(*, rows: int, tile_k: int = 256, vector: int = 16, stages: int = 2) -> ScaleOperand:
    """Return an operand with every layout as expected."""
    source, target = explicit_copy(rows=rows, tile_k=tile_k, vector=vector, stages=stages)
    return ScaleOperand(
        name=f"{rows} rows, V = {vector}",
        rows=rows,
        vector=vector,
        smem=parse_plain_layout(explicit_smem(rows=rows, tile_k=tile_k, vector=vector, stages=stages)),
        tmem=parse_plain_layout(explicit_tmem(rows=rows, tile_k=tile_k, vector=vector)),
        source=parse_plain_layout(source),
        target=parse_plain_layout(target),
    )
