"""Floating-point registers as numpy's floats, and back: patterns, NaN, subnormals.

Source: PTX ISA, "Fundamental Types", "Alternate Floating-Point Data Formats", "Floating-Point Instructions". The result
of an instruction that gives NaN is the canonical NaN of its type; subnormals are kept unless ``.ftz`` flushes them to
zero of the same sign.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_nvfp4.sim.alu.lift import Array

__all__ = ["NAN", "canonical", "floats", "flushed", "halves"]

NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFF_FFFF, "tf32": 0x7FFF_FFFF, "f64": 0x7FFF_FFFF_FFFF_FFFF}
"""Canonical NaN by type; that of f64 is not stated by the ISA, which leaves its payload open."""


def flushed(a: Array) -> Array:
    """f32 patterns with subnormals replaced by zero of the same sign."""
    small = (a & 0x7F80_0000) == 0
    return np.where(small, a & 0x8000_0000, a) if np.count_nonzero(small) else a


def flushed_half(a: Array) -> Array:
    """f16 patterns likewise."""
    small = (a & 0x7C00) == 0
    return np.where(small, a & 0x8000, a) if np.count_nonzero(small) else a


def floats(a: Array, kind: str, *, flush: bool = False) -> Array:
    """Patterns of f16, bf16, f32 or f64 as numpy floats (bf16 as float32, which holds it exactly)."""
    if kind == "f32":
        return (flushed(a) if flush else a).view(np.float32)
    if kind == "f16":
        return (flushed_half(a) if flush else a).view(np.float16)
    if kind == "bf16":
        return (a.astype(np.uint32) << 16).view(np.float32)
    return a.view(np.float64)


def canonical(pattern: Array, is_nan: Array, kind: str) -> Array:
    """Patterns with the canonical NaN where ``is_nan``."""
    return np.where(is_nan, pattern.dtype.type(NAN[kind]), pattern) if np.count_nonzero(is_nan) else pattern


def halves(value: Any, shift: int) -> Any:
    """The 16-bit half of a 32-bit register value that starts at bit ``shift``."""
    if value.__class__ is int:
        return value >> shift & 0xFFFF
    return (value >> shift).astype(np.uint16)
