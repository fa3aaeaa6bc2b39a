"""Conversion of f32 with stochastic rounding (PTX ISA, "cvt", ``.rs``).

Rules: random bits are added to the mantissa bits that the type has no room for; a carry rounds away from zero, else the
value is rounded towards zero. The first source goes to the uppermost part of the result. NaN, ``.satfinite`` and
``.relu`` are as in ``convert`` and ``narrow``; without ``.satfinite`` an overflow becomes infinity.

Each of two values gets 16 of the 32 random bits, each of four values 8, the first source the uppermost; they are added
to the uppermost bits that are cut off. A chip may use other bits for a value: that has not been measured. So a result
is one of the two neighbours, each with its probability, but not always the one that a chip has for the same bits.

Evidence: PTX ISA; the neighbours and their probabilities are tested against exact rationals and ``ml_dtypes``.
"""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.numerics.formats import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16, FloatFormat
from pytest_nvfp4.sim.alu.forms import atoms
from pytest_nvfp4.sim.alu.lift import Array, Kernel, kernels, lift
from pytest_nvfp4.sim.lanes import DTYPES
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction, Vector

FORMS = (
    "cvt .rs[.relu][.satfinite].(f16x2|bf16x2).f32",
    "cvt .rs[.relu].satfinite.(e4m3x4|e5m2x4|e2m3x4|e3m2x4|e2m1x4).f32",
)

_FORMATS = {f"{to.name}x2": to for to in (F16, BF16)} | {f"{to.name}x4": to for to in (E4M3, E5M2, E2M3, E3M2, E2M1)}
_RANDOM_BITS = 32


def _width(target: str) -> int:
    """Return the bits that one value occupies in the result."""
    return 4 if target == "e2m1x4" else _RANDOM_BITS // int(target[-1])


def _rounded(bits: Array, part: Array, to: FloatFormat) -> Array:
    """Return f32 patterns rounded to the values of a format, as float64; ``part`` is at least 0 and below 1."""
    value = bits.view(np.float32).astype(np.float64)
    # Below the smallest normal exponent the step stays that of subnormals. frexp of 2^i gives the exponent i + 1.
    exponent = np.maximum(np.frexp(value)[1] - 1, 1 - to.bias) - to.mantissa
    rounded: Array = np.copysign(np.ldexp(np.floor(np.ldexp(np.abs(value), -exponent) + part), exponent), value)
    return rounded


@kernels
def _converted(target: str, relu: bool, saturates: bool) -> Kernel:
    to, width, count = _FORMATS[target], _width(target), int(target[-1])
    each = _RANDOM_BITS // count

    def compute(*values: Array) -> Array:
        *singles, random = values
        result = np.zeros(random.size, np.uint32)
        for number, single in enumerate(reversed(singles)):
            part = (random >> each * number & (1 << each) - 1) / float(1 << each)
            value = _rounded(single, part, to)
            if relu:
                value = np.where(value <= 0, 0.0, value)
            result |= to.encode(value, saturate=saturates).astype(np.uint32) << np.uint32(width * number)
        return result.astype(DTYPES[width * count])

    return compute


def lower_stochastic(ins: Instruction, e: Emitter) -> None:
    """Lower a ``cvt`` with the part ``rs``."""
    read = OpcodeReader(ins)
    read.one("rs")
    flags = {read.maybe("satfinite", "relu"), read.maybe("satfinite", "relu")}
    target = read.one(*_FORMATS)
    read.one("f32")
    four = target.endswith("x4")
    if four and "satfinite" not in flags:
        raise read.refuse(f"to .{target} only with .satfinite")
    dst, *sources, random = read.end(3 if four else 4)
    if four:
        (vector,) = sources
        read.items(vector, 4)
        assert isinstance(vector, Vector)
        sources = list(vector.items)
    kernel = lift(_converted(target, "relu" in flags, "satfinite" in flags), *[32] * (len(sources) + 1))
    e.assign(dst, e.call(kernel, *atoms(e, 32, *sources, random)), _width(target) * int(target[-1]))
