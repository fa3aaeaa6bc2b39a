"""Rounding of exact results: to f32 from float64, and to any small format.

A float64 that was *rounded to odd* (the last bit of an inexact result is set) keeps enough of the exact value that a
second rounding to 51 bits or fewer, in any direction, is the single rounding of the exact value (Boldo and Melquiond,
"Emulation of FMA and correctly rounded sums", 2008). ``sum_to_odd`` makes one from an error-free sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_nvfp4.sim.alu.lift import Array

__all__ = [
    "BF16", "E2M1", "E2M3", "E3M2", "E4M3", "E5M2", "F16", "F32", "TF32", "Format", "code_of", "encode", "sum_to_odd",
    "to_f32",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Format:
    """A binary format: a sign, ``exponent`` bits and ``mantissa`` bits, subnormals included.

    ``special`` is ``ieee`` (an exponent of all ones is infinity or NaN), ``nan`` (only the code of all ones is NaN, and
    there is no infinity) or ``none`` (every code is a number).
    """

    exponent: int
    mantissa: int
    special: str = "ieee"

    @property
    def bias(self) -> int:
        """The exponent's bias."""
        return (1 << self.exponent - 1) - 1

    @property
    def sign(self) -> int:
        """The code's sign bit."""
        return 1 << self.exponent + self.mantissa

    @property
    def infinity(self) -> int:
        """Code of the first value past the largest: infinity where there is one."""
        ones = self.sign - 1
        if self.special == "ieee":
            return ones ^ (1 << self.mantissa) - 1
        return ones if self.special == "nan" else ones + 1

    @property
    def largest(self) -> int:
        """Code of the largest finite value."""
        return self.infinity - 1


F32 = Format(8, 23)
TF32 = Format(8, 10)
BF16 = Format(8, 7)
F16 = Format(5, 10)
E5M2 = Format(5, 2)
E4M3 = Format(4, 3, "nan")
E3M2 = Format(3, 2, "none")
E2M3 = Format(2, 3, "none")
E2M1 = Format(2, 1, "none")


def encode(value: Array, to: Format, mode: str) -> tuple[Array, Array]:
    """Codes (without sign, int64) of |value| for float64 values rounded to a format, and whether each overflowed.

    Args:
        value: float64, any shape; the codes of NaN and infinity mean nothing.
        mode: ``rn`` (to even), ``rna`` (halves away from zero), ``rz``, ``rm`` (down) or ``rp`` (up).

    A code past ``to.largest`` means overflow before it was clamped: infinity, or what ``.satfinite`` makes of it.
    """
    size = np.abs(value)
    exponent = np.maximum(np.frexp(size)[1].astype(np.int64) - 1, 1 - to.bias)
    exponent = np.where(size == 0, 1 - to.bias, exponent)
    scaled = np.ldexp(size, (to.mantissa - exponent).astype(np.int32))
    if mode == "rn":
        steps = np.rint(scaled)
    else:
        steps = np.floor(scaled)
        if mode == "rna":
            steps += scaled - steps >= 0.5
        elif mode in ("rm", "rp"):
            away = np.signbit(value) if mode == "rm" else ~np.signbit(value)
            steps += away & (scaled != steps)
    steps = np.where(np.isfinite(steps), steps, 0).astype(np.int64)
    code = (exponent + to.bias - 1 << to.mantissa) + steps
    overflow = code > to.largest
    return code, overflow


def sum_to_odd(a: Array, b: Array) -> Array:
    """a + b of float64 arrays rounded to odd; neither the sum nor a part of it may overflow."""
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


def code_of(value: Array, to: Format, mode: str, *, nan: int, saturates: bool = False) -> Array:
    """Whole codes (int64) of float64 values rounded to a format.

    Args:
        value: float64, exact or rounded to odd.
        mode: See ``encode``.
        nan: The code of NaN.
        saturates: ``.satfinite``: infinity and what overflows become the largest finite value.
    """
    code, overflow = encode(value, to, mode)
    infinite = np.isinf(value)
    negative = np.signbit(value)
    if saturates:
        code = np.where(overflow | infinite, to.largest, code)
    elif np.count_nonzero(overflow) or np.count_nonzero(infinite):
        if mode in ("rn", "rna"):
            past = overflow
        elif mode == "rz":
            past = np.zeros_like(overflow)
        else:
            past = overflow & (negative if mode == "rm" else ~negative)
        code = np.where(infinite | past, to.infinity, np.where(overflow, to.largest, code))
    code = np.where(negative, code | to.sign, code)
    result: Array = np.where(np.isnan(value), nan, code)
    return result


def to_f32(value: Array, mode: str) -> Array:
    """float64 values, exact or rounded to odd, as float32."""
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
