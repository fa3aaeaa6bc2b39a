"""Structured inputs: outputs that show, one by one, how a kernel decodes each operand.

Both probes make every odd row of A and of B a *reader* and the even rows *data*. Where a data row meets a reader, the
output is a single operand (or 16 times a single scale factor) of the data row, exact in fp16, so a wrong decode is
visible directly; where two data rows meet, they form an ordinary dense product.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.numerics.arrays import Bytes
from pytest_nvfp4.numerics.formats import E4M3
from pytest_nvfp4.numerics.packing import pack
from pytest_nvfp4.numerics.quantise import BLOCK

ONE = 0x2
"""E2M1 code of 1."""
SCALE_ONE = 0x38
"""E4M3 code of 1."""


def reader_positions(rows: int, k: int) -> NDArray[np.int64]:
    """Return the element of k that reader ``i`` (row ``2 i + 1``) reads: whole blocks, spread over k.

    Sixteen readers in a row read the sixteen elements of one block. The blocks are spread so that few readers still
    reach the first and the last k-tile, and staggered so that they fall on all four places of a scale tile.
    """
    readers = rows // 2
    blocks = k // BLOCK
    sets = max(1, -(-readers // BLOCK))
    index = np.arange(readers)
    step = max(1, blocks // sets)
    turn = index // BLOCK
    block = (turn * step + turn % step) % blocks
    return block * BLOCK + index % BLOCK


def onehot_operand(rows: int, k: int, *, opposite: int, start: int) -> tuple[Bytes, Bytes]:
    """Make the packed operand and plain scales of the decode probe.

    Even (data) row ``i``: in every block all sixteen codes in order, under a scale code that steps through 0..0x7E over
    those blocks that the other operand's ``opposite`` rows read, from ``start`` on; 127 blocks of data rows cover all
    2032 pairs. Odd (reader) rows: a single 1 at :func:`reader_positions`, scale 1 throughout.
    """
    blocks = k // BLOCK
    codes = np.zeros((rows, blocks, BLOCK), dtype=np.uint8)
    scales = np.full((rows, blocks), SCALE_ONE, dtype=np.uint8)
    data = np.arange(0, rows, 2)
    codes[data] = np.arange(16, dtype=np.uint8)
    read = np.unique(reader_positions(opposite, k) // BLOCK)
    rank = np.searchsorted(read, np.arange(blocks)) % max(1, read.size)
    stepped = start + np.arange(data.size)[:, None] * max(1, read.size) + rank[None, :]
    scales[data] = (stepped % (E4M3.largest + 1)).astype(np.uint8)
    readers = np.arange(1, rows, 2)
    codes.reshape(rows, k)[readers, reader_positions(rows, k)] = ONE
    return pack(codes.reshape(rows, k)), scales


def ones_block_operand(rows: int, blocks: int, *, start: int) -> tuple[Bytes, Bytes]:
    """Make the packed operand and plain scales of the position probe: elements are 1, only scales differ.

    Data row ``r`` has in block ``j`` the scale code :func:`position_code`. A reader has scale 1 in one block and 0
    elsewhere, so it reads 16 times that block's scale of every data row; the readers take the blocks in turn, or are
    spread over them when there are fewer readers than blocks.
    """
    scales = np.zeros((rows, blocks), dtype=np.uint8)
    data = np.arange(0, rows, 2)
    scales[data] = position_code(data[:, None], np.arange(blocks)[None, :], start=start)
    readers = np.arange(1, rows, 2)
    index = np.arange(readers.size)
    scales[readers, index % blocks if readers.size >= blocks else index * blocks // readers.size] = SCALE_ONE
    return np.full((rows, blocks * BLOCK // 2), ONE | ONE << 4, dtype=np.uint8), scales


def position_code(row: NDArray[np.int64], block: NDArray[np.int64], *, start: int = 0) -> Bytes:
    """Return a finite, non-zero scale code for a position.

    It is 1 + (5 row + 17 block + 31 (row // 32) + 43 (row // 128) + 7 (block // 4) + start) mod 126.

    The steps differ modulo 126 for neighbouring rows, blocks, bands of 32 rows, tiles of 128 rows and groups of four
    blocks, and for exchanges of those, so a factor taken from the wrong one of them has another value.
    """
    place = 5 * row + 17 * block + 31 * (row // 32) + 43 * (row // 128) + 7 * (block // 4) + start
    return (1 + place % E4M3.largest).astype(np.uint8)
