"""Conversions between number types, in exact rationals."""

from __future__ import annotations

import math
from fractions import Fraction

from tests.sim.alu.patterns import float_of, pattern_of, round_fraction, signed

BITS = {"u8": 8, "s8": 8, "u16": 16, "s16": 16, "u32": 32, "s32": 32, "u64": 64, "s64": 64}
FLOATS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
MANTISSA = {"f16": 10, "bf16": 7, "f32": 23}
SIZE = {"f16": 2, "bf16": 2, "f32": 4}
NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFF_FFFF, "f64": 0x7FFF_FFFF_FFFF_FFFF}
LETTERS = {8: "h", 16: "h", 32: "r", 64: "d"}


def letter(kind: str) -> str:
    return LETTERS[{**BITS, **FLOATS}[kind]]


def number(pattern: int, kind: str) -> int:
    """The value of a register's low bits as an integer type."""
    low = pattern & (1 << BITS[kind]) - 1
    return signed(low, BITS[kind]) if kind[0] == "s" else low


def register(value: int, kind: str) -> int:
    """An integer result as its register holds it: extended by its sign."""
    width = max(BITS[kind], 16)
    kept = number(value & (1 << BITS[kind]) - 1, kind)
    return kept & (1 << width) - 1


def narrowed(pattern: int, source: str, target: str, mode: str) -> int:
    value = float_of(pattern, source)
    if math.isnan(value):
        # From f64 the sign and what fits of the payload stay, and the NaN is quiet.
        upper = pattern >> 52 - MANTISSA[target] & (1 << MANTISSA[target]) - 1
        quiet = (pattern >> 63) << 8 * SIZE[target] - 1 | pattern_of(math.inf, target) | 1 << MANTISSA[target] - 1
        return quiet | upper if source == "f64" else NAN[target]
    negative = math.copysign(1.0, value) < 0
    if math.isinf(value):
        return round_fraction(Fraction(2) ** 5000 * (-1 if negative else 1), target, "rn")
    return round_fraction(Fraction(value), target, mode, negative_zero=negative)
