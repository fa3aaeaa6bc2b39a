"""Lanes and columns of TMEM that hold the accumulator of one CTA (PTX ISA, "Data Path Layout Organization").

- M = 128 (``.cta_group::1``) and M = 256 (``::2``), layouts D and A: row r in lane r, column n in column n.
- M = 64 (``::1``), layout F: row r in lane 32 * (r / 16) + r % 16, plus 16 if the address has lane 16.
- M = 128 (``::2``), layout B: 64 rows for each CTA; row r in lane r for the first half of the columns of D and in lane
  64 + r for the second half, so that D takes N / 2 columns.

Values are arranged transposed, ``[n][row]``. A in TMEM lies in the same lanes, 8 columns of 4 bytes of K; in layout B
both halves of the lanes must hold the same copy.
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


@dataclass(frozen=True, slots=True, eq=False)
class Datapath:
    """Place of an accumulator of ``rows`` x ``n`` values in one CTA's TMEM.

    Attributes:
        layout: The ISA's letter: A, B, D or F.
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
        if self.layout == "B":
            return words.reshape(-1, 2, 64).transpose(1, 0, 2)
        return words

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of ``view``, to which values ``[n][rows]`` reshape."""
        if self.layout == "F":
            return (self.n, 4, 16)
        if self.layout == "B":
            return (2, self.n // 2, 64)
        return (self.n, 128)

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
        """Return the rows of A, 32 bytes each, as chunks ``[row][2]``.

        Raises:
            Unsupported: the two copies that layout B needs differ.
        """
        words = tmem.data[column : column + 8]
        if self.layout == "F":
            words = words.reshape(8, 4, 2, 16)[:, :, self.align, :].reshape(8, 64)
        elif self.layout == "B":
            if not (words[:, :64] == words[:, 64:]).all():
                raise Unsupported(
                    f"{what}: A in TMEM, M = 128 over a pair of CTAs: lanes 64-127 do not hold a copy of lanes 0-63",
                    hint="duplicate A over the two halves of the lanes",
                )
            words = words[:, :64]
        return np.ascontiguousarray(words.T).view(np.complex128).ravel()


@lru_cache(maxsize=1024)
def datapath(ins: InstructionDescriptor, lane: int, what: str) -> Datapath:
    """Return the datapath of an instruction whose D (or A) has this lane in its address.

    Raises:
        Fault: the layout does not allow the lane.
    """
    if ins.rows == 128:
        layout, columns = ("A" if ins.group == 2 else "D"), ins.n
    elif ins.group == 2:
        layout, columns = "B", ins.n // 2
    else:
        layout, columns = "F", ins.n
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
    return Datapath(layout, ins.rows, ins.n, columns, lanes, lane // 16)
