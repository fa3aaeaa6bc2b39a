"""Conversion to and from FP8, FP6, FP4 and UE8M0 (PTX ISA, "cvt"; "Alternate Floating-Point Data Formats").

Rules: the values of a pair keep their order (the first source, or the upper half, goes to the upper part). Narrowing
rounds to nearest even and saturates to the largest finite value, infinity included. NaN is 0x7F in e4m3 and e5m2; e2m1,
e2m3 and e3m2 have none and use the largest positive value. ``.relu`` replaces negative values by +0. ``.ue8m0x2`` keeps
the exponent of the magnitude, rounded towards zero or up (from 2**-127 on); 255 is NaN, and without ``.satfinite`` also
overflow. Widening is exact; to bf16 it is of PTX ISA 9.2.

Evidence: PTX ISA and, for NaN and for UE8M0's edges, the host code of CUDA 13.0's ``cuda_fp8.hpp``, ``cuda_fp6.hpp``
and ``cuda_fp4.hpp``; all codes are tested, and the narrow values against ``ml_dtypes``. ``.scaled`` is not modelled.
"""

from __future__ import annotations

import math

import numpy as np

from pytest_nvfp4.numerics.formats import E2M1, E2M3, E3M2, E4M3, E5M2
from pytest_nvfp4.sim.alu.forms import atom, atoms
from pytest_nvfp4.sim.alu.lift import Array, Kernel, kernels, lift, parts
from pytest_nvfp4.sim.alu.numbers import NAN, floats
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction

FORMS = (
    "cvt .rn.satfinite[.relu].(e4m3x2|e5m2x2|e2m3x2|e3m2x2|e2m1x2).f32",
    "cvt .rn.satfinite[.relu].(e4m3x2|e5m2x2|e2m3x2|e3m2x2|e2m1x2).(f16x2|bf16x2)",
    "cvt .rn[.relu].(f16x2|bf16x2).(e4m3x2|e5m2x2|e2m3x2|e3m2x2|e2m1x2)",
    "cvt .(rz|rp)[.satfinite].ue8m0x2.(f32|bf16x2)",
    "cvt .rn.bf16x2.ue8m0x2",
    "cvt .pack.sat.(u16|s16).s32",
    "cvt .pack.sat.(u8|s8|u4|s4|u2|s2).s32.b32",
)

_FORMATS = {f"{format.name}x2": format for format in (E4M3, E5M2, E2M3, E3M2, E2M1)}
NARROW = frozenset({*_FORMATS, "ue8m0x2", "s2f6x2", "pack"})
"""Opcode parts that select a conversion of this module."""


def _join(upper: Array, lower: Array, width: int) -> Array:
    """Join two codes into one value: nibbles in 8 bits, or bytes in 16."""
    return (upper << width | lower).astype(np.uint8 if width == 4 else np.uint16)


def _width(kind: str) -> int:
    """Return the bits that one value occupies."""
    return 4 if kind == "e2m1x2" else 8


@kernels
def _narrow(kind: str, source: str, relu: bool) -> Kernel:
    to, width = _FORMATS[kind], _width(kind)
    bounds = to.bounds(np.float32)

    def codes(value: Array) -> Array:
        """Round float32 values to nearest even with saturation: count the bounds below them."""
        code = bounds.searchsorted(np.abs(value))
        below = value <= 0 if relu else np.signbit(value)
        if np.count_nonzero(below):
            code = np.where(below, 0 if relu else code | to.sign, code)
        if math.isnan(value.dot(value)):
            code = np.where(np.isnan(value), to.nan, code)
        return code

    def of_singles(a: Array, b: Array) -> Array:
        values = codes(np.concatenate((a.view(np.float32), b.view(np.float32))))
        return _join(values[: a.size], values[a.size :], width)

    def of_pair(a: Array) -> Array:
        values = codes(floats(parts(a, 16), source.removesuffix("x2")).astype(np.float32))
        return _join(values[1::2], values[0::2], width)

    return of_singles if source == "f32" else of_pair


@kernels
def _widen(kind: str, target: str, relu: bool) -> Kernel:
    to, width = _FORMATS[kind], _width(kind)
    values = to.values
    if target == "f16x2":
        codes = values.astype(np.float16).view(np.uint16)
    else:
        codes = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    codes = np.where(np.isnan(values), np.uint16(NAN[target.removesuffix("x2")]), codes)
    if relu:
        codes = np.where(values <= 0, np.uint16(0), codes)
    table = codes.astype(np.uint32)
    # The two bits above a six-bit value are 0 by the ISA's contract; they are ignored.
    mask = to.codes - 1
    both = np.arange(1 << 2 * width)
    pairs = table[both >> width & mask] << 16 | table[both & mask]
    whole = (1 << 2 * width) - 1

    def compute(a: Array) -> Array:
        result: Array = pairs[a & whole]
        return result

    return compute


def _exponent(bits: Array, mode: str, saturates: bool) -> Array:
    """Convert f32 patterns to UE8M0 codes."""
    size = bits & 0x7FFF_FFFF
    # UE8M0 has the exponent field of f32. 0x40_0000 is the subnormal 2^-127, which code 0 stands for; what is smaller
    # also becomes code 0 (UE8M0 has no zero). 0x7F80_0000 is infinity.
    code = size >> 23
    if mode == "rp":
        code = code + ((size & 0x7F_FFFF != 0) & (size > 0x40_0000) & (size < 0x7F80_0000))
    return np.where((code == 255) & (size <= 0x7F80_0000), 254, code) if saturates else code


@kernels
def _to_scale(mode: str, saturates: bool, source: str) -> Kernel:
    def of_singles(a: Array, b: Array) -> Array:
        return _join(_exponent(a, mode, saturates), _exponent(b, mode, saturates), 8)

    def of_pair(a: Array) -> Array:
        return of_singles(a & 0xFFFF_0000, a << 16)

    return of_singles if source == "f32" else of_pair


# bf16 has the same exponent field above 7 mantissa bits, so code << 7 is 2^(code - 127), but for the subnormal 2^-127.
_SCALES = np.arange(256, dtype=np.uint32) << 7
_SCALES[0], _SCALES[255] = 0x0040, NAN["bf16"]


def _of_scale(a: Array) -> Array:
    """Convert powers of two to bf16; 2**-127 is subnormal."""
    result: Array = _SCALES[a >> 8] << 16 | _SCALES[a & 0xFF]
    return result


def _pack(ins: Instruction, e: Emitter, read: OpcodeReader) -> None:
    """Lower ``cvt.pack``: clamp two s32 to a small type and join them, above ``c`` shifted up if present."""
    read.one("pack")
    read.one("sat")
    kind = read.one("u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2")
    read.one("s32")
    bits = int(kind[1:])
    if bits < 16:
        read.one("b32")
    dst, *sources = read.end(3 if bits == 16 else 4)
    e.assign(dst, e.call(lift(_pack_kernel(kind), *[32] * len(sources)), *atoms(e, 32, *sources)), 32)


@kernels
def _pack_kernel(kind: str) -> Kernel:
    bits = int(kind[1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)

    def part(a: Array) -> Array:
        return np.clip(a.view(np.int32), low, high).view(np.uint32) & np.uint32((1 << bits) - 1)

    def compute(a: Array, b: Array, c: Array | None = None) -> Array:
        packed = part(a) << bits | part(b)
        result: Array = packed if c is None else packed | c << 2 * bits
        return result

    return compute


def lower_narrow(ins: Instruction, e: Emitter) -> None:
    """Lower a ``cvt`` with one of the parts ``NARROW``."""
    read = OpcodeReader(ins)
    if "pack" in ins.parts:
        _pack(ins, e, read)
        return
    mode = read.one("rn", "rz", "rp")
    flags = {read.maybe("satfinite", "relu"), read.maybe("satfinite", "relu")}
    target = read.one(*_FORMATS, "ue8m0x2", "f16x2", "bf16x2")
    saturates, relu = "satfinite" in flags, "relu" in flags
    if target == "ue8m0x2":
        source = read.one("f32", "bf16x2")
        if mode == "rn" or relu:
            raise read.refuse("ue8m0x2 is rounded by .rz or .rp and takes no .relu")
        kernel, bits = _to_scale(mode, saturates, source), 16
    elif target in _FORMATS:
        source = read.one("f32", "f16x2", "bf16x2")
        if mode != "rn" or not saturates:
            raise read.refuse(f"to .{target} only with .rn.satfinite")
        kernel, bits = _narrow(target, source, relu), 2 * _width(target)
    else:
        source = read.one(*_FORMATS) if target == "f16x2" else read.one("ue8m0x2", *_FORMATS)
        if mode != "rn" or saturates or (relu and source == "ue8m0x2"):
            raise read.refuse(f"from .{source} to .{target} only with .rn")
        kernel = _of_scale if source == "ue8m0x2" else _widen(source, target, relu)
        dst, operand = read.end(2)
        width = 2 * _width(source)
        e.assign(dst, e.call(lift(kernel, width), atom(e, operand, width)), 32)
        return
    dst, *sources = read.end(3 if source == "f32" else 2)
    e.assign(dst, e.call(lift(kernel, *[32] * len(sources)), *atoms(e, 32, *sources)), bits)
