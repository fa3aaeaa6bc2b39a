"""Where every scale factor of an operand lies in shared memory and in TMEM, and whether that is where it has to.

``tcgen05.mma .block_scale`` reads the factors of row r in lane r % 32 of every quadrant, in column base + r // 32, with
4 factors all bytes, with 2 those from the byte that the scale-factor id says, 0 or 2 (PTX ISA, "Scale Factor A ID",
"Scale Factor B ID"). Every place is looked at; nothing here needs a solver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_nvfp4.layout.algebra import modes
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.notation import Layout
from pytest_nvfp4.layout.offsets import domain_size, offset_array
from pytest_nvfp4.proof.scale_operand import BLOCK, LANE, MMA_K, Operand
from pytest_nvfp4.proof.statement import Look

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Every index of an operand's layout, taken apart; arrays of one length.

    Attributes:
        offset: The layout's value there: a byte of shared memory, or the address of a byte of TMEM.
        row: The row that is scaled.
        copy: Which of the copies of a row in TMEM; 0 in shared memory.
        k: The element of k in its MMA.
        mma: Which MMA of k.
        stage: The stage of shared memory; 0 in TMEM.
    """

    offset: NDArray[np.int64]
    row: NDArray[np.int64]
    copy: NDArray[np.int64]
    k: NDArray[np.int64]
    mma: NDArray[np.int64]
    stage: NDArray[np.int64]

    def within(self, rows: int) -> Places:
        """Those of the rows that are used."""
        keep = self.row < rows
        return Places(*(getattr(self, name)[keep] for name in self.__slots__))

    @property
    def size(self) -> tuple[int, int]:
        """Rows and MMAs of k that the layout has."""
        return int(self.row.max()) + 1, int(self.mma.max()) + 1

    def at(self, index: int) -> str:
        """One place in words."""
        copy = f", copy {self.copy[index]}" if self.copy.any() else ""
        return f"row {self.row[index]}, k {self.mma[index] * MMA_K + self.k[index]}, stage {self.stage[index]}{copy}"


def places_of(layout: Layout, *, copies: int) -> Places:
    """The indices of ``((rows x copies, 64), 1, KB[, stages])``. Raises LayoutError for another shape."""
    import numpy as np

    parts = modes(layout)
    if len(parts) not in (3, 4) or len(modes(parts[0])) != 2:
        raise LayoutError(f"{layout}: not of the form ((rows, k), 1, MMAs of k[, stages])")
    row_mode, k_mode = modes(parts[0])
    sizes = [domain_size(part) for part in parts]
    if 0 in sizes:
        raise LayoutError(f"{layout}: it is empty")
    if domain_size(k_mode) != MMA_K or sizes[1] != 1:
        raise LayoutError(
            f"{layout}: an MMA takes 64 elements of k and all rows; here it is {domain_size(k_mode)} elements, and "
            f"{sizes[1]} MMAs along the rows"
        )
    all_rows = domain_size(row_mode)
    rows = all_rows // copies
    index = np.arange(domain_size(layout), dtype=np.int64)
    rest, inner = np.divmod(index, sizes[0])
    k, row = np.divmod(inner, all_rows)
    stage, mma = np.divmod(rest, sizes[2])
    return Places(offset_array(layout), row % rows, row // rows, k, mma, stage)


def look_at_smem(operand: Operand) -> Look:
    """Whether shared memory holds the tile as blocks of 128 x 4 factors, stage after stage."""
    places = places_of(operand.smem, copies=1)
    if (short := missing_rows(operand, places, "shared memory")) is not None:
        return short, 1
    rows, mmas = places.size
    blocks, ktiles = -(-rows // 128), mmas * MMA_K // (4 * operand.vector)
    used = places.within(operand.rows)
    factor = (used.mma * MMA_K + used.k) // operand.vector
    tile = (used.stage * blocks + used.row // 128) * ktiles + factor // 4
    wanted = tile * BLOCK + used.row % 32 * 16 + used.row % 128 // 32 * 4 + factor % 4
    return _first_wrong(operand, used, wanted, lambda byte: f"byte {byte}")


def look_at_tmem(operand: Operand, *, shift: int = 0) -> Look:
    """Whether the TMEM layout is what the MMA reads; with ``shift``, wrongly, so many bytes on."""
    places = places_of(operand.tmem, copies=4)
    if (short := missing_rows(operand, places, "TMEM")) is not None:
        return short, 1
    # The address that each MMA is given: its first factor's. The last two bits are the scale-factor id.
    base = places.offset[(places.row == 0) & (places.copy == 0) & (places.k == 0) & (places.stage == 0)] + shift
    legal = {0} if operand.factors == 4 else {0, 2}
    for mma, address in enumerate(base.tolist()):
        if address % 4 not in legal:
            return f"{operand.name}: MMA {mma} starts at byte {address % 4} of a column, and may at {legal}", len(base)
    used = places.within(operand.rows)
    lane = used.row % 32 + 32 * used.copy
    wanted = base[used.mma] + lane * LANE + used.row // 32 * 4 + used.k // operand.vector
    return _first_wrong(operand, used, wanted, tmem_words)


def missing_rows(operand: Operand, places: Places, where: str) -> str | None:
    """That a layout has fewer rows than the MMA reads, or None."""
    rows, _ = places.size
    if rows >= operand.rows:
        return None
    return f"{operand.name}: {where} has {rows} rows, and the MMA reads {operand.rows}"


def _first_wrong(operand: Operand, used: Places, wanted: NDArray[np.int64], shown: Callable[[int], str]) -> Look:
    import numpy as np

    wrong = np.flatnonzero(used.offset != wanted)
    if not len(wrong):
        return None, len(wanted)
    at = int(wrong[0])
    found, due = shown(int(used.offset[at])), shown(int(wanted[at]))
    return f"{operand.name}, {used.at(at)} is at {found}, not {due}", len(wanted)


def tmem_words(address: int) -> str:
    """A TMEM address of a byte in words."""
    return f"lane {address // LANE}, column {address % LANE // 4}, byte {address % 4}"
