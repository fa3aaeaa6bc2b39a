"""Conversions to formats of 8 bits and fewer, by ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from pytest_nvfp4.numerics.formats import E2M1, E2M3, E3M2, E4M3, E5M2, FloatFormat
from tests.sim.alu.harness import Case, compiled

TYPES = {
    "e4m3x2": (ml_dtypes.float8_e4m3fn, E4M3, 448.0),
    "e5m2x2": (ml_dtypes.float8_e5m2, E5M2, 57344.0),
    "e2m3x2": (ml_dtypes.float6_e2m3fn, E2M3, 7.5),
    "e3m2x2": (ml_dtypes.float6_e3m2fn, E3M2, 28.0),
    "e2m1x2": (ml_dtypes.float4_e2m1fn, E2M1, 6.0),
}


def many(text: str, **values: np.ndarray) -> np.ndarray:
    """One instruction on any number of lanes."""
    block, names = compiled(text)
    with np.errstate(all="ignore"):
        (result,) = block(Case().warp, (1 << 32) - 1, *(values.get(name) for name in names)).values()
    return result


def dst(kind: str) -> str:
    return "b" if kind == "e2m1x2" else "h"


def width(kind: str) -> int:
    return 4 if kind == "e2m1x2" else 8


def expected(values: np.ndarray, kind: str, *, relu: bool) -> np.ndarray:
    """Codes by ml_dtypes, with saturation and NaN as the ISA has them."""
    dtype, form, largest = TYPES[kind]
    with np.errstate(invalid="ignore"):  # the cast of a signalling NaN
        return _expected(values.astype(np.float64), dtype, form, largest, relu=relu)


def _expected(values: np.ndarray, dtype: type, form: FloatFormat, largest: float, *, relu: bool) -> np.ndarray:
    if relu:
        values = np.where(values <= 0, 0.0, values)
    clamped = np.clip(values, -largest, largest)
    # float32 holds every operand, and ml_dtypes rounds it once
    codes = clamped.astype(np.float32).astype(dtype).view(np.uint8) & (2 * form.sign - 1)
    return np.where(np.isnan(values), form.sign - 1, codes)


def scale(pattern: int, mode: str, *, saturates: bool) -> int:
    """UE8M0 of a float32, in words of its value."""
    value = abs(float(np.uint32(pattern & 0x7FFF_FFFF).view(np.float32)))
    if value != value:
        return 255
    if value == float("inf"):
        return 254 if saturates else 255
    if value <= 2.0**-127:
        return 0
    exponent = int(np.floor(np.log2(value)))
    up = mode == "rp" and 2.0**exponent < value
    # a subnormal value has no exponent of its own: towards zero it is the smallest code
    code = exponent + 127 + up
    return min(code, 254) if saturates else code
