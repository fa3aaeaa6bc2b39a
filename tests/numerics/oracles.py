"""Inverses of the package's conversions, which prove them."""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.numerics import scale_layout
from pytest_nvfp4.numerics.arrays import Bytes, Float64, Int64, Mask, ceil_div
from pytest_nvfp4.numerics.formats import E2M1, E4M3
from pytest_nvfp4.numerics.packing import unpack
from pytest_nvfp4.numerics.quantise import BLOCK
from pytest_nvfp4.numerics.scale_layout import BLOCKS, ROWS, TILE_BYTES


def dequantise(packed: Bytes, scales: Bytes) -> Float64:
    """Return the values ``[rows, k]`` in float64 (exact): element times the scale factor of its block."""
    codes = unpack(packed)
    assert scales.shape == (codes.shape[0], ceil_div(codes.shape[1], BLOCK))
    scale = np.repeat(E4M3.decode(scales), BLOCK, axis=1)[:, : codes.shape[1]]
    return E2M1.decode(codes).astype(np.float64) * scale


def position(byte: Int64, *, blocks: int) -> tuple[Int64, Int64]:
    """Return ``(row, block)`` of a byte offset, the inverse of ``scale_layout.offset``."""
    tile, inside = byte // TILE_BYTES, byte % TILE_BYTES
    rest_k = ceil_div(blocks, BLOCKS)
    row = tile // rest_k * ROWS + inside % 16 // 4 * 32 + inside // 16
    return row, tile % rest_k * BLOCKS + inside % BLOCKS


def flat_size(*, rows: int, blocks: int) -> int:
    """Return the size of the flat layout in bytes, padding included."""
    return ceil_div(rows, ROWS) * ceil_div(blocks, BLOCKS) * TILE_BYTES


def unflatten(flat: Bytes, *, rows: int, blocks: int, batches: int = 1) -> Bytes:
    """Return the reordered view of flat bytes, the inverse of ``scale_layout.flatten``."""
    memory = flat.reshape(batches, ceil_div(rows, ROWS), ceil_div(blocks, BLOCKS), 32, 4, 4)
    return memory.transpose(3, 4, 1, 5, 2, 0)


def padding_mask(*, rows: int, blocks: int, batches: int = 1) -> Mask:
    """Return which elements of the reordered tensor are padding."""
    return np.equal(scale_layout.reorder(np.ones((rows, blocks, batches), dtype=np.uint8)), 0)
