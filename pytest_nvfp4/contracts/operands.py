"""The tensors of GPU MODE's NVFP4 tasks: packed operands, scale factors in both layouts, and fp16 outputs.

All have a batch ``l`` as their last dimension, which is the outermost in memory.
"""

from __future__ import annotations

import struct

from pytest_nvfp4.contracts.call import Tensor, described_rows, described_scales, row_major
from pytest_nvfp4.numerics import scale_layout
from pytest_nvfp4.numerics.arrays import Bytes, ceil_div
from pytest_nvfp4.numerics.inputs import Guard
from pytest_nvfp4.numerics.quantise import BLOCK

NAN_SCALE = 0x7F
"""NaN as a scale factor (E4M3)."""
_BATCH_FIRST = (2, 0, 1)
_REORDERED = (5, 2, 4, 0, 1, 3)
"""Dimensions of reordered scale factors from the outermost in memory (``numerics.scale_layout``)."""


def operand_bytes(rows: int, k: int) -> int:
    """Return the bytes of packed rows and of their scale factors, without the padding of tiles."""
    return rows * (ceil_div(k, 2) + ceil_div(k, BLOCK))


def packed(name: str, rows: int, k: int, batches: int, *, data: Bytes | None, guard: Guard | None) -> Tensor:
    """Return a float4_e2m1fn_x2 tensor ``[rows, k // 2, l]``, K-major; ``data`` in the order of memory."""
    guard, half = guard or Guard(), k // 2
    shape = rows, half, batches
    return Tensor(
        name,
        "float4_e2m1fn_x2",
        shape,
        row_major(shape, _BATCH_FIRST),
        rows * half * batches,
        data=None if data is None else data.reshape(-1),
        after=guard.packed_rows_after * half,
        guard=guard.packed_byte,
        spoil=guard.packed_byte,
        blank=True,
        describe=described_rows(name, half, lambda byte: f"k {2 * byte}", rows=rows),
    )


def scales(name: str, rows: int, k: int, batches: int, *, data: Bytes | None, guard: Guard | None) -> Tensor:
    """Return reordered float8_e4m3fn scale factors ``[32, 4, rest_rows, 4, rest_k, l]``; ``data`` as they are flat."""
    guard, blocks = guard or Guard(), ceil_div(k, BLOCK)
    shape = scale_layout.reordered_shape(rows=rows, blocks=blocks, batches=batches)
    return Tensor(
        name,
        "float8_e4m3fn",
        shape,
        row_major(shape, _REORDERED),
        shape[2] * shape[4] * scale_layout.TILE_BYTES * batches,
        data=None if data is None else data.reshape(-1),
        after=guard.scale_tiles_after * scale_layout.TILE_BYTES,
        guard=guard.scale_byte,
        spoil=NAN_SCALE,
        describe=described_scales(name, rows=rows, blocks=blocks),
    )


def plain_scales(
    name: str,
    rows: int,
    k: int,
    batches: int,
    *,
    data: Bytes | None,
    device: bool = False,
    guard: Guard | None = None,
) -> Tensor:
    """Return plain float8_e4m3fn scale factors ``[rows, k // 16, l]``, K-major; ``data`` in the order of memory."""
    shape = rows, ceil_div(k, BLOCK), batches
    tail = (guard or Guard()).scale_tiles_after * scale_layout.TILE_BYTES if device else 0
    return Tensor(
        name,
        "float8_e4m3fn",
        shape,
        row_major(shape, _BATCH_FIRST),
        shape[0] * shape[1] * batches,
        device=device,
        data=None if data is None else data.reshape(-1),
        after=tail,
        guard=(guard or Guard()).scale_byte,
        spoil=NAN_SCALE,
        describe=described_rows(name, shape[1], lambda byte: f"k block {byte}", rows=rows),
    )


def half_output(name: str, rows: int, columns: int, batches: int, *, guard: Guard | None) -> Tensor:
    """Return an fp16 output ``[rows, columns, l]``, row-major, between guard rows."""
    guard, row = guard or Guard(), columns * 2
    shape = rows, columns, batches
    return Tensor(
        name,
        "float16",
        shape,
        row_major(shape, _BATCH_FIRST),
        rows * row * batches,
        role="output",
        columns=columns,
        poison=struct.pack("<H", guard.poison),
        before=guard.c_rows_before * row,
        after=guard.c_rows_after * row,
        describe=described_rows(name, row, lambda byte: f"column {byte // 2}", rows=rows),
    )
