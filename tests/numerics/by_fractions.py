"""Quantisation by exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from pytest_nvfp4.numerics.formats import E2M1, E4M3

SCALES = E4M3.decode(np.arange(127, dtype=np.uint8)).tolist()


def by_fractions(block: list[float]) -> tuple[list[int], int]:
    """One block by exact rational arithmetic, straight from the definition."""
    amax = max(abs(Fraction(x)) for x in block)
    scale = min(range(127), key=lambda code: (abs(Fraction(SCALES[code]) - amax / 6), code % 2))
    if amax and scale == 0:
        scale = 1
    codes = []
    for x in block:
        ratio = abs(Fraction(x)) / Fraction(SCALES[scale]) if scale else Fraction(0)
        code = min(range(8), key=lambda c: (abs(Fraction(E2M1.values[:8][c]) - ratio), c % 2))
        codes.append(code | (8 if np.signbit(x) else 0))
    return codes, scale
