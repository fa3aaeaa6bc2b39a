"""Division, roots and transcendental functions (PTX ISA, "Floating-Point Instructions" and "Half Precision ...").

The ``.rn`` ... ``.rp`` forms are correctly rounded. The ``.approx`` and ``.full`` forms are implementation-defined
within a bound that the ISA states (an ulp or two for ``rcp``, ``sqrt``, ``ex2``, ``rsqrt`` and ``div``; an absolute or
relative error for ``sin``, ``cos``, ``lg2``, ``tanh``): here they are the float64 function rounded once, and silicon
may differ within its bound. Results for zeros, infinities, NaN and, with ``.ftz``, subnormals follow the ISA's tables.

Evidence: PTX ISA; exact rational arithmetic for the correctly rounded forms, the ISA's tables for the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np

from pytest_nvfp4.numerics.formats import FloatFormat
from pytest_nvfp4.sim.alu.exact import by_lane, root, rounded
from pytest_nvfp4.sim.alu.floating import ROUNDINGS, settled
from pytest_nvfp4.sim.alu.forms import BITS, atoms
from pytest_nvfp4.sim.alu.half import bfloat_patterns, half_patterns
from pytest_nvfp4.sim.alu.lift import Array, Kernel, kernels, lift, on_pairs
from pytest_nvfp4.sim.alu.numbers import floats, flushed, settled64
from pytest_nvfp4.sim.alu.rounding import to_f32
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction

FORMS = (
    "div .(approx|full|rn|rz|rm|rp)[.ftz].f32",
    "div .(rn|rz|rm|rp).f64",
    "rcp|sqrt .(approx|rn|rz|rm|rp)[.ftz].f32",
    "rcp|sqrt .(rn|rz|rm|rp).f64",
    "rcp|rsqrt .approx.ftz.f64",
    "rsqrt .approx[.ftz].f32",
    "rsqrt .approx.f64",
    "ex2|lg2|sin|cos .approx[.ftz].f32",
    "tanh .approx.f32",
    "ex2|tanh .approx.(f16|f16x2)",
    "ex2 .approx.ftz.(bf16|bf16x2)",
    "tanh .approx.(bf16|bf16x2)",
)


_FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "rcp": lambda a: 1.0 / a,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


@kernels
def _approximate(root_: str, flush: bool) -> Kernel:
    function = _FUNCTIONS[root_]

    def compute(a: Array) -> Array:
        value = function((flushed(a) if flush else a).view(np.float32).astype(np.float64))
        return settled(value.astype(np.float32), flush)

    return compute


@kernels
def _approximate_half(root_: str, kind: str) -> Kernel:
    function = _FUNCTIONS[root_]

    def compute(a: Array) -> Array:
        return half_patterns(function(floats(a, "f16").astype(np.float64)))

    def compute_bfloat(a: Array) -> Array:
        # ex2 exists with .ftz only for bf16: subnormals of bf16 are those of f32
        wide = a.astype(np.uint32) << 16
        value = function((flushed(wide) if root_ == "ex2" else wide).view(np.float32).astype(np.float64))
        answer = bfloat_patterns(value)
        return (flushed(answer.astype(np.uint32) << 16) >> 16).astype(np.uint16) if root_ == "ex2" else answer

    single = compute_bfloat if kind.startswith("bf") else compute
    return on_pairs(single) if kind.endswith("x2") else single


# ---- correctly rounded ----------------------------------------------------------------------------------------------


def _quotient(mode: str) -> Callable[[float, float], float]:
    def lane(a: float, b: float) -> float:
        if not (math.isfinite(a) and math.isfinite(b) and a and b):
            return float(np.float64(a) / np.float64(b))
        return rounded(Fraction(a) / Fraction(b), mode)

    return lane


def _root(mode: str) -> Callable[[float], float]:
    def lane(a: float) -> float:
        return root(Fraction(a), mode) if math.isfinite(a) and a > 0 else float(np.sqrt(np.float64(a)))

    return lane


@kernels
def _exact(root_: str, mode: str, kind: str, flush: bool) -> Kernel:
    """Return a kernel of div, rcp or sqrt with one rounding."""
    lane_mode = "odd" if kind == "f32" else mode
    lane = _root(lane_mode) if root_ == "sqrt" else _quotient(lane_mode)
    native: Callable[..., Array] = np.sqrt if root_ == "sqrt" else np.divide

    def compute(*patterns: Array) -> Array:
        values = [floats(pattern, kind, flush=flush) for pattern in patterns]
        if root_ == "rcp":
            values.insert(0, np.ones_like(values[0]))
        if mode == "rn":
            result = native(*values)
        else:
            result = by_lane(lane, *(value.astype(np.float64) for value in values))
            if kind == "f32":
                result = to_f32(result, mode)
        if kind == "f64":
            return settled64(result, *reversed(patterns))
        return settled(result, flush)

    return compute


@kernels
def _divide(how: str, flush: bool) -> Kernel:
    """Return a kernel of ``div.approx`` or ``div.full``."""

    def compute(a: Array, b: Array) -> Array:
        if flush:
            a, b = flushed(a), flushed(b)
        x, y = a.view(np.float32), b.view(np.float32)
        result = x / y
        if how == "approx":
            # Beyond 2**126 the reciprocal of the divisor is lost: the ISA gives 0, or NaN for an infinite dividend.
            size = np.abs(y)
            lost = (size > np.float32(2.0**126)) & np.isfinite(y)
            if np.count_nonzero(lost):
                zero = ((a ^ b) & np.uint32(0x8000_0000)).view(np.float32)
                zero = np.where(np.isinf(x) | np.isnan(x), np.float32(np.nan), zero)
                result = np.where(lost, zero, result)
        return settled(result, flush)

    return compute


# PTX ISA, "rcp.approx.ftz.f64": the operand's lower 32 bits are ignored and the result's are zero.
_UPPER = FloatFormat("f64 upper word", 11, 20)


@kernels
def _gross(root_: str) -> Kernel:
    """Return a kernel of ``.approx.ftz.f64``, which reads and writes the upper 32 bits only; NaN is 0x7FFFFFFF."""
    function = _FUNCTIONS[root_]

    def compute(a: Array) -> Array:
        upper = a & np.uint64(0xFFFF_FFFF_0000_0000)
        upper = np.where((upper & np.uint64(0x7FF0_0000_0000_0000)) == 0, upper & np.uint64(1 << 63), upper)
        value = function(upper.view(np.float64))
        code = _UPPER.encode(value).astype(np.uint64) << np.uint64(32)
        return np.where((code & np.uint64(0x7FF0_0000_0000_0000)) == 0, code & np.uint64(1 << 63), code)

    return compute


def _plain_f64(a: Array) -> Array:
    return settled64(_FUNCTIONS["rsqrt"](a.view(np.float64)), a)


# ---- lowering -------------------------------------------------------------------------------------------------------


def _function(ins: Instruction, e: Emitter) -> None:
    """Lower a function of one operand."""
    read = OpcodeReader(ins)
    rounds = ins.root in ("rcp", "sqrt")
    mode = read.one("approx", *ROUNDINGS) if rounds else read.one("approx")
    flush = ins.root != "tanh" and read.has("ftz")
    kinds = ["f32"]
    if ins.root in ("rcp", "sqrt", "rsqrt") and (
        (mode != "approx" and not flush) or ins.root == "rsqrt" or (ins.root == "rcp" and mode == "approx" and flush)
    ):
        kinds.append("f64")
    if ins.root in ("ex2", "tanh"):
        kinds += [] if flush else ["f16", "f16x2"]
        kinds += ["bf16", "bf16x2"] if flush or ins.root == "tanh" else []
    kind = read.one(*kinds)
    dst, source = read.end(2)
    bits = BITS[kind]
    if bits == 16 or kind.endswith("x2"):
        kernel = _approximate_half(ins.root, kind)
    elif mode != "approx":
        kernel = _exact(ins.root, mode, kind, flush)
    elif kind == "f64":
        kernel = _gross(ins.root) if flush else _plain_f64
    else:
        kernel = _approximate(ins.root, flush)
    e.assign(dst, e.call(lift(kernel, bits), *atoms(e, bits, source)), bits)


def _division(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    mode = read.one("approx", "full", *ROUNDINGS)
    flush = read.has("ftz")
    kind = read.one("f32") if flush or mode not in ROUNDINGS else read.one("f32", "f64")
    dst, *sources = read.end(3)
    bits = BITS[kind]
    kernel = _exact("div", mode, kind, flush) if mode in ROUNDINGS else _divide(mode, flush)
    e.assign(dst, e.call(lift(kernel, bits, bits), *atoms(e, bits, *sources)), bits)


LOWERINGS: Mapping[str, Lowering] = dict.fromkeys(_FUNCTIONS, _function)
BY_TYPE: Mapping[str, Mapping[str, Lowering]] = {"div": dict.fromkeys(("f32", "f64"), _division)}
