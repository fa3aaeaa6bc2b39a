"""Quotients and square roots, in exact rationals."""

from __future__ import annotations

import math
from fractions import Fraction

from tests.sim.alu.patterns import float_of, nan_of, round_fraction

NAN, INF = 0x7FFF_FFFF, 0x7F80_0000
INFINITY = {"f32": INF, "f64": 0x7FF0_0000_0000_0000}
SIGN = {"f32": 31, "f64": 63}


def quotient(a: int, b: int, kind: str, mode: str) -> int:
    x, y = float_of(a, kind), float_of(b, kind)
    sign = (a ^ b) >> SIGN[kind] << SIGN[kind]
    if math.isnan(x) or math.isnan(y) or (not x and not y) or (math.isinf(x) and math.isinf(y)):
        return nan_of(kind, b, a)
    if math.isinf(x) or not y:
        return INFINITY[kind] | sign
    if math.isinf(y):
        return sign
    return round_fraction(Fraction(x) / Fraction(y), kind, mode, negative_zero=bool(sign))


def rounded_root(a: int, kind: str, mode: str) -> int:
    """The root by integers: enough digits of it, and a digit more for whatever is left."""
    x = float_of(a, kind)
    if math.isnan(x) or x < 0:
        return nan_of(kind, a)
    if not x or math.isinf(x):
        return a
    scaled = Fraction(x) * 4**1200
    digits = math.isqrt(int(scaled))
    exact = digits * digits == scaled
    return round_fraction(Fraction(2 * digits + (not exact), 2) / 2**1200, kind, mode)
