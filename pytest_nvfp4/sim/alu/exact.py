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
    return math.copysign(_directed(result, difference, mode, positive=value > 0), -1.0 if value < 0 else 1.0)


def root(value: Fraction, mode: str) -> float:
    """Return the square root of a positive float64 as a float64."""
    result = math.sqrt(value)
    return _directed(result, _sign(Fraction(result) ** 2 - value), mode, positive=True)


def _directed(result: float, difference: int, mode: str, *, positive: bool) -> float:
    """Round as ``mode`` says, given the nearest float64 and the sign of its difference from the exact value."""
    if mode == "rn" or not difference:
        return result
    if mode == "odd":
        move = math.isinf(result) or not int(np.float64(result).view(np.uint64)) & 1
    else:
        move = (difference > 0) == (mode == "rm" or (mode == "rz" and positive))
    return math.nextafter(result, -difference * math.inf) if move else result


def _sign(value: Fraction) -> int:
    return (value > 0) - (value < 0)


def by_lane(function: Callable[..., float], *values: Array) -> Array:
    """Apply a function of Python floats to each lane of float64 arrays."""
    return np.array([function(*lane) for lane in zip(*(value.tolist() for value in values), strict=True)], np.float64)
