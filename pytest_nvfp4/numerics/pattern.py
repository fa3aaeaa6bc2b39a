"""Description of the wrong part of an output: the shape of the damage often identifies the fault."""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.numerics.arrays import Mask, ceil_div

TILE = 128
"""Rows and columns of the tiles in which damage is counted; a scale-factor tile has as many rows."""
_BAND = 32


def describe(wrong: Mask) -> str:
    """Describe where ``wrong [m, n]`` is set: extent, 128x128 tiles, bands of 32 rows of each 128; "" if nowhere.

    The bands are those that share lines of a scale-factor tile and a quarter of TMEM's lanes, so "rows 32-63 of each
    128" points at an epilogue warp or at the order inside the scale-factor tile.
    """
    rows, columns = np.flatnonzero(wrong.any(axis=1)), np.flatnonzero(wrong.any(axis=0))
    if not rows.size:
        return ""
    m, n = wrong.shape
    if wrong.all():
        return "every output"
    parts = [f"rows {_extent(rows, m)}, columns {_extent(columns, n)}"]
    grid = (ceil_div(m, TILE), ceil_div(n, TILE))
    if grid != (1, 1):
        tiles = [
            (row, column)
            for row in range(grid[0])
            for column in range(grid[1])
            if wrong[row * TILE : row * TILE + TILE, column * TILE : column * TILE + TILE].any()
        ]
        named = " ".join(f"({row},{col})" for row, col in tiles[:8]) + (" ..." if len(tiles) > 8 else "")
        parts.append(f"{len(tiles)} of {grid[0] * grid[1]} tiles of 128x128: {named}")
    bands = sorted({int(row) % TILE // _BAND for row in rows})
    if len(bands) < min(4, ceil_div(m, _BAND)):
        named = " and ".join(f"{band * _BAND}-{band * _BAND + _BAND - 1}" for band in bands)
        parts.append(f"only rows {named} of each 128")
    return "; ".join(parts)


def _extent(indices: np.ndarray[tuple[int, ...], np.dtype[np.intp]], size: int) -> str:
    low, high = int(indices[0]), int(indices[-1])
    span = f"{low}" if low == high else f"{low}-{high}"
    if len(indices) == size:
        return f"{span} (all)"
    return span if len(indices) == high - low + 1 else f"{span} ({len(indices)} of them)"
