"""E2M1, the 4-bit element of NVFP4: 1 sign bit, 2 exponent bits with bias 1, 1 mantissa bit.

Code ``s ee m`` stands for ``(-1)^s * 2^(ee-1) * (1 + m/2)`` when ``ee > 0`` and ``(-1)^s * m/2`` when ``ee == 0``:
magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. Code 8 is -0. There is no infinity and no NaN.
(OCP Microscaling Formats v1.0, section 5.3.3; NVIDIA's ``cuda_fp4.h`` has the same table.)
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_nvfp4.numerics.arrays import Bytes, Float32, Int32, NumericsError, frozen, require_bytes

CODES = 16
SIGN = 0x8
MAX = 6.0
"""Largest magnitude."""
LARGEST_HALVES = 12
"""``MAX`` in units of 1/2."""

MAGNITUDES: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitude of codes 0 to 7; code 8 + i is its negative."""

_VALUES: Float32 = frozen(np.array([*MAGNITUDES, *(-value for value in MAGNITUDES)], dtype=np.float32))
_HALVES: Int32 = frozen((_VALUES * 2).astype(np.int32))
# Midpoint i lies between codes i and i+1. A tie goes to the even code, so up from an odd i and down from an even one.
_MIDPOINTS: tuple[float, ...] = tuple((low + high) / 2 for low, high in pairwise(MAGNITUDES))


def decode(codes: Bytes) -> Float32:
    """Values of codes 0..15 (one a byte), same shape, fp32 (exact); -0 keeps its sign.

    Raises NumericsError for a byte above 15.
    """
    return _look_up(_VALUES, codes)


def decode_halves(codes: Bytes) -> Int32:
    """Values of codes 0..15 as integers in units of 1/2: -12 to 12. Raises NumericsError for a byte above 15."""
    return _look_up(_HALVES, codes)


def _look_up(table: NDArray[Any], codes: Bytes) -> NDArray[Any]:
    require_bytes("codes", codes)
    if codes.size and int(codes.max()) >= CODES:
        raise NumericsError(f"E2M1 code {int(codes.max())} is above 15; packed bytes must be unpacked first")
    return np.take(table, codes)


def encode(values: ArrayLike, *, nan: Literal["reject", "max"] = "reject") -> Bytes:
    """Codes of real values: round to nearest, ties to the even code, saturating at 6; one rounding.

    Magnitudes above 6 and infinities become 6 with their sign. A value that rounds to zero keeps its sign (-0.1 is
    code 8). E2M1 has no NaN: ``nan="reject"`` raises, ``nan="max"`` gives +6, as NVIDIA's conversions do
    (``cuda_fp4.h``: positive MAXNORM).

    Raises:
        NumericsError: a NaN with ``nan="reject"``.
    """
    x = np.asarray(values, dtype=np.float64)
    is_nan = np.isnan(x)
    if nan == "reject" and is_nan.any():
        raise NumericsError('NaN has no E2M1 code; pass nan="max" for NVIDIA\'s conversion to +6')
    magnitude = np.abs(x)
    codes = np.zeros(x.shape, dtype=np.uint8)
    for index, midpoint in enumerate(_MIDPOINTS):
        codes += magnitude >= midpoint if index % 2 else magnitude > midpoint
    codes |= np.where(np.signbit(x), np.uint8(SIGN), np.uint8(0))
    return np.where(is_nan, np.uint8(CODES // 2 - 1), codes)


def midpoints() -> tuple[float, ...]:
    """The seven values at which rounding changes; at midpoint ``i`` a tie goes up when ``i`` is odd."""
    return _MIDPOINTS
