"""Real tensors to NVFP4: one E4M3 scale factor for 16 elements along k.

The choices, since quantisers differ in them:

- The scale factor is ``amax / 6`` of its block rounded to nearest even, saturating at 448, so the block's largest
  element becomes about +-6. When ``amax > 0`` would give scale 0, the smallest scale 2^-9 is used instead.
- An element is ``x / scale`` with the *rounded* scale, rounded to nearest even and saturating at +-6.
- Both quotients are rounded once, exactly: thresholds are multiplied by the divisor instead of dividing, and those
  products (at most 3 by 4 significant bits) are exact. A GPU quantiser that multiplies by an approximate reciprocal
  may differ in a code where the quotient is close to a midpoint.
- A NaN in a block makes its scale NaN (0x7F) and its codes 0, so the block is NaN. Infinity saturates: 6 * 448.
- There is no second, per-tensor scale: divide by it first. The sign of zero is kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pytest_nvfp4.numerics.arrays import Bytes, NumericsError, ceil_div
from pytest_nvfp4.numerics.formats import E2M1, E4M3
from pytest_nvfp4.numerics.packing import pack

BLOCK = 16
"""Elements along k that share a scale factor."""


class Quantised(NamedTuple):
    """A tensor in NVFP4: ``packed [rows, k // 2]`` and ``scales [rows, ceil(k / 16)]``, both uint8."""

    packed: Bytes
    scales: Bytes


def quantise(values: ArrayLike) -> Quantised:
    """Quantise ``[rows, k]`` (k even) as the module says.

    Raises:
        NumericsError: not two-dimensional, or k odd.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] % 2:
        raise NumericsError(f"shape {list(x.shape)} is not [rows, k] with k even")
    rows, k = x.shape
    blocks = ceil_div(k, BLOCK)
    padded = np.zeros((rows, blocks * BLOCK))
    padded[:, :k] = x
    tiles = padded.reshape(rows, blocks, BLOCK)
    magnitude = np.abs(tiles)
    amax = magnitude.max(axis=2, initial=0.0)
    # Compare amax with 6 * bound instead of dividing by 6: the products are exact, so each quotient is rounded once.
    scales = E4M3.bounds(factor=6.0).searchsorted(amax).astype(np.uint8)
    scales[(amax > 0) & (scales == 0)] = 1
    scales[np.isnan(amax)] = E4M3.nan
    scale = E4M3.decode(scales).astype(np.float64)[:, :, None]
    codes = np.zeros(tiles.shape, dtype=np.uint8)
    # A tie goes to the even code: up from an odd code, down from an even one.
    for index, midpoint in enumerate(E2M1.midpoints):
        threshold = midpoint * scale
        codes += magnitude >= threshold if index % 2 else magnitude > threshold
    codes |= np.where(np.signbit(tiles), np.uint8(E2M1.sign), np.uint8(0))
    codes[(scales == 0) & ~(amax > 0)] &= E2M1.sign
    codes[scales == E4M3.nan] = 0
    return Quantised(pack(codes.reshape(rows, blocks * BLOCK)[:, :k]), scales)
