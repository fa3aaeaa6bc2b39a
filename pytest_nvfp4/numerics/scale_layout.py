"""Scale factors: plain ``[rows, k // 16]`` and the reordered layout of 128x4 tiles that the hardware reads.

The formula (cuBLAS documentation, "1D Block Scaling Factors Layout", and equally GPU MODE's reference and CUTLASS's
``BlockScaledBasicChunk``): the factor of row ``r`` and k-block ``j`` lies at byte

    offset(r, j) = ((r // 128) * rest_k + j // 4) * 512 + (r % 32) * 16 + (r % 128) // 32 * 4 + j % 4

with ``rest_k = ceil(blocks / 4)``: 512-byte tiles of 128 rows by 4 k-blocks in row-major order, and inside a tile 32
lines of 16 bytes, each with 4 k-blocks of rows ``i``, ``i + 32``, ``i + 64`` and ``i + 96``. Tiles are stored whole, so
rows past the last and k-blocks past the last are *padding*. cuBLAS asks for zeroes there; GPU MODE fills in random
finite factors; a kernel must not let them reach a stored output, whatever they are.

GPU MODE's tensor is ``[32, 4, rest_m, 4, rest_k, l]`` = (r % 32, r % 128 // 32, r // 128, j % 4, j // 4, batch), over
memory ordered (l, rest_m, rest_k, 32, 4, 4): its bytes are the flat layout, one batch after another.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.numerics.arrays import Bytes, NumericsError, ceil_div, require_bytes

ROWS = 128
"""Rows of a tile."""
BLOCKS = 4
"""k-blocks of a tile."""
TILE_BYTES = ROWS * BLOCKS

_Index = TypeVar("_Index", int, NDArray[np.int64])

# Axes of memory (l, rest_m, rest_k, 32, 4, 4) as GPU MODE names them, and back.
_TO_TENSOR = (3, 4, 1, 5, 2, 0)
_TO_MEMORY = (5, 2, 4, 0, 1, 3)


def reordered_shape(*, rows: int, blocks: int, batches: int = 1) -> tuple[int, int, int, int, int, int]:
    """Return ``(32, 4, rest_m, 4, rest_k, l)`` for plain factors ``[rows, blocks, batches]``."""
    return (32, 4, ceil_div(rows, ROWS), 4, ceil_div(blocks, BLOCKS), batches)


def offset(row: _Index, block: _Index, *, blocks: int) -> _Index:
    """Return the byte offset of the factor of ``row`` and k-block ``block``, given ``blocks`` k-blocks a row."""
    tile = row // ROWS * ceil_div(blocks, BLOCKS) + block // BLOCKS
    return tile * TILE_BYTES + row % 32 * 16 + row % ROWS // 32 * 4 + block % BLOCKS


def reorder(plain: Bytes, *, padding: int | Bytes = 0) -> Bytes:
    """Reorder plain ``[rows, blocks]`` or ``[rows, blocks, l]`` to ``[32, 4, rest_m, 4, rest_k, l]``.

    Args:
        plain: E4M3 bytes.
        padding: what padding holds: one byte (0x7F is NaN), or bytes ``[128 * rest_m, 4 * rest_k, l]`` of which only
            the padding is used.

    Returns:
        A tensor with GPU MODE's strides, so that :func:`flatten` of it copies nothing.

    Raises:
        NumericsError: a wrong rank, dtype or padding.
    """
    require_bytes("plain scale factors", plain)
    if plain.ndim == 2:
        plain = plain[:, :, None]
    if plain.ndim != 3:
        raise NumericsError(f"plain scale factors have shape {list(plain.shape)}, not [rows, blocks] or [.., l]")
    rows, blocks, batches = plain.shape
    rest_m, rest_k = ceil_div(rows, ROWS), ceil_div(blocks, BLOCKS)
    full = (rest_m * ROWS, rest_k * BLOCKS, batches)
    if isinstance(padding, int):
        if not 0 <= padding <= 255:
            raise NumericsError(f"padding {padding} is not a byte")
        padded = np.full(full, padding, dtype=np.uint8)
    else:
        padded = require_bytes("padding", padding, shape=full).copy()
    padded[:rows, :blocks] = plain
    tiles = padded.reshape(rest_m, 4, 32, rest_k, BLOCKS, batches)
    memory = np.ascontiguousarray(tiles.transpose(5, 0, 3, 2, 1, 4))
    return memory.transpose(_TO_TENSOR)


def restore(reordered: Bytes, *, rows: int, blocks: int) -> Bytes:
    """Return the plain factors ``[rows, blocks, l]`` of a reordered tensor, without padding.

    Raises:
        NumericsError: the tensor is not the one for ``rows`` and ``blocks``.
    """
    require_bytes("reordered scale factors", reordered)
    batches = reordered.shape[-1] if reordered.ndim == 6 else 1
    expected = reordered_shape(rows=rows, blocks=blocks, batches=batches)
    if reordered.shape != expected:
        raise NumericsError(f"reordered scale factors have shape {list(reordered.shape)}, not {list(expected)}")
    _, _, rest_m, _, rest_k, _ = expected
    tiles = reordered.transpose(_TO_MEMORY).transpose(1, 4, 3, 2, 5, 0)
    return tiles.reshape(rest_m * ROWS, rest_k * BLOCKS, batches)[:rows, :blocks]


def flatten(reordered: Bytes) -> Bytes:
    """Return the flat bytes that cuBLAS reads, batch after batch; a view if the tensor has GPU MODE's strides."""
    if reordered.ndim != 6:
        raise NumericsError(f"shape {list(reordered.shape)} is not [32, 4, rest_m, 4, rest_k, l]")
    return reordered.transpose(_TO_MEMORY).reshape(-1)
