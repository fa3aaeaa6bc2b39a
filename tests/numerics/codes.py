"""Rounding by other means, and values about which it changes."""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np


def nearest_even(value: float, magnitudes: list[float]) -> int:
    """Index of the nearest magnitude by exact rational distance; a tie goes to the even index."""
    x = abs(Fraction(value))
    return min(range(len(magnitudes)), key=lambda i: (abs(Fraction(magnitudes[i]) - x), i % 2))


def around(values: np.ndarray) -> np.ndarray:
    """The values, the next above and below in their own type, and the negatives of all."""
    infinity = values.dtype.type(np.inf)
    values = np.concatenate([values, np.nextafter(values, infinity), np.nextafter(values, -infinity)])
    return np.concatenate([values, -values])


def struct_half(value: float) -> int:
    """fp16 bits by Python's struct, which rounds to nearest even and refuses to overflow."""
    try:
        return int.from_bytes(struct.pack("<e", value), "little")
    except OverflowError:
        return 0xFC00 if value < 0 else 0x7C00
