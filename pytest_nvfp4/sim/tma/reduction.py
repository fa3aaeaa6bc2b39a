"""Arithmetic of bulk reductions.

Rules (PTX ISA, "cp.reduce.async.bulk"): the tables of operations and types below; ``add`` of floats rounds to nearest
even; ``add.f32`` keeps subnormals (measured on an H200, although the ISA specifies that they are flushed to zeros of
their sign); ``inc`` and ``dec`` wrap at the source's value. ``min`` and ``max`` of f16 and bf16 order -0 below +0; a
NaN there, whose result the ISA does not specify for this instruction, is unsupported.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Unsupported

OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
GLOBAL_TYPES = {
    "add": frozenset({"u32", "s32", "u64", "f32", "f64", "f16", "bf16"}),
    **dict.fromkeys(("min", "max"), frozenset({"u32", "s32", "u64", "s64", "f16", "bf16"})),
    **dict.fromkeys(("inc", "dec"), frozenset({"u32"})),
    **dict.fromkeys(("and", "or", "xor"), frozenset({"b32", "b64", "u32", "s32", "u64", "s64"})),
}
"""Types by operation where the destination is global memory. For the bitwise operations the ISA's table has only .b32
and .b64; its examples have .s32, and a tensor map has no bit types."""
SHARED_TYPES = {
    "add": frozenset({"u32", "s32", "u64"}),
    **dict.fromkeys(("min", "max"), frozenset({"u32", "s32"})),
    **dict.fromkeys(("inc", "dec"), frozenset({"u32"})),
    **dict.fromkeys(("and", "or", "xor"), frozenset({"b32"})),
}
"""Types by operation where the destination is another CTA's shared memory."""
WIDTHS = {
    "f16": 2, "bf16": 2, "b32": 4, "u32": 4, "s32": 4, "f32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8,
}  # fmt: skip
"""Bytes of an element."""

Array = NDArray[Any]
_UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def reduce_bytes(operation: str, kind: str, old: NDArray[np.uint8], new: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the bytes of the destination after the reduction of contiguous arrays. Raises as ``reduce`` does."""
    unsigned = _UNSIGNED[WIDTHS[kind]]
    values = reduce(operation, kind, old.view(unsigned), new.view(unsigned)).astype(unsigned)
    return np.ascontiguousarray(values).view(np.uint8)


def reduce(operation: str, kind: str, old: Array, new: Array) -> Array:
    """Return the elements of the destination after the reduction.

    Args:
        old, new: Destination and source as unsigned integers of the type's width.

    Raises:
        Unsupported: ``min`` or ``max`` of a NaN.
    """
    if operation == "and":
        return old & new
    if operation == "or":
        return old | new
    if operation == "xor":
        return old ^ new
    if operation == "inc":
        above: Array = old >= new
        more: Array = np.where(above, old.dtype.type(0), old + old.dtype.type(1))
        return more
    if operation == "dec":
        wraps: Array = (old == 0) | (old > new)
        less: Array = np.where(wraps, new, old - old.dtype.type(1))
        return less
    if operation == "add":
        return _add(kind, old, new)
    a, b = _ordered(kind, old), _ordered(kind, new)
    keep: Array = a <= b if operation == "min" else a >= b
    return np.where(keep, old, new)


def _add(kind: str, old: Array, new: Array) -> Array:
    if kind[0] in "us":
        return old + new
    with np.errstate(all="ignore"):
        if kind == "f64":
            return (old.view(np.float64) + new.view(np.float64)).view(np.uint64)
        if kind == "f32":
            total: Array = (old.view(np.float32) + new.view(np.float32)).view(np.uint32)
            return _canonical(total, 0x7F80_0000, 0x7FFF_FFFF)
        if kind == "f16":
            # Rounding twice equals rounding once where the wider format has at least 2 p + 2 bits: fp32 has 24, and
            # 2 * 11 + 2 = 24.
            wide = old.view(np.float16).astype(np.float32) + new.view(np.float16).astype(np.float32)
            return _canonical(wide.astype(np.float16).view(np.uint16), 0x7C00, 0x7FFF)
        total = (_float(old) + _float(new)).view(np.uint32)
        rounded = ((total + 0x7FFF + (total >> 16 & 1)) >> 16).astype(np.uint16)
        nan = (total & 0x7FFF_FFFF) > 0x7F80_0000
        return np.where(nan, np.uint16(0x7FFF), rounded)


def _float(bf16: Array) -> Array:
    return (bf16.astype(np.uint32) << 16).view(np.float32)


def _canonical(bits: Array, infinity: int, nan: int) -> Array:
    magnitude = bits & (infinity << 1 | infinity) & nan
    return np.where(magnitude > infinity, bits.dtype.type(nan), bits)


def _ordered(kind: str, bits: Array) -> Array:
    """Return integers that compare as the values do."""
    if kind[0] == "u":
        return bits
    if kind[0] == "s":
        return bits.view(np.int32 if bits.dtype.itemsize == 4 else np.int64)
    infinity = 0x7C00 if kind == "f16" else 0x7F80
    if ((bits & 0x7FFF) > infinity).any():
        raise Unsupported(f"a bulk reduction min or max of .{kind} with a NaN")
    wide = bits.astype(np.int32)
    return np.where(wide & 0x8000, -(wide & 0x7FFF) - 1, wide)
