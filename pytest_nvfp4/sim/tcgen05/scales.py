"""Scale factors in TMEM (PTX ISA, "Scale Factor A ID", "Scale Factor B ID").

One 32-bit word for each row of A (column of B): row r lies in lane r % 32, column base + r / 32, copied to all four
32-lane quadrants. Of its four bytes, ``scale_vec::4X`` takes all, in order of K; ``2X`` the half word at byte SF id (0
or 2); ``1X`` the byte SF id. The DSL puts the SF id in bits 30-31 of the address too (they are not part of a lane);
where it is there it must agree with the descriptor.

The hardware may read any quadrant's copy, so words that differ between quadrants are a fault, as are words never
written. Bits above the format (bit 7 of UE4M3) are ignored.

M = 128 over a pair of CTAs is the exception: the accumulator's lanes 0-63 hold the lower half of N and lanes 64-127 the
upper, and so do those of SFB: each half is a matrix of N/2 columns, copied to two quadrants
(``tcgen05.cp.64x128b.warpx2::01_23``). This rests on CUTLASS's traits of these instructions
(``ScaleFactorDuplicated2by2``) and on the DSL's layouts, which say the same.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.tcgen05.tmem import LANES, Tmem

__all__ = ["Words", "check", "columns", "words"]

_LOW = (1 << 30) - 1


class Words(Protocol):
    """The words of a scale-factor matrix, as they are in TMEM when they are asked for."""

    def tobytes(self) -> bytes:
        """The words in the order of the rows."""


class _Halves:
    """The words of a matrix whose upper half lies in lanes 64-127."""

    def __init__(self, tmem: Tmem, column: int, rows: int) -> None:
        half = np.arange(rows // 2)
        self._data = tmem.data
        self._column = np.concatenate([column + half // 32] * 2)
        self._lane = np.concatenate([half % 32, 64 + half % 32])
        self._padding = bytes(4 * (-rows % 32))

    def tobytes(self) -> bytes:
        words: NDArray[np.uint32] = self._data[self._column, self._lane]
        return words.tobytes() + self._padding


def columns(rows: int, *, halves: bool = False) -> int:
    """Columns that the scale factors of so many rows occupy; with ``halves`` the upper half has lanes of its own."""
    return -(-(rows // 2 if halves else rows) // 32)


def check(tmem: Tmem, address: int, rows: int, sf_id: int, *, name: str, what: str, halves: bool = False) -> int:
    """The first column of a scale-factor matrix, after all checks.

    Args:
        tmem: The CTA's tensor memory.
        address: The address operand.
        rows: Rows of A, or columns of B.
        sf_id: The SF id of the instruction descriptor.
        name: What the matrix is called in messages.
        what: The instruction, for messages.
        halves: Whether lanes 0-63 hold the lower half of the rows and lanes 64-127 the upper.

    Raises:
        Fault: an address with a lane, an SF id that contradicts the descriptor, columns that are not allocated, words
            that were never written or that differ between quadrants.
    """
    tagged = address >> 30
    column = address & _LOW
    if tagged and tagged != sf_id:
        raise Fault(
            "sf-id",
            f"{what}: the address of {name} ({address:#010x}) has SF id {tagged} in bits 30-31, and the instruction "
            f"descriptor has {sf_id}",
            hint="the descriptor's SF id must be taken from the same k-block as the address",
        )
    if column >> 16:
        raise Fault(
            "tmem",
            f"{what}: the address of {name} ({address:#010x}) has lane {column >> 16}; scale factors start at lane 0",
        )
    count = columns(rows, halves=halves)
    tmem.claim(column, count, what=what)
    if not halves and tmem.is_replicated(column, count):
        return column
    tmem.settle(column, count)
    used = np.zeros(LANES, np.bool_)
    copies = 2 if halves else 4
    for offset in range(count):
        here = min(32, (rows // 2 if halves else rows) - 32 * offset)
        used[:] = np.arange(LANES) % 32 < here
        tmem.need(
            column + offset, 1, used, what=f"{what}: {name}", hint="copy the scale factors to TMEM first (tcgen05.cp)"
        )
        quadrants = tmem.data[column + offset].reshape(4 // copies, copies, 32)[:, :, :here]
        if (quadrants == quadrants[:, :1]).all():
            continue
        part, copy, lane = (int(i[0]) for i in np.nonzero(quadrants != quadrants[:, :1]))
        first = 64 * part + lane
        raise Fault(
            "tmem",
            f"{what}: {name} of row {rows // 2 * part + 32 * offset + lane}: lane {first} of column {column + offset} "
            f"holds {int(quadrants[part, 0, lane]):#010x}, and lane {first + 32 * copy} holds "
            f"{int(quadrants[part, copy, lane]):#010x}",
            hint="for M = 128 over a pair of CTAs each half of SFB must be copied to two quadrants "
            "(tcgen05.cp.64x128b.warpx2::01_23)"
            if halves
            else "scale factors must be copied to all four quadrants (tcgen05.cp ... .warpx4)",
        )
    return column


def words(tmem: Tmem, column: int, rows: int, *, halves: bool = False) -> Words:
    """The words of the rows, in order, for a whole number of columns of 32."""
    if halves:
        return _Halves(tmem, column, rows)
    return tmem.data[column : column + columns(rows), :32]
