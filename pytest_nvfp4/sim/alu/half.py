"""Half-precision arithmetic (PTX ISA, "Half Precision Floating-Point Instructions", "Mixed Precision ..."): f16, bf16,
their pairs, and f32 with an f16 or bf16 operand.

A pair is two independent values. NaN results are canonical (0x7FFF), those of ``abs`` and ``neg`` included (measured on
an H200). ``.relu`` replaces a negative result, -0 included, by +0 and keeps NaN. ``fma.oob`` is not modelled.

Evidence: PTX ISA; tested against exact rational arithmetic, and bf16 against ``ml_dtypes``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from pytest_nvfp4.numerics.formats import BF16
from pytest_nvfp4.sim.alu.floating import ROUNDINGS, extreme_kernel, fused, odd_sum, saturated, settled, sign_kernel
from pytest_nvfp4.sim.alu.forms import BITS, atom, atoms
from pytest_nvfp4.sim.alu.lift import Array, Kernel, kernels, lift, on_pairs
from pytest_nvfp4.sim.alu.numbers import NAN, floats, flushed_half
from pytest_nvfp4.sim.alu.rounding import sum_to_odd, to_f32
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction

FORMS = (
    "add|sub|mul [.rn][.ftz][.sat].(f16|f16x2)",
    "add|sub|mul [.rn].(bf16|bf16x2)",
    "fma .rn[.ftz][.(sat|relu)].(f16|f16x2)",
    "fma .rn[.relu].(bf16|bf16x2)",
    "abs|neg [.ftz].(f16|f16x2)",
    "abs|neg .(bf16|bf16x2)",
    "min|max [.ftz][.NaN][.xorsign.abs].(f16|f16x2)",
    "min|max [.NaN][.xorsign.abs].(bf16|bf16x2)",
    "add|sub [.(rn|rz|rm|rp)][.sat].f32.(f16|bf16)",
    "fma .(rn|rz|rm|rp)[.sat].f32.(f16|bf16)",
)

_KINDS = ("f16", "f16x2", "bf16", "bf16x2")


def half_patterns(value: Array) -> Array:
    """Convert float32 or float64 results, exact or rounded to odd, to f16 patterns with canonical NaN."""
    codes = value.astype(np.float16).view(np.uint16)
    if math.isnan(value.dot(value)):
        return np.where(np.isnan(value), np.uint16(NAN["f16"]), codes)
    return codes


def bfloat_patterns(value: Array) -> Array:
    """Convert float64 results, exact or rounded to odd, to bf16 patterns."""
    return BF16.encode(value).astype(np.uint16)


def _lifted(kernel: Kernel, kind: str, count: int) -> Callable[..., object]:
    return lift(on_pairs(kernel) if kind.endswith("x2") else kernel, *[BITS[kind]] * count)


def _limited(value: Array, limit: str) -> Array:
    if limit == "sat":
        return saturated(value)
    if limit == "relu":
        return np.where(value <= 0, value.dtype.type(0), value)
    return value


@kernels
def _f16_kernel(root: str, flush: bool, limit: str) -> Kernel:
    native = {"add": np.add, "sub": np.subtract, "mul": np.multiply}

    def compute(*patterns: Array) -> Array:
        values = [floats(pattern, "f16", flush=flush) for pattern in patterns]
        if root == "fma":
            # The product is exact in float64; the sum is rounded to odd, so that the one to f16 is the only rounding.
            a, b, c = (value.astype(np.float64) for value in values)
            result = sum_to_odd(a * b, c)
        else:
            # float32 holds a product, and enough of a sum that rounding it again rounds once.
            result = native[root](values[0].astype(np.float32), values[1].astype(np.float32))
        answer = half_patterns(_limited(result, limit))
        return flushed_half(answer) if flush else answer

    def quick(a: Array, b: Array) -> Array:
        return half_patterns(native[root](a.view(np.float16).astype(np.float32), b.view(np.float16).astype(np.float32)))

    return compute if flush or limit or root == "fma" else quick


@kernels
def _bf16_kernel(root: str, limit: str) -> Kernel:
    def compute(*patterns: Array) -> Array:
        values = [floats(pattern, "bf16").astype(np.float64) for pattern in patterns]
        if root == "mul":
            result = values[0] * values[1]
        elif root == "fma":
            result = sum_to_odd(values[0] * values[1], values[2])
        else:
            result = sum_to_odd(values[0], values[1] if root == "add" else -values[1])
        return bfloat_patterns(_limited(result, limit))

    return compute


def _arithmetic(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    fma = ins.root == "fma"
    if len(ins.parts) > 2 and ins.parts[-2] == "f32":
        _mixed(ins, e)
        return
    if "oob" in ins.parts:
        raise read.refuse("fma.oob, whose NaN marks out-of-bounds data, is not modelled")
    if fma:
        read.one("rn")
    else:
        read.maybe("rn")
    flush = read.has("ftz")
    limit = read.maybe("sat", "relu") if fma else read.maybe("sat")
    kind = read.one(*_KINDS)
    if kind.startswith("bf") and (flush or limit == "sat"):
        raise read.refuse(".bf16 has neither .ftz nor .sat")
    dst, *sources = read.end(4 if fma else 3)
    kernel = _bf16_kernel(ins.root, limit) if kind.startswith("bf") else _f16_kernel(ins.root, flush, limit)
    bits = BITS[kind]
    e.assign(dst, e.call(_lifted(kernel, kind, len(sources)), *atoms(e, bits, *sources)), bits)


# ---- f32 with half operands -----------------------------------------------------------------------------------------


@kernels
def _mixed_kernel(root: str, mode: str, saturates: bool, kind: str) -> Kernel:
    def compute(*patterns: Array) -> Array:
        *narrow, last = patterns
        values = [floats(pattern, kind).astype(np.float32) for pattern in narrow]
        other = last.view(np.float32)
        if root == "fma":
            result = fused(values[0], values[1], other, mode)
        else:
            if root == "sub":
                other = -other
            if mode == "rn":
                result = values[0] + other
            else:
                result = to_f32(odd_sum(values[0].astype(np.float64), other.astype(np.float64), mode), mode)
        return settled(saturated(result) if saturates else result)

    return compute


def _mixed(ins: Instruction, e: Emitter) -> None:
    """Lower ``a + c``, ``a - c`` and ``a * b + c`` with a and b narrow, c and the result f32."""
    read = OpcodeReader(ins)
    fma = ins.root == "fma"
    if ins.root == "mul":
        raise read.refuse("mul has no mixed precision")
    mode = read.one(*ROUNDINGS) if fma else read.maybe(*ROUNDINGS) or "rn"
    saturates = read.has("sat")
    read.one("f32")
    kind = read.one("f16", "bf16")
    dst, *narrow, last = read.end(4 if fma else 3)
    names = [*atoms(e, 16, *narrow), atom(e, last, 32)]
    lifted = lift(_mixed_kernel(ins.root, mode, saturates, kind), *[16] * len(narrow), 32)
    e.assign(dst, e.call(lifted, *names), 32)


# ---- sign, min, max -------------------------------------------------------------------------------------------------


def _sign(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    flush = read.has("ftz")
    kind = read.one("f16", "f16x2") if flush else read.one(*_KINDS)
    dst, source = read.end(2)
    bits = BITS[kind]
    a = atom(e, source, bits)
    if flush:
        a = e.temporary(e.call(_lifted(flushed_half, kind, 1), a))
    e.assign(dst, e.call(_lifted(sign_kernel(ins.root, kind.removesuffix("x2")), kind, 1), a), bits)


def _extreme(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    flush = read.has("ftz")
    propagates = read.has("NaN")
    modifier = read.maybe("xorsign")
    if modifier:
        read.one("abs")
    kind = read.one("f16", "f16x2") if flush else read.one(*_KINDS)
    dst, *sources = read.end(3)
    bits = BITS[kind]
    kernel = extreme_kernel(ins.root, kind.removesuffix("x2"), flush, propagates, modifier)
    e.assign(dst, e.call(_lifted(kernel, kind, 2), *atoms(e, bits, *sources)), bits)


BY_TYPE: Mapping[str, Mapping[str, Lowering]] = {
    **{root: dict.fromkeys(_KINDS, _arithmetic) for root in ("add", "sub", "mul", "fma")},
    **{root: dict.fromkeys(_KINDS, _sign) for root in ("abs", "neg")},
    **{root: dict.fromkeys(_KINDS, _extreme) for root in ("min", "max")},
}
