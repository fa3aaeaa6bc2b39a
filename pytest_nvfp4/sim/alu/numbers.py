"""Floating-point registers as numpy floats, and back: patterns, NaN, subnormals.

Source: PTX ISA, "Fundamental Types", "Alternate Floating-Point Data Formats", "Floating-Point Instructions". A NaN
result is the canonical NaN of its type, for f64 an operand's NaN made quiet; subnormals are kept unless ``.ftz``
flushes them to zero of the same sign.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_nvfp4.sim.alu.lift import Array

NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFF_FFFF, "tf32": 0x7FFF_FFFF, "f64": 0xFFF8_0000_0000_0000}
"""Canonical NaN by type. The ISA does not define the payload for f64: this one is the result of an invalid operation
on an H200 (measured for square roots of negative numbers; CUDA's ``CUDART_NAN`` is the same)."""

_QUIET64 = np.uint64(1 << 51)
_LARGEST64 = np.uint64(0x7FF0_0000_0000_0000)
_MAGNITUDE64 = np.uint64((1 << 63) - 1)
# Numbers of numpy: one of Python takes four times as long, because numpy looks for the type that both fit.
_EXPONENT32, _SIGN32 = np.uint32(0x7F80_0000), np.uint32(0x8000_0000)
_EXPONENT16, _SIGN16 = np.uint16(0x7C00), np.uint16(0x8000)


def quiet64(pattern: Array) -> Array:
    """Make every NaN of f64 patterns quiet; keep its sign and payload."""
    wrong = (pattern & _MAGNITUDE64) > _LARGEST64
    return np.where(wrong, pattern | _QUIET64, pattern) if np.count_nonzero(wrong) else pattern


def settled64(result: Array, *sources: Array) -> Array:
    """Return float64 results as patterns, given the f64 patterns of the sources.

    A NaN is that of the last source that is one, made quiet, or that of an invalid operation. The order of the sources
    is measured on an H200: operands as they are written, but for ``fma``, whose second goes before its third and that
    before its first, and ``div``, whose first goes before its second.
    """
    wrong = np.isnan(result)
    pattern: Array = result.view(np.uint64)
    if not np.count_nonzero(wrong):
        return pattern
    pattern = np.where(wrong, np.uint64(NAN["f64"]), pattern)
    for source in sources:
        pattern = np.where(wrong & ((source & _MAGNITUDE64) > _LARGEST64), source | _QUIET64, pattern)
    return pattern


def without_sign(pattern: Array, root: str, infinity: int, nan: int) -> Array:
    """Compute ``abs`` or ``neg`` of patterns; a NaN becomes ``nan`` (measured on an H200: canonical, positive)."""
    dtype = pattern.dtype.type
    sign = dtype(1 << 8 * pattern.itemsize - 1)
    size = pattern & ~sign
    result: Array = np.where(size > infinity, dtype(nan), size if root == "abs" else pattern ^ sign)
    return result


def flushed(a: Array) -> Array:
    """Replace subnormals of f32 patterns by zero of the same sign."""
    exponents = a & _EXPONENT32
    return a if np.count_nonzero(exponents) == exponents.size else np.where(exponents, a, a & _SIGN32)


def flushed_half(a: Array) -> Array:
    """Replace subnormals of f16 patterns by zero of the same sign."""
    exponents = a & _EXPONENT16
    return a if np.count_nonzero(exponents) == exponents.size else np.where(exponents, a, a & _SIGN16)


def floats(a: Array, kind: str, *, flush: bool = False) -> Array:
    """Reinterpret patterns of f16, bf16, f32 or f64 as numpy floats (bf16 as float32, which holds it exactly)."""
    if kind == "f32":
        return (flushed(a) if flush else a).view(np.float32)
    if kind == "f16":
        return (flushed_half(a) if flush else a).view(np.float16)
    if kind == "bf16":
        return (a.astype(np.uint32) << 16).view(np.float32)
    return a.view(np.float64)


def halves(value: Any, shift: int) -> Any:
    """Return the 16-bit half of a 32-bit register value that starts at bit ``shift``."""
    if value.__class__ is int:
        return value >> shift & 0xFFFF
    return (value >> shift).astype(np.uint16)
