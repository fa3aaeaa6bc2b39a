"""Arithmetic of 16-bit floats, in exact rationals."""

from __future__ import annotations

import math
from fractions import Fraction

from tests.sim.alu.patterns import float_of, round_fraction

ONE = {"f16": 0x3C00, "bf16": 0x3F80}
INFINITY = {"f16": 0x7C00, "bf16": 0x7F80}


def sum_of_products(a: int, b: int, c: int, kind: str) -> int:
    """a * b + c rounded once, in exact rationals."""
    x, y, z = (float_of(p, kind) for p in (a, b, c))
    sign = (a ^ b) >> 15 == 1
    if math.isnan(x) or math.isnan(y) or math.isnan(z):
        return 0x7FFF
    if math.isinf(x) or math.isinf(y):
        if not x or not y or (math.isinf(z) and (c >> 15 == 1) != sign):
            return 0x7FFF
        return INFINITY[kind] | sign << 15
    if math.isinf(z):
        return c
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    return round_fraction(exact, kind, "rn", negative_zero=sign and c >> 15 == 1)


def multiplied(a: int, b: int, kind: str) -> int:
    x, y = float_of(a, kind), float_of(b, kind)
    if math.isnan(x) or math.isnan(y) or (math.isinf(x) and not y) or (math.isinf(y) and not x):
        return 0x7FFF
    if math.isinf(x) or math.isinf(y):
        return INFINITY[kind] | (a ^ b) & 0x8000
    return round_fraction(Fraction(x) * Fraction(y), kind, "rn", negative_zero=bool((a ^ b) >> 15))


def relu(code: int) -> int:
    return 0 if code & 0x8000 and code != 0x7FFF else code


def paired(values: list[int]) -> list[int]:
    return [low | high << 16 for low, high in zip(values, values[1:] + values[:1], strict=True)]


def extreme(root: str, values: list[int], kind: str, *, propagates: bool) -> int:
    numbers = [v for v in values if not math.isnan(float_of(v, kind))]
    if not numbers or (propagates and len(numbers) < len(values)):
        return 0x7FFF
    return (min if root == "min" else max)(numbers, key=lambda v: (float_of(v, kind), 0 if v >> 15 else 1))
