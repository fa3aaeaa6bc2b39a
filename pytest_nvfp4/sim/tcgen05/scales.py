"""Scale factors in TMEM (PTX ISA, "Scale Factor A ID", "Scale Factor B ID").

One 32-bit word for each row of A (column of B): row r lies in lane r % 32, column base + r / 32, copied to all four
32-lane quadrants. Of its four bytes, ``scale_vec::4X`` takes all, in order of K; ``2X`` the half word at byte SF id (0
or 2); ``1X`` the byte SF id. The DSL puts the SF id in bits 30-31 of the address too (they are not part of a lane);
where it is there it must agree with the descriptor.

The hardware may read any quadrant's copy, so words that differ between quadrants are a fault, as are words never
written. Bits above the format (bit 7 of UE4M3) are ignored.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.tcgen05.tmem import LANES, Tmem

__all__ = ["check", "columns", "words"]

_LOW = (1 << 30) - 1


def columns(rows: int) -> int:
    """Columns that the scale factors of so many rows occupy."""
    return -(-rows // 32)


def check(tmem: Tmem, address: int, rows: int, sf_id: int, *, name: str, what: str) -> int:
    """The first column of a scale-factor matrix, after all checks.

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
    count = columns(rows)
    tmem.claim(column, count, what=what)
    if tmem.is_replicated(column, count):
        return column
    tmem.settle(column, count)
    used = np.zeros(LANES, np.bool_)
    for offset in range(count):
        here = min(32, rows - 32 * offset)
        used[:] = np.arange(LANES) % 32 < here
        tmem.need(
            column + offset, 1, used, what=f"{what}: {name}", hint="copy the scale factors to TMEM first (tcgen05.cp)"
        )
        quadrants = tmem.data[column + offset].reshape(4, 32)[:, :here]
        if not (quadrants == quadrants[0]).all():
            other, lane = (int(i[0]) for i in np.nonzero(quadrants != quadrants[0]))
            raise Fault(
                "tmem",
                f"{what}: {name} of row {32 * offset + lane}: lane {lane} of column {column + offset} holds "
                f"{int(quadrants[0, lane]):#010x}, and lane {32 * other + lane} holds "
                f"{int(quadrants[other, lane]):#010x}",
                hint="scale factors must be copied to all four quadrants (tcgen05.cp ... .warpx4)",
            )
    return column


def words(tmem: Tmem, column: int, rows: int) -> NDArray[np.uint32]:
    """A view of the words of the rows, in order, for a whole number of columns."""
    return tmem.data[column : column + columns(rows), :32]
