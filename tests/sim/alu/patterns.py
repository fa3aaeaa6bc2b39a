"""Operands worth trying: edges of each type, and anything else."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

from hypothesis import strategies as st

__all__ = ["double_of", "float_of", "float_patterns", "integers", "pattern_of", "round_fraction", "signed"]


def integers(bits: int, count: int = 32) -> st.SearchStrategy[list[int]]:
    """Lists of patterns of a width: edges half of the time."""
    top = 1 << bits
    edges = [0, 1, 2, 5, 31, 32, 33, top - 1, top - 2, top >> 1, (top >> 1) - 1, (top >> 1) + 1]
    one = st.one_of(st.sampled_from(edges), st.integers(0, top - 1), st.integers(0, min(300, top - 1)))
    return st.lists(one, min_size=count, max_size=count)


_SHAPES = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}


def float_patterns(kind: str, count: int = 32) -> st.SearchStrategy[list[int]]:
    """Lists of patterns of a floating-point type: zeros, subnormals, infinities, NaN, neighbours of them, anything."""
    exponent, mantissa = _SHAPES[kind]
    bits = 1 + exponent + mantissa
    infinity = (1 << exponent) - 1 << mantissa
    one = ((1 << exponent - 1) - 1) << mantissa
    edges = [0, 1, 2, (1 << mantissa) - 1, 1 << mantissa, one, one + 1, one - 1, infinity - 1, infinity, infinity + 1]
    edges += [infinity | 1 << mantissa - 1, one + (1 << mantissa), one + (1 << mantissa - 1)]
    edges += [edge | 1 << bits - 1 for edge in edges]
    near = st.builds(lambda shift, rest: (one + (shift << mantissa) & (1 << bits - 1) - 1) ^ rest, st.integers(-3, 3),
                     st.integers(0, (1 << mantissa) - 1))  # fmt: skip
    some = st.one_of(st.sampled_from(edges), near, st.integers(0, (1 << bits) - 1))
    return st.lists(some, min_size=count, max_size=count)


def signed(pattern: int, bits: int) -> int:
    """Two's complement."""
    return (pattern ^ 1 << bits - 1) - (1 << bits - 1)


def float_of(pattern: int, kind: str = "f32") -> float:
    """The value of a pattern, by ``struct``."""
    if kind == "bf16":
        return float_of(pattern << 16)
    code, integer = {"f16": ("<e", "<H"), "f32": ("<f", "<I"), "f64": ("<d", "<Q")}[kind]
    value: float = struct.unpack(code, struct.pack(integer, pattern))[0]
    return value


def double_of(pattern: int) -> float:
    return float_of(pattern, "f64")


def round_fraction(value: Fraction, kind: str, mode: str, *, negative_zero: bool = False) -> int:
    """A rational number rounded once to a type, as a pattern. An oracle by search among neighbours, in integers only.

    ``negative_zero`` is the sign of an exact zero.
    """
    exponent, mantissa = _SHAPES[kind]
    sign = 1 << exponent + mantissa
    if not value:
        return sign if negative_zero else 0
    negative = value < 0
    size = abs(value)
    bias = (1 << exponent - 1) - 1
    scale = max(math.floor(_log2(size)), 1 - bias) - mantissa
    steps = size / Fraction(2) ** scale
    low = math.floor(steps)
    rest = steps - low
    if mode == "rn":
        up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1)
    else:
        up = rest > 0 and ((mode == "rp" and not negative) or (mode == "rm" and negative))
    low += up
    code = (scale + mantissa + bias - 1 << mantissa) + low
    infinity = (1 << exponent) - 1 << mantissa
    if code >= infinity:
        past = mode == "rn" or (mode == "rp" and not negative) or (mode == "rm" and negative)
        code = infinity if past else infinity - 1
    return code | (sign if negative else 0)


def _log2(value: Fraction) -> int:
    """The floor of the base-2 logarithm."""
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if Fraction(2) ** guess <= value else guess - 1


def pattern_of(value: float, kind: str = "f32") -> int:
    """The pattern of a float that the type holds exactly."""
    if kind == "bf16":
        return pattern_of(value) >> 16
    code, integer = {"f16": ("<e", "<H"), "f32": ("<f", "<I"), "f64": ("<d", "<Q")}[kind]
    pattern: int = struct.unpack(integer, struct.pack(code, value))[0]
    return pattern


def nan_of(kind: str, *patterns: int) -> int:
    """The NaN that comes of these operands, the one that prevails last: of f64 that one made quiet (as on an H200)."""
    if kind != "f64":
        return {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFF_FFFF}[kind]
    found = [p for p in patterns if p & (1 << 63) - 1 > 0x7FF << 52]
    return found[-1] | 1 << 51 if found else 0xFFF8 << 48
