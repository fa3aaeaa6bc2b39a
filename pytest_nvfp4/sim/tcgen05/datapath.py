"""Lanes and columns of TMEM that hold the accumulator of one CTA (PTX ISA, "Data Path Layout Organization").

- M = 128 (``.cta_group::1``) and M = 256 (``::2``), layouts D and A: row r in lane r, column n in column n.
- M = 64 (``::1``), layout F: row r in lane 32 * (r / 16) + r % 16, plus 16 if the address has lane 16.
- M = 128 (``::2``), layout B: 64 rows for each CTA; row r in lane r for the first half of the columns of D and in lane
  64 + r for the second half, so that D takes N / 2 columns.
- M = 64 and 32 with ``.ws``, layouts E and G: as layout B, with the halves and the quarters of the columns of D in the
  halves and the quarters of the lanes. M = 128 with ``.ws`` has layout D.

Values are arranged transposed, ``[n][row]``. A in TMEM lies in the same lanes, 8 columns of 4 bytes of K. In layouts B
and G each part of the lanes must hold the same copy. In layout E each half multiplies the rows of A in its own lanes:
public kernels put two blocks of K there, and add the two halves of D (flashinfer 0.7.4, ``hca_v41_primitives``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.monitor import TmemBox
from pytest_nvfp4.sim.tcgen05.descriptor import InstructionDescriptor
from pytest_nvfp4.sim.tcgen05.operand import Chunks
from pytest_nvfp4.sim.tcgen05.tmem import LANES, Tmem

_BANKS = {"B": 2, "E": 2, "G": 4}
"""Parts of the lanes by layout, where one part of N lies in each."""


@dataclass(frozen=True, slots=True, eq=False)
class Datapath:
    """Place of an accumulator of ``rows`` x ``n`` values in one CTA's TMEM.

    Attributes:
        layout: The ISA's letter: A, B, D, E, F or G.
        columns: Number of TMEM columns.
        lanes: Lanes that hold values, None for all.
        align: 1 for layout F at lane 16, else 0.
    """

    layout: str
    rows: int
    n: int
    columns: int
    lanes: NDArray[np.bool_] | None
    align: int

    def view(self, words: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return ``[columns][128]`` words of TMEM as a view of shape ``self.shape``."""
        if self.layout == "F":
            return words.reshape(-1, 4, 2, 16)[:, :, self.align, :]
        if self.banks > 1:
            return words.reshape(-1, self.banks, LANES // self.banks).transpose(1, 0, 2)
        return words

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of ``view``, to which values ``[n][rows]`` reshape."""
        if self.layout == "F":
            return (self.n, 4, 16)
        if self.banks > 1:
            return (self.banks, self.n // self.banks, LANES // self.banks)
        return (self.n, 128)

    @property
    def banks(self) -> int:
        """Parts of the lanes that hold one part of N each."""
        return _BANKS.get(self.layout, 1)

    @property
    def halves(self) -> bool:
        """Whether lanes 0-63 hold the lower half of N and lanes 64-127 the upper."""
        return self.layout == "B"

    def boxes(self, column: int, columns: int) -> tuple[TmemBox, ...]:
        """Return the rectangles of TMEM that columns of this layout occupy."""
        if self.layout == "F":
            return tuple(TmemBox(column, columns, 32 * q + 16 * self.align, 16) for q in range(4))
        return (TmemBox(column, columns, 0, LANES),)

    def read(self, tmem: Tmem, column: int) -> NDArray[np.uint32]:
        """Return a copy of the words, ``[n][row]``."""
        words = self.view(tmem.data[column : column + self.columns])
        return np.array(words).reshape(self.n, self.rows)

    def write(self, tmem: Tmem, column: int, words: NDArray[np.uint32], enabled: NDArray[np.bool_] | None) -> None:
        """Write words ``[n][row]`` to the ``enabled`` ones of the 128 lanes (None: all)."""
        target = tmem.data[column : column + self.columns]
        if enabled is None:
            self.view(target)[...] = words.reshape(self.shape)
            return
        changed = target.copy()
        self.view(changed)[...] = words.reshape(self.shape)
        target[:, enabled] = changed[:, enabled]

    def read_a(self, tmem: Tmem, column: int, *, what: str) -> Chunks:
        """Return the rows of A, 32 bytes each, as chunks ``[row][2]``; in layout E those of both halves.

        Raises:
            Unsupported: the copies that layout B or G needs differ.
        """
        words = tmem.data[column : column + 8]
        if self.layout == "F":
            words = words.reshape(8, 4, 2, 16)[:, :, self.align, :].reshape(8, 64)
        elif self.layout in "BG":
            copies = words.reshape(8, self.banks, self.rows)
            words = copies[:, 0]
            if not (copies == words[:, None]).all():
                m = "128 over a pair of CTAs" if self.layout == "B" else "32"
                raise Unsupported(
                    f"{what}: A in TMEM, M = {m}: lanes {self.rows}-127 do not hold a copy of lanes 0-{self.rows - 1}",
                    hint=f"duplicate A over the {self.banks} parts of the lanes",
                )
        return np.ascontiguousarray(words.T).view(np.complex128).ravel()


@lru_cache(maxsize=1024)
def datapath(ins: InstructionDescriptor, lane: int, what: str) -> Datapath:
    """Return the datapath of an instruction whose D (or A) has this lane in its address.

    Raises:
        Fault: the layout does not allow the lane.
    """
    if ins.rows == 128:
        layout = "A" if ins.group == 2 else "D"
    elif ins.group == 2:
        layout = "B"
    elif ins.ws:
        layout = "E" if ins.rows == 64 else "G"
    else:
        layout = "F"
    if lane and not (layout == "F" and lane == 16):
        raise Fault(
            "tmem",
            f"{what}: lane {lane} in the TMEM address of a matrix of M = {ins.m}, .cta_group::{ins.group}; it must be "
            + ("0 or 16" if layout == "F" else "0"),
        )
    lanes = None
    if layout == "F":
        lanes = np.arange(LANES) % 32 // 16 == lane // 16
        lanes.flags.writeable = False
    return Datapath(layout, ins.rows, ins.n, ins.n // _BANKS.get(layout, 1), lanes, lane // 16)
