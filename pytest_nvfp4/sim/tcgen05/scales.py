"""Scale factors in TMEM (PTX ISA, "Scale Factor A ID", "Scale Factor B ID").

There is one 32-bit word for each row of A (column of B): row r lies in lane r % 32, column base + r / 32, copied to all
four 32-lane quadrants. Of its four bytes, ``scale_vec::4X`` takes all, in order of K; ``2X`` the half word at byte SF
id (0 or 2); ``1X`` the byte SF id. The DSL also puts the SF id in bits 30-31 of the address (they are not part of a
lane); a nonzero one there must agree with the descriptor.

With K = 96 a row has six factors, or three, which may go on in the word of the next four: its column is that of the
first plus the columns of 128 rows, rounded up (sources: the DSL's TMEM layouts for sm_103 and another generator of
kernels, which agree for 128 and 256 rows; it is unsupported for others).

The hardware may read any quadrant's copy, so that words which differ between quadrants are a fault, as are words never
written. Bits above the format (bit 7 of UE4M3) are ignored.

M = 128 over a pair of CTAs is the exception: lanes 0-63 of the accumulator and of SFB hold the lower half of N, lanes
64-127 the upper half. Each half of SFB is a matrix of N/2 columns, copied to two quadrants
(``tcgen05.cp.64x128b.warpx2::01_23``). Source: CUTLASS's traits of these instructions (``ScaleFactorDuplicated2by2``)
and the DSL's layouts, which agree.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.tcgen05.operand import UnwrittenRows
from pytest_nvfp4.sim.tcgen05.tmem import LANES, Tmem

_ADDRESS_BITS = (1 << 30) - 1
_WORD = 4
"""Scale factors in a word, and columns of the words of 128 rows."""


def columns(rows: int, *, halves: bool = False) -> int:
    """Return how many columns the scale factors of ``rows`` rows occupy; ``halves`` as in ``check``."""
    return -(-(rows // 2 if halves else rows) // 32)


def span(rows: int, vector: int, sf_id: int, *, halves: bool = False) -> int:
    """Return how many columns the factors of an instruction occupy, from the first one's to the last one's."""
    first = columns(rows, halves=halves)
    return first if sf_id + vector <= _WORD else _to_next_word(rows) + first


def _to_next_word(rows: int) -> int:
    return -(-rows // LANES) * _WORD


def check(
    tmem: Tmem, address: int, rows: int, sf_id: int, *, vector: int, name: str, what: str, halves: bool = False
) -> int:
    """Check a scale-factor matrix and return its first column.

    Args:
        tmem: The CTA's tensor memory.
        address: The address operand.
        rows: Rows of A, or columns of B.
        sf_id: The SF id of the instruction descriptor.
        vector: Scale factors of a row.
        name: ``SFA`` or ``SFB``, for messages.
        what: The instruction, for messages.
        halves: Whether lanes 0-63 hold the lower half of the rows and lanes 64-127 the upper.

    Raises:
        Fault: an address with a lane, an SF id that contradicts the descriptor, columns that are not allocated, words
            that were never written or that differ between quadrants.
        Unsupported: factors in two words of rows whose second word has no known place.
    """
    address_id = address >> 30
    column = address & _ADDRESS_BITS
    if address_id and address_id != sf_id:
        raise Fault(
            "sf-id",
            f"{what}: the address of {name} ({address:#010x}) has SF id {address_id} in bits 30-31, but the "
            f"instruction descriptor has {sf_id}",
            hint="take the descriptor's SF id from the same k-block as the address",
        )
    if column >> 16:
        raise Fault(
            "tmem",
            f"{what}: the address of {name} ({address:#010x}) has lane {column >> 16}; scale factors start at lane 0",
        )
    if span(rows, vector, sf_id, halves=halves) > columns(rows, halves=halves):
        if halves or rows % LANES:
            raise Unsupported(f"{what}: {name} of {rows} rows in two words of TMEM (SF id {sf_id}, {vector} factors)")
        _check_words(tmem, column + _to_next_word(rows), rows, name=name, what=what, halves=False)
    _check_words(tmem, column, rows, name=name, what=what, halves=halves)
    return column


def undefined_rows(tmem: Tmem, column: int, rows: int, *, vector: int, sf_id: int) -> UnwrittenRows | None:
    """Return the rows of a checked matrix of which a word is undefined; None if there are none.

    Raises:
        Fault: there are no others.
    """
    count = columns(rows)
    second = [column + _to_next_word(rows)] if span(rows, vector, sf_id) > count else []
    found = [tmem.undefined_words(start, count) for start in (column, *second)]
    fault = next((each.fault for each in found if each.fault is not None), None)
    if fault is None:
        return None
    lost = np.logical_or.reduce([each.words[:, :32].ravel()[:rows] for each in found])
    if lost.all():
        raise fault
    return UnwrittenRows(lost, fault) if lost.any() else None


def _check_words(tmem: Tmem, column: int, rows: int, *, name: str, what: str, halves: bool) -> None:
    """Check the words from a column on. Raises Fault."""
    count = columns(rows, halves=halves)
    tmem.claim(column, count, what=what)
    if not halves and tmem.is_replicated(column, count) and not tmem.undefined:
        return
    tmem.settle(column, count)
    used = np.zeros(LANES, np.bool_)
    copies = 2 if halves else 4
    for offset in range(count):
        here = min(32, (rows // 2 if halves else rows) - 32 * offset)
        used[:] = np.arange(LANES) % 32 < here
        tmem.need(
            column + offset, 1, used, what=f"{what}: {name}", undefined=not halves,
            hint="copy the scale factors to TMEM first (tcgen05.cp)",
        )  # fmt: skip
        quadrants = tmem.data[column + offset].reshape(4 // copies, copies, 32)[:, :, :here]
        if (quadrants == quadrants[:, :1]).all():
            continue
        part, copy, lane = (int(i[0]) for i in np.nonzero(quadrants != quadrants[:, :1]))
        first = 64 * part + lane
        raise Fault(
            "tmem",
            f"{what}: {name} of row {rows // 2 * part + 32 * offset + lane}: lane {first} of column {column + offset} "
            f"holds {int(quadrants[part, 0, lane]):#010x}, but lane {first + 32 * copy} holds "
            f"{int(quadrants[part, copy, lane]):#010x}",
            hint="for M = 128 over a pair of CTAs copy each half of SFB to two quadrants "
            "(tcgen05.cp.64x128b.warpx2::01_23)"
            if halves
            else "copy scale factors to all four quadrants (tcgen05.cp ... .warpx4)",
        )


def reader(
    tmem: Tmem, column: int, rows: int, *, vector: int, sf_id: int, halves: bool = False
) -> Callable[[], bytes]:  # fmt: skip
    """Return a function that reads the current words of the rows, in order, padded to whole columns of 32.

    With K = 96 the words that follow them come behind, zeros if the instruction needs none of them.
    """
    if vector in (3, 6):
        first = reader(tmem, column, rows, vector=_WORD, sf_id=0, halves=halves)
        if sf_id + vector <= _WORD:
            return lambda: first() + bytes(4 * 32 * columns(rows))
        second = reader(tmem, column + _to_next_word(rows), rows, vector=_WORD, sf_id=0)
        return lambda: first() + second()
    if not halves:
        return tmem.data[column : column + columns(rows), :32].tobytes
    where = places(column, rows, halves=True)
    padding = bytes(4 * (-rows % 32))
    return lambda: tmem.data[where].tobytes() + padding


def places(column: int, rows: int, *, halves: bool = False) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the columns and the lanes of the words of the rows, in order; ``halves`` as in ``check``."""
    if not halves:
        row = np.arange(rows)
        return column + row // 32, row % 32
    half = np.arange(rows // 2)
    return np.concatenate([column + half // 32] * 2), np.concatenate([half % 32, 64 + half % 32])
