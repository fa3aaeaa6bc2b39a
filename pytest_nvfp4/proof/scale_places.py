"""Places of an operand's scale factors in shared memory and TMEM, compared with the places that the MMA reads.

``tcgen05.mma .block_scale`` reads the factors of row r in lane r % 32 of every quadrant, in column base + r // 32, with
4 factors all bytes, with 2 those from the byte that the scale-factor id selects, 0 or 2 (PTX ISA, "Scale Factor A ID",
"Scale Factor B ID"). Every place is checked; no solver is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.layout.algebra import modes
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.notation import Layout
from pytest_nvfp4.layout.offsets import domain_size, offset_array
from pytest_nvfp4.proof.scale_operand import BLOCK, LANE, MMA_K, ScaleOperand
from pytest_nvfp4.proof.statement import CaseResult


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Every index of an operand's layout, decomposed; arrays of one length.

    Attributes:
        offset: The layout's value there: a byte of shared memory, or the address of a byte of TMEM.
        row: The scaled row.
        copy: Number of the copy of a row in TMEM; 0 in shared memory.
        k: The element of k in its MMA.
        mma: Number of the MMA along k.
        stage: The stage of shared memory; 0 in TMEM.
    """

    offset: NDArray[np.int64]
    row: NDArray[np.int64]
    copy: NDArray[np.int64]
    k: NDArray[np.int64]
    mma: NDArray[np.int64]
    stage: NDArray[np.int64]

    def within(self, rows: int) -> Places:
        """Return the places of the first ``rows`` rows."""
        keep = self.row < rows
        return Places(*(getattr(self, name)[keep] for name in self.__slots__))

    @property
    def size(self) -> tuple[int, int]:
        """Number of rows and of MMAs along k."""
        return int(self.row.max()) + 1, int(self.mma.max()) + 1

    def at(self, index: int) -> str:
        """Format one place."""
        copy = f", copy {self.copy[index]}" if self.copy.any() else ""
        return f"row {self.row[index]}, k {self.mma[index] * MMA_K + self.k[index]}, stage {self.stage[index]}{copy}"


def places_of(layout: Layout, *, copies: int) -> Places:
    """Decompose ``((rows x copies, 64), 1, KB[, stages])``. Raises LayoutError for another shape."""
    parts = modes(layout)
    if len(parts) not in (3, 4) or len(modes(parts[0])) != 2:
        raise LayoutError(f"{layout}: not of the form ((rows, k), 1, MMAs of k[, stages])")
    row_mode, k_mode = modes(parts[0])
    sizes = [domain_size(part) for part in parts]
    if 0 in sizes:
        raise LayoutError(f"{layout}: the layout is empty")
    if domain_size(k_mode) != MMA_K or sizes[1] != 1:
        raise LayoutError(
            f"{layout}: an MMA takes {MMA_K} elements of k and all rows; this layout has {domain_size(k_mode)} "
            f"elements and {sizes[1]} MMAs along the rows"
        )
    all_rows = domain_size(row_mode)
    rows = all_rows // copies
    index = np.arange(domain_size(layout), dtype=np.int64)
    rest, inner = np.divmod(index, sizes[0])
    k, row = np.divmod(inner, all_rows)
    stage, mma = np.divmod(rest, sizes[2])
    return Places(offset_array(layout), row % rows, row // rows, k, mma, stage)


def check_smem(operand: ScaleOperand) -> CaseResult:
    """Check that shared memory holds the tile as blocks of 128 x 4 factors, stage after stage."""
    places = places_of(operand.smem, copies=1)
    if (short := missing_rows(operand, places, "shared memory")) is not None:
        return CaseResult(short, 1)
    rows, mmas = places.size
    blocks, ktiles = -(-rows // 128), mmas * MMA_K // (4 * operand.vector)
    used = places.within(operand.rows)
    factor = (used.mma * MMA_K + used.k) // operand.vector
    tile = (used.stage * blocks + used.row // 128) * ktiles + factor // 4
    expected = tile * BLOCK + used.row % 32 * 16 + used.row % 128 // 32 * 4 + factor % 4
    return _compare(operand, used, expected, lambda byte: f"byte {byte}")


def check_tmem(operand: ScaleOperand, *, shift: int = 0) -> CaseResult:
    """Check that the TMEM layout is what the MMA reads; with ``shift``, wrongly, that many bytes later."""
    places = places_of(operand.tmem, copies=4)
    if (short := missing_rows(operand, places, "TMEM")) is not None:
        return CaseResult(short, 1)
    # Each MMA receives the address of its first factor; its last two bits are the scale-factor id.
    base = places.offset[(places.row == 0) & (places.copy == 0) & (places.k == 0) & (places.stage == 0)] + shift
    legal = {0} if operand.factors == 4 else {0, 2}
    for mma, address in enumerate(base.tolist()):
        if address % 4 not in legal:
            wrong = f"{operand.name}: MMA {mma} starts at byte {address % 4} of a column; legal are {legal}"
            return CaseResult(wrong, len(base))
    used = places.within(operand.rows)
    lane = used.row % 32 + 32 * used.copy
    expected = base[used.mma] + lane * LANE + used.row // 32 * 4 + used.k // operand.vector
    return _compare(operand, used, expected, tmem_words)


def missing_rows(operand: ScaleOperand, places: Places, where: str) -> str | None:
    """Return a message if a layout has fewer rows than the MMA reads."""
    rows, _ = places.size
    if rows >= operand.rows:
        return None
    return f"{operand.name}: {where} has {rows} rows, and the MMA reads {operand.rows}"


def _compare(
    operand: ScaleOperand, used: Places, expected: NDArray[np.int64], shown: Callable[[int], str]
) -> CaseResult:
    wrong = np.flatnonzero(used.offset != expected)
    if not len(wrong):
        return CaseResult(None, len(expected))
    at = int(wrong[0])
    actual, due = shown(int(used.offset[at])), shown(int(expected[at]))
    return CaseResult(f"{operand.name}, {used.at(at)} is at {actual}, not {due}", len(expected))


def tmem_words(address: int) -> str:
    """Format the TMEM address of a byte."""
    return f"lane {address // LANE}, column {address % LANE // 4}, byte {address % 4}"
