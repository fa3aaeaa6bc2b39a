"""Changed rows of an operand, by which calls differ that would else be alike."""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.numerics.arrays import Bytes

_ROW_KEY = 0x5EED
_DRAWS = 16


def changed_row(a: Bytes, *, seeds: tuple[int, ...]) -> tuple[int, bytes]:
    """Return a row of packed E2M1 ``[m, k // 2]`` that is drawn, and its new bytes; m is at least 1."""
    m, half = a.shape
    draw = np.random.Generator(np.random.PCG64([_ROW_KEY, *seeds]))
    row, data = 0, a[0]
    for _ in range(_DRAWS):
        row = int(draw.integers(m))
        donor = a[int(draw.integers(m))]
        # A rotated row of the same matrix keeps the distribution of the family, and so the bounds of its sums.
        data = np.roll(donor, int(draw.integers(1, half))) if half > 1 else donor
        if not np.array_equal(data, a[row]):
            break  # a row of equal elements may be drawn for an equal one
    return row, data.tobytes()


def with_row(a: Bytes, row: int, data: bytes) -> Bytes:
    """Return a copy with other bytes in a row."""
    made = a.copy()
    made[row] = np.frombuffer(data, dtype=np.uint8)
    return made
