"""fp16 as bits: rounding, distances, and the poison that marks an output no kernel wrote."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pytest_nvfp4.numerics.arrays import Float64, Half, HalfBits, Int32, Int64, Mask, NumericsError

POISON = 0xFE5A
"""Bits of the NaN that fills outputs before a call.

It is quiet (so a copy through a register keeps it), and its sign and payload are ones that no conversion makes:
NVIDIA's ``cvt`` to fp16 gives 0x7FFF for every NaN. So these bits in an output mean that nothing was stored there.
"""
CANONICAL_NAN = 0x7FFF
"""NaN of NVIDIA's conversions to fp16."""
INFINITY = 0x7C00
SIGN = 0x8000
OVERFLOW = 65520.0
"""Smallest magnitude that rounds to infinity: halfway between 65504, the largest fp16, and 65536."""


def bits_of(values: NDArray[np.float16] | NDArray[np.uint16]) -> HalfBits:
    """Return the bits of fp16 values as a view; bits pass through. Raises NumericsError for another dtype."""
    if values.dtype == np.uint16:
        return values  # type: ignore[return-value]
    if values.dtype != np.float16:
        raise NumericsError(f"output has dtype {values.dtype}, not float16 (or its bits as uint16)")
    return np.ascontiguousarray(values).view(np.uint16)


def from_bits(bits: HalfBits) -> Half:
    """Return the fp16 values with these bits, as a view."""
    return np.ascontiguousarray(bits).view(np.float16)


def is_nan(bits: HalfBits) -> Mask:
    """Return which bits are NaN."""
    return (bits & 0x7FFF) > INFINITY


def round_units(units: Int64, *, unit_bits: int) -> Half:
    """Round ``units * 2^-unit_bits`` once to fp16, nearest even, overflow to infinity; zero is +0.

    The only rounding is the last conversion: below 2^53 an int64 is exact in float64, and every magnitude from 2^53
    on is replaced by 2^53, which overflows like it as long as ``unit_bits <= 36`` (2^53 * 2^-36 > 65520).

    Raises:
        NumericsError: ``unit_bits`` is not within 0..36.
    """
    if not 0 <= unit_bits <= 36:
        raise NumericsError(f"unit_bits = {unit_bits} is not within 0..36")
    exact = np.clip(units, -(2**53), 2**53).astype(np.float64) * 2.0**-unit_bits
    return round_nearest(exact)


def round_nearest(values: ArrayLike) -> Half:
    """Round float64 to fp16 once, nearest even; overflow gives infinity."""
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype=np.float64).astype(np.float16)


def round_toward_zero(values: ArrayLike) -> Half:
    """Truncate float64 to fp16, as ``cvt.rz.f16.f32`` does; overflow gives 65504."""
    x = np.asarray(values, dtype=np.float64)
    rounded = round_nearest(x)
    too_far = np.abs(rounded.astype(np.float64)) > np.abs(x)
    # Codes are ordered by magnitude, so the neighbour towards zero is one less; it also turns infinity into 65504.
    bits = rounded.view(np.uint16)
    return np.where(too_far & np.isfinite(x), bits - np.uint16(1), bits).astype(np.uint16).view(np.float16)


def ordinal(bits: HalfBits) -> Int32:
    """Return integers in the order of the values, neighbours one apart; both zeros are 0, infinity follows 65504.

    Meaningless for NaN.
    """
    magnitude = (bits & 0x7FFF).astype(np.int32)
    return np.where(bits & SIGN, -magnitude, magnitude)


def value(bits: int) -> float:
    """Return the value of one fp16 given by its bits."""
    return float(np.array(bits, dtype=np.uint16).view(np.float16))


def to_float64(bits: HalfBits) -> Float64:
    """Return the values as float64 (exact)."""
    return from_bits(bits).astype(np.float64)
