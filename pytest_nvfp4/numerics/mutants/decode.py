"""Wrong kernels that misread what a code means."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pytest_nvfp4.numerics import kernel_model as model
from pytest_nvfp4.numerics.arrays import Bytes, Float64
from pytest_nvfp4.numerics.formats import E2M1, E4M3, FloatFormat
from pytest_nvfp4.numerics.kernel_model import Steps
from pytest_nvfp4.numerics.mutants.base import Mutant
from pytest_nvfp4.numerics.packing import swap_nibbles, unpack


def _table(format: FloatFormat, change: Callable[[int, float], float]) -> tuple[float, ...]:
    """Return what each code of a format means to a kernel, as ``change(code, right value)``."""
    return tuple(change(code, float(value)) for code, value in enumerate(format.float32))


def _elements_by(table: tuple[float, ...]) -> model.Elements:
    values = np.array(table)
    return lambda packed: np.take(values, unpack(packed))


def _scales_by(table: tuple[float, ...]) -> model.Scales:
    values = np.array(table)
    return lambda problem, index, operand: np.take(values, model.read_scales(problem.groups[index], operand))


def _swapped(packed: Bytes) -> Float64:
    return model.elements(swap_nibbles(packed))


def _e5m2(code: int) -> float:
    """Decode the byte as E5M2 without its sign, with the largest exponent reduced by one (no NaN, no infinity)."""
    exponent, mantissa = code >> 2 & 31, code & 3
    return float(mantissa * 2.0**-16 if exponent == 0 else (4 + mantissa) * 2.0 ** (min(exponent, 30) - 17))


_MSB_IGNORED = _table(E2M1, lambda code, _: float(np.copysign((0, 0.5, 1, 1.5)[code & 3], -1 if code & 8 else 1)))
_SIX_AS_FIVE = _table(E2M1, lambda code, value: float(np.copysign(5, value)) if code & 7 == 7 else value)
_HALF_AS_ZERO = _table(E2M1, lambda code, value: 0.0 if code & 7 == 1 else value)
_INTEGERS = _table(E2M1, lambda code, _: float(code - 16 if code & 8 else code) / 2)
_UNSIGNED = _table(E2M1, lambda _, value: abs(value))
_MANTISSA_IGNORED = _table(E4M3, lambda code, value: value if code & 0x78 == 0 else value / (1 + (code & 7) / 8))
_SUBNORMAL_FLUSHED = _table(E4M3, lambda code, value: 0.0 if code & 0x78 == 0 else value)
_SUBNORMAL_AS_NORMAL = _table(E4M3, lambda code, value: (8 + (code & 7)) * 2.0**-10 if code & 0x78 == 0 else value)
_TYPO = _table(E4M3, lambda code, value: value * 12 / 13 if code & 0x7F == 0x5D else value)
_BIAS_8 = _table(E4M3, lambda _, value: value / 2)
_NAN_AS_480 = _table(E4M3, lambda code, value: 480.0 if code & 0x7F == 0x7F else value)
_TOP_AS_NAN = _table(E4M3, lambda code, value: float("nan") if code & 0x78 == 0x78 else value)
_AS_E5M2 = _table(E4M3, lambda code, value: value if math.isnan(value) else _e5m2(code & 0x7F))

_ELEMENT_TABLES: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("exponent_msb_ignored", "high exponent bit of E2M1 ignored: 2, 3, 4, 6 read as 0, 0.5, 1, 1.5", _MSB_IGNORED),
    ("six_as_five", "6 read as 5", _SIX_AS_FIVE),
    ("half_as_zero", "E2M1's subnormal 0.5 read as 0", _HALF_AS_ZERO),
    ("int4", "codes read as two's complement integers times 1/2", _INTEGERS),
    ("sign_dropped", "sign of the elements dropped", _UNSIGNED),
)

_SCALE_TABLES: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("sf_mantissa_ignored", "mantissa of normal scale factors ignored", _MANTISSA_IGNORED),
    ("sf_subnormal_flushed", "subnormal scale factors read as 0", _SUBNORMAL_FLUSHED),
    ("sf_subnormal_as_normal", "subnormal scale factors given the implicit one", _SUBNORMAL_AS_NORMAL),
    ("sf_table_typo", "one entry of a decode table wrong: scale 26 read as 24", _TYPO),
    ("sf_bias_8", "scale factors read as E4M3 with bias 8 (fnuz): half of each", _BIAS_8),
    ("sf_as_e5m2", "scale factors read as E5M2", _AS_E5M2),
    ("sf_nan_as_480", "NaN scale factors read as 480", _NAN_AS_480),
    ("sf_top_as_nan", "scale factors from 256 up read as NaN (IEEE's rule for the top exponent)", _TOP_AS_NAN),
)


def _all() -> tuple[Mutant, ...]:
    swapped = "the two elements of each byte of {} exchanged"
    found = [
        Mutant("nibbles_swapped_a", "decode", swapped.format("A"), Steps(elements_a=_swapped)),
        Mutant("nibbles_swapped_b", "decode", swapped.format("B"), Steps(elements_b=_swapped)),
    ]
    for name, text, table in _ELEMENT_TABLES:
        read = _elements_by(table)
        found += [
            Mutant(f"{name}_a", "decode", f"{text}, in A", Steps(elements_a=read), elements=table),
            Mutant(f"{name}_b", "decode", f"{text}, in B", Steps(elements_b=read), elements=table),
        ]
    for name, text, table in _SCALE_TABLES:
        found.append(Mutant(name, "decode", text, Steps(scales=_scales_by(table)), scales=table))
    return tuple(found)


DECODE: tuple[Mutant, ...] = _all()
