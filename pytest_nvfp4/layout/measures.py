"""Costs of a layout: TMEM columns, bytes of shared memory, bank conflicts, vector width."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from pytest_nvfp4.layout.canonical import coalesced_modes
from pytest_nvfp4.layout.change import Delta, Severity
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.irtypes import TypeInfo, dtype_bits
from pytest_nvfp4.layout.notation import Layout, Swizzle
from pytest_nvfp4.layout.roles import plain
from pytest_nvfp4.layout.signals import vector_width
from pytest_nvfp4.layout.tree import Leaf
from pytest_nvfp4.layout.warp import WARP, bank_conflicts

TMEM_COLUMNS = 512
"""TMEM capacity of an SM in columns (PTX ISA, tcgen05.alloc)."""
ROWS_A_PASS = 8
"""Lanes whose 16-byte accesses make one pass of 128 bytes."""
TMEM_COLUMN_MASK = 0xFFFF
"""Column bits of a TMEM address; the lane is in bits 16 and up."""


def tmem_columns(info: TypeInfo) -> int | None:
    """Return the TMEM columns of a tensor, ``cosize(recast to i32) & 0xFFFF`` as in ``find_tmem_tensor_col_offset``.

    ``None`` outside TMEM, for a run-time ``?``, or if the element width does not divide 32 bits.
    """
    bits = dtype_bits(info.dtype)
    if info.space != "tmem" or not isinstance(info.layout, Layout) or not bits or 32 % bits:
        return None
    ratio = 32 // bits
    last = 0
    for size, stride in coalesced_modes(info.layout):
        if not isinstance(size, int) or not isinstance(stride, int):
            return None
        if stride and stride % ratio == 0:
            last += (size - 1) * (stride // ratio)
        elif stride:
            # Several elements of this mode share one 32-bit word: CuTe's recast divides the size by ratio / stride.
            if ratio % stride:
                return None
            last += math.ceil(Fraction(size * stride, ratio)) - 1
    return (last + 1) & TMEM_COLUMN_MASK


def smem_bytes(info: TypeInfo) -> int | None:
    """Return the bytes of shared memory from the first element to the last, or ``None`` if unknown."""
    bits = dtype_bits(info.dtype)
    if info.space != "smem" or info.layout is None or not bits or not isinstance(info.layout, Layout):
        return None
    last = 0
    for size, stride in coalesced_modes(plain(info.layout)):
        if not isinstance(size, int) or not isinstance(stride, int) or stride < 0:
            return None
        last += (size - 1) * stride
    return math.ceil(Fraction((last + 1) * bits, 8))


def bank_ways(info: TypeInfo) -> int | None:
    """Return the worst bank conflict, in ways, when the lanes of a warp read 16 bytes each from consecutive rows.

    Rows are the first mode (its first part in an MMA mode), as for a tile whose rows lie along K. Enumerated from byte
    addresses after the swizzle, with a base aligned to its pattern. ``None`` outside shared memory, for fewer than 8
    rows (one pass of 16-byte accesses), for dynamic layouts, and if a row does not begin at a multiple of 16 bytes.
    """
    bits = dtype_bits(info.dtype)
    if info.space != "smem" or not isinstance(info.layout, Layout) or bits is None:
        return None
    rows, stride = _first_leaf(info.layout)
    if not isinstance(rows, int) or not isinstance(stride, int) or rows < ROWS_A_PASS or stride * bits % 128:
        return None
    return _ways(min(rows, WARP), stride * bits // 8, info.pointer_swizzle)


@lru_cache(maxsize=4096)
def _ways(lanes: int, stride: int, swizzle: Swizzle | None) -> int:
    # Along one leaf the layout is linear, so the addresses are multiples of its stride.
    addresses = [lane * stride for lane in range(lanes)]
    return bank_conflicts([at if swizzle is None else swizzle(at) for at in addresses], width=16).ways


def _first_leaf(layout: Layout) -> tuple[Leaf, Leaf]:
    """Return size and stride of the fastest part of the first mode."""
    shape, stride = layout.shape, layout.stride
    while isinstance(shape, tuple) and isinstance(stride, tuple) and shape:
        shape, stride = shape[0], stride[0]
    return (0, 0) if isinstance(shape, tuple) or isinstance(stride, tuple) else (shape, stride)


def vector_bits(info: TypeInfo) -> int | None:
    """Return the widest access of one thread to neighbouring elements that the type guarantees, in bits."""
    if info.family != "memref" or info.space == "tmem" or info.layout is None:
        return None
    try:
        return vector_width(info).value.bits
    except LayoutError:
        return None


def measure_deltas(old: TypeInfo, new: TypeInfo) -> tuple[Delta, ...]:
    """Return the costs that differ; they follow from the function and have no severity of their own."""
    deltas = []
    for field, unit, measure, note in _MEASURES:
        before, after = measure(old), measure(new)
        if before != after:
            deltas.append(Delta(field, before, after, unit, Severity.IDENTICAL, note(after)))
    return tuple(deltas)


def _columns_note(after: int | None) -> str:
    if after is not None and after > TMEM_COLUMNS:
        return f"more than the {TMEM_COLUMNS} columns of an SM: this cannot be allocated"
    return f"of {TMEM_COLUMNS}; an allocation is a power of two of at least 32, and holds all tensors together"


def _silent(_: int | None) -> str:
    return ""


def _ways_note(_: int | None) -> str:
    return "lanes of a warp reading 16 bytes each from consecutive rows (enumerated, not measured)"


_MEASURES: tuple[tuple[str, str, Callable[[TypeInfo], int | None], Callable[[int | None], str]], ...] = (
    ("tmem_columns", "", tmem_columns, _columns_note),
    ("smem_bytes", "B", smem_bytes, _silent),
    ("bank_ways", "", bank_ways, _ways_note),
    ("vector_width", "bit", vector_bits, _silent),
)
