"""Rounding of exact results from float64 to f32; ``FloatFormat.encode`` rounds to the other formats.

A float64 that was *rounded to odd* (the last bit of an inexact result is set) keeps enough of the exact value that a
second rounding to 51 bits or fewer, in any direction, is the single rounding of the exact value (Boldo and Melquiond,
"Emulation of FMA and correctly rounded sums", 2008). ``sum_to_odd`` makes one from an error-free sum.
"""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.sim.alu.lift import Array


def sum_to_odd(a: Array, b: Array) -> Array:
    """Add float64 arrays, rounded to odd; neither the sum nor a part of it may overflow."""
    total = a + b
    other = total - a
    error = (a - (total - other)) + (b - other)
    inexact = (error != 0) & np.isfinite(total)
    if not np.count_nonzero(inexact):
        return total
    even = (total.view(np.uint64) & np.uint64(1)) == 0
    towards = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    result: Array = np.where(inexact & even, towards, total)
    return result


def to_f32(value: Array, mode: str) -> Array:
    """Round float64 values, exact or rounded to odd, to float32."""
    result = value.astype(np.float32)
    if mode == "rn":
        return result
    back = result.astype(np.float64)
    if mode == "rz":
        wrong, towards = np.abs(back) > np.abs(value), np.float32(0)
    elif mode == "rm":
        wrong, towards = back > value, np.float32(-np.inf)
    else:
        wrong, towards = back < value, np.float32(np.inf)
    return np.where(wrong, np.nextafter(result, towards), result) if np.count_nonzero(wrong) else result
