"""E4M3, the 8-bit scale factor of NVFP4: 1 sign bit, 4 exponent bits with bias 7, 3 mantissa bits.

Code ``s eeee mmm`` stands for ``(-1)^s * 2^(eeee-7) * (1 + mmm/8)`` when ``eeee > 0`` and
``(-1)^s * 2^-9 * mmm`` when ``eeee == 0``. There is no infinity; 0x7F and 0xFF are NaN; the largest value is 448
(0x7E). This is the "fn" variant (OCP 8-bit Floating Point v1.0; ``torch.float8_e4m3fn``).

As a scale factor the hardware's type is UE4M3, the same code without a sign bit (PTX ISA, ``.ue4m3``). What a set sign
bit does is not documented, so nothing here makes scale factors with one, and ``oracle`` rejects them unless told.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from pytest_nvfp4.numerics.arrays import Bytes, Float32, Float64, Int32, Mask, frozen, require_bytes

SIGN = 0x80
NAN = 0x7F
LARGEST = 0x7E
"""Code of 448, the largest finite value."""
MAX = 448.0
LARGEST_UNITS = 448 * 512
"""448 in units of 2^-9."""


def _units_of(code: int) -> int:
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = mantissa if exponent == 0 else (8 + mantissa) << (exponent - 1)
    return -magnitude if code & SIGN else magnitude


def _value_table() -> Float32:
    values = np.array([_units_of(code) for code in range(256)], dtype=np.float32) * np.float32(2.0**-9)
    values[SIGN] = -0.0
    values[[NAN, SIGN | NAN]] = np.nan
    return values


def _unit_table() -> Int32:
    units = np.array([_units_of(code) for code in range(256)], dtype=np.int32)
    units[[NAN, SIGN | NAN]] = 0
    return units


_VALUES: Float32 = frozen(_value_table())
_UNITS: Int32 = frozen(_unit_table())


def thresholds(*, factor: float = 1.0) -> Float64:
    """``t[i]`` is the smallest float64 whose exact quotient by ``factor`` rounds to code ``i + 1`` or above, i < 126.

    That is ``factor`` times the midpoint of codes i and i + 1 where the tie goes up (odd i) and the next float64 where
    it goes down. ``factor`` must keep those products exact: a number of a few bits, such as 6.
    """
    magnitudes = _VALUES[: LARGEST + 1].astype(np.float64)
    middle = (magnitudes[:-1] + magnitudes[1:]) / 2 * factor
    middle[0::2] = np.nextafter(middle[0::2], np.inf)
    return middle


_THRESHOLDS: Float64 = frozen(thresholds())
_OVERFLOW = 464.0
"""Midpoint of 448 and the missing 480: at most this rounds to 448 (an even code), above it there is no code."""


def decode(codes: Bytes) -> Float32:
    """Values of all 256 codes, same shape, fp32 (exact); NaN for 0x7F and 0xFF."""
    return np.take(_VALUES, require_bytes("codes", codes))


def decode_units(codes: Bytes) -> Int32:
    """Values as integers in units of 2^-9 (at most 229376 in magnitude); NaN codes give 0, see :func:`is_nan`."""
    return np.take(_UNITS, require_bytes("codes", codes))


def is_nan(codes: Bytes) -> Mask:
    """Which codes are NaN (0x7F, 0xFF)."""
    found: Mask = (require_bytes("codes", codes) & NAN) == NAN
    return found


def encode(values: ArrayLike, *, overflow: Literal["saturate", "nan"] = "saturate") -> Bytes:
    """Codes of real values: round to nearest, ties to the even code, one rounding.

    Magnitudes above 464 (which would round to 480) and infinities become 448 with their sign under ``"saturate"``
    (NVIDIA's ``satfinite``) and NaN under ``"nan"`` (``ml_dtypes``, IEEE's rule without infinity); up to 464 they are
    448 under both. NaN stays NaN. A value that rounds to zero keeps its sign.
    """
    x = np.asarray(values, dtype=np.float64)
    magnitude = np.abs(x)
    codes = np.searchsorted(_THRESHOLDS, magnitude, side="right").astype(np.uint8)
    lost = np.isnan(x) if overflow == "saturate" else ~(magnitude <= _OVERFLOW)
    codes = np.where(lost, np.uint8(NAN), codes)
    return codes | np.where(np.signbit(x), np.uint8(SIGN), np.uint8(0))
