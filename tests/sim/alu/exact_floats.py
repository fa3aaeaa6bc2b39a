"""Exact references of floating-point arithmetic on patterns, in rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

from tests.sim.alu.patterns import float_of, nan_of, pattern_of, round_fraction

__all__ = ["NAN", "fused", "negative", "product"]

NAN = {"f32": 0x7FFF_FFFF, "f64": 0xFFF8_0000_0000_0000}
"""NaN of an invalid operation, by type."""


def negative(pattern: int, kind: str) -> bool:
    """Return whether the sign bit of a pattern is set."""
    return bool(pattern >> (31 if kind == "f32" else 63))


def fused(a: int, b: int, c: int, kind: str, mode: str) -> int:
    """Return a * b + c, rounded once, with IEEE 754's special cases."""
    x, y, z = (float_of(p, kind) for p in (a, b, c))
    sign = negative(a, kind) != negative(b, kind)
    if math.isnan(x) or math.isnan(y) or math.isnan(z):
        return nan_of(kind, a, c, b)
    if math.isinf(x) or math.isinf(y):
        if not x or not y or (math.isinf(z) and negative(c, kind) != sign):
            return NAN[kind]
        return pattern_of(-math.inf if sign else math.inf, kind)
    if math.isinf(z):
        return c
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    both = sign and negative(c, kind)
    either = sign or negative(c, kind)
    # An exact zero has the sign of both terms if they agree; else it is -0 only when rounding down.
    return round_fraction(exact, kind, mode, negative_zero=both or (mode == "rm" and either))


def product(a: int, b: int, kind: str, mode: str) -> int:
    """Return a * b, rounded once, with IEEE 754's special cases."""
    x, y = float_of(a, kind), float_of(b, kind)
    sign = negative(a, kind) != negative(b, kind)
    if math.isnan(x) or math.isnan(y) or (math.isinf(x) and not y) or (math.isinf(y) and not x):
        return nan_of(kind, a, b)
    if math.isinf(x) or math.isinf(y):
        return pattern_of(-math.inf if sign else math.inf, kind)
    return round_fraction(Fraction(x) * Fraction(y), kind, mode, negative_zero=sign)
