"""Tables of element and scale formats of ``tcgen05.mma``: the value of a code, and the power of two that divides it.

The *grid* of a value is the exponent g of the largest 2**g that divides it exactly. Sums of products whose operands lie
on known grids are exact in floating point while they stay small enough, in any order; ``accumulate`` relies on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.numerics.formats import FORMATS, lowest_bits

NO_GRID = 127
"""Grid of zero and of values that are not finite: no constraint."""


@dataclass(frozen=True, slots=True, eq=False)
class CodeTable:
    """Values and grids of all bytes, each read as a code in its low bits; ``values`` are exact in float64."""

    values: NDArray[np.float64]
    grids: NDArray[np.int16]


@cache
def code_table(name: str) -> CodeTable:
    """Return the table of a format of 8 bits or fewer: e2m1, e2m3, e3m2, e4m3, e5m2, s8, u8, ue4m3 or ue8m0."""
    codes = np.arange(256)
    if name in ("s8", "u8"):
        values = codes.astype(np.uint8).view(np.int8 if name == "s8" else np.uint8).astype(np.float64)
    else:
        values = FORMATS[name].values[codes % FORMATS[name].codes]
    grids = np.minimum(lowest_bits(values), NO_GRID).astype(np.int16)
    values.flags.writeable = grids.flags.writeable = False
    return CodeTable(values, grids)
