"""Element formats of ``tcgen05.mma``: tables from a code to its value, and to the power of two it is a multiple of.

A format's *grid* is the exponent g of the largest 2**g that divides a value exactly. Sums of products whose operands
lie on known grids are exact in floating point while they stay small enough, in any order; ``accumulate`` rests on it.

Sources: OCP "8-bit Floating Point Specification" (E4M3, E5M2) and "Microscaling Formats" (E2M1, E2M3, E3M2, E8M0); PTX
ISA, "Alternate Floating-Point Data Formats" (UE4M3 has 7 bits, of which 0x7f is NaN).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["NOTHING", "Format", "element", "scale"]

NOTHING = 127
"""The grid of zero and of what is not finite: no constraint."""


@dataclass(frozen=True, slots=True, eq=False)
class Format:
    """An 8-bit-or-less format by tables, or a wider one (``values`` is empty) that numpy converts.

    ``values[code]`` is exact in float64; ``grids[code]`` is the exponent of the largest power of two that divides it.
    """

    name: str
    bits: int
    values: NDArray[np.float64]
    grids: NDArray[np.int16]

    @property
    def finite(self) -> bool:
        """Whether every code is a finite number."""
        return bool(np.isfinite(self.values).all())


def _minifloat(code: int, exponent_bits: int, mantissa_bits: int, bias: int) -> float:
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) & 1 else 1.0
    exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)
    return sign * math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)


def _grid(value: float) -> int:
    if value == 0 or not math.isfinite(value):
        return NOTHING
    mantissa, exponent = math.frexp(abs(value))
    integer = int(mantissa * (1 << 53))
    return exponent - 53 + ((integer & -integer).bit_length() - 1)


def _tabulate(name: str, bits: int, values: list[float]) -> Format:
    table = np.array(values, np.float64)
    grids = np.array([_grid(v) for v in values], np.int16)
    table.flags.writeable = False
    grids.flags.writeable = False
    return Format(name, bits, table, grids)


@cache
def element(name: str) -> Format:
    """The format of matrix elements: e2m1, e2m3, e3m2, e4m3, e5m2, s8, u8, or (without tables) f16, bf16, tf32.

    The sub-byte ones are tabulated over whole bytes, of which they take the low bits.
    """
    if name in ("f16", "bf16", "tf32"):
        return Format(name, 32 if name == "tf32" else 16, np.empty(0), np.empty(0, np.int16))
    codes = range(256)
    if name == "s8":
        return _tabulate(name, 8, [float(c - 256 if c > 127 else c) for c in codes])
    if name == "u8":
        return _tabulate(name, 8, [float(c) for c in codes])
    if name == "e2m1":
        return _tabulate(name, 4, [_minifloat(c & 15, 2, 1, 1) for c in codes])
    if name == "e2m3":
        return _tabulate(name, 6, [_minifloat(c & 63, 2, 3, 1) for c in codes])
    if name == "e3m2":
        return _tabulate(name, 6, [_minifloat(c & 63, 3, 2, 3) for c in codes])
    if name == "e4m3":
        return _tabulate(name, 8, [math.nan if c & 127 == 127 else _minifloat(c, 4, 3, 7) for c in codes])
    if name == "e5m2":
        special = {0x7C: math.inf, 0xFC: -math.inf}
        return _tabulate(
            name, 8, [special.get(c, math.nan) if c & 0x7C == 0x7C else _minifloat(c, 5, 2, 15) for c in codes]
        )
    raise ValueError(f"no element format {name}")


@cache
def scale(name: str) -> Format:
    """The format of scale factors: ue4m3 (bit 7 is not part of it) or ue8m0 (0xff is NaN)."""
    if name == "ue4m3":
        return _tabulate(name, 7, [math.nan if c & 127 == 127 else _minifloat(c & 127, 4, 3, 7) for c in range(256)])
    if name == "ue8m0":
        return _tabulate(name, 8, [math.nan if c == 255 else math.ldexp(1.0, c - 127) for c in range(256)])
    raise ValueError(f"no scale format {name}")
