"""Rational arithmetic where float64 is not exact: directed rounding of float64, and its fused operations.

It runs lane by lane and is slow; GEMM kernels hardly use these instructions. ``nearest`` relies on Python's division of
ints, which is correctly rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from pytest_nvfp4.sim.alu.lift import Array


def nearest(value: Fraction) -> float:
    """Return the float64 nearest to a number, ties to even; infinity past the largest."""
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def rounded(value: Fraction, mode: str) -> float:
    """Round a non-zero number to float64. ``mode`` is ``rn``, ``rz``, ``rm``, ``rp`` or ``odd``."""
    result = nearest(value)
    difference = (-1 if result < 0 else 1) if math.isinf(result) else _sign(Fraction(result) - value)
    if mode == "rn" or not difference:
        return math.copysign(result, -1.0 if value < 0 else 1.0)
    if mode == "odd":
        odd = int(np.float64(result).view(np.uint64)) & 1
        return result if odd and not math.isinf(result) else math.nextafter(result, -difference * math.inf)
    down = mode == "rm" or (mode == "rz" and value > 0)
    if down and difference > 0:
        result = math.nextafter(result, -math.inf)
    elif not down and difference < 0:
        result = math.nextafter(result, math.inf)
    return math.copysign(result, -1.0 if value < 0 else 1.0)


def root(value: Fraction, mode: str) -> float:
    """Return the square root of a positive float64 as a float64."""
    result = math.sqrt(value)
    difference = _sign(Fraction(result) ** 2 - value)
    if mode == "rn" or not difference:
        return result
    if mode == "odd":
        odd = int(np.float64(result).view(np.uint64)) & 1
        return result if odd else math.nextafter(result, -difference * math.inf)
    if mode in ("rm", "rz"):
        return math.nextafter(result, 0.0) if difference > 0 else result
    return math.nextafter(result, math.inf) if difference < 0 else result


def _sign(value: Fraction) -> int:
    return (value > 0) - (value < 0)


def by_lane(function: Callable[..., float], *values: Array) -> Array:
    """Apply a function of Python floats to each lane of float64 arrays."""
    return np.array([function(*lane) for lane in zip(*(value.tolist() for value in values), strict=True)], np.float64)
