"""CuTe DSL source of the proved CTA map, to paste into a kernel."""

from __future__ import annotations

from typing import Literal

Search = Literal["binary", "scan"]
Raster = Literal["m", "n"]

_HEAD = '''\
# CTA map of a grouped GEMM: CTA b computes tile (x, y) of one group, every tile exactly once.
#
#   P(0) = 0, P(g + 1) = P(g) + ceil(m_g / TILE_M) * ceil(n_g / TILE_N);  the grid is P(G) CTAs
#   {formula}
#
# Proved for any number of groups and any sizes by `nvfp4 prove cta-indexing`, in 32-bit signed integers under the
# bounds that `tile_table` checks. `table` is int32 [G + 1, 2], row-major, on the device. Do not launch a grid of 0.
import cutlass.cute as cute
from cutlass import Int32

TILE_M, TILE_N = {tile_m}, {tile_n}


def tile_table(problem_sizes):
    """Rows (P(g), {per}) of all groups and a last one (P(G), 0); and the grid P(G)."""
    rows, first = [], 0
    for m, n, *_ in problem_sizes:
        if not 0 <= m <= 2**31 - TILE_M or not 0 <= n <= 2**31 - TILE_N:
            raise ValueError(f"group {{m}} x {{n}}: a size is negative, or rounding it up to a tile leaves 32 bits")
        tiles_m, tiles_n = (m + TILE_M - 1) // TILE_M, (n + TILE_N - 1) // TILE_N
        rows.append((first, {store}))
        first += tiles_m * tiles_n
    if first >= 2**31 or len(rows) > 2**30:
        raise ValueError(f"{{first}} tiles in {{len(rows)}} groups: a grid has at most 2^31 - 1 CTAs")
    return [*rows, (first, 0)], first


'''

_BINARY = '''\
@cute.jit
def find_tile(table: cute.Tensor, num_groups: Int32, b: Int32):
    """(group, x, y) of CTA b, 0 <= b < P(num_groups)."""
    # Invariant: P(low) <= b < P(high).
    low = Int32(0)
    high = num_groups
    while high - low > 1:
        middle = (low + high) // 2
        if table[middle, 0] <= b:
            low = middle
        else:
            high = middle
'''

_SCAN = '''\
@cute.jit
def find_tile(table: cute.Tensor, num_groups: Int32, b: Int32):
    """(group, x, y) of CTA b, 0 <= b < P(num_groups)."""
    # Invariant: P(low) <= b < P(num_groups). A group without tiles is skipped: its P is its successor's.
    low = Int32(0)
    while b >= table[low + 1, 0]:
        low += 1
'''

_TAIL = {
    "m": """\
    place = b - table[low, 0]
    y = place // table[low, 1]
    return low, place - y * table[low, 1], y
""",
    "n": """\
    place = b - table[low, 0]
    x = place // table[low, 1]
    return low, x, place - x * table[low, 1]
""",
}

_FORMULAS = {
    "m": "b = P(g) + y * ceil(m_g / TILE_M) + x,  0 <= x < ceil(m_g / TILE_M),  0 <= y < ceil(n_g / TILE_N)",
    "n": "b = P(g) + x * ceil(n_g / TILE_N) + y,  0 <= x < ceil(m_g / TILE_M),  0 <= y < ceil(n_g / TILE_N)",
}


def cta_snippet(*, tile_m: int = 128, tile_n: int = 128, search: Search = "binary", raster: Raster = "m") -> str:
    """Return Python source: ``tile_table`` for the host and ``find_tile`` for the device.

    Args:
        tile_m, tile_n: The output tile of one CTA.
        search: The search for the group.
        raster: The coordinate that varies fastest: x (``m``) or y (``n``).

    Raises:
        ValueError: a tile below 1.
    """
    if min(tile_m, tile_n) < 1:
        raise ValueError(f"tile {tile_m} x {tile_n}: both sizes must be at least 1")
    store = "tiles_m" if raster == "m" else "tiles_n"
    per = "tiles of M" if raster == "m" else "tiles of N"
    head = _HEAD.format(tile_m=tile_m, tile_n=tile_n, per=per, store=store, formula=_FORMULAS[raster])
    return head + (_BINARY if search == "binary" else _SCAN) + _TAIL[raster]
