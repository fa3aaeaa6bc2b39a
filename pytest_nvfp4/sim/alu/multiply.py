"""Integer products (PTX ISA, "Integer Arithmetic Instructions": ``mul``, ``mad``, ``mul24``, ``mad24``).

Evidence: PTX ISA; Python's integers are the oracle of the tests. Results wrap unless ``.sat`` (s32 only) clamps them:
``mad24.hi.sat.s32`` does. The sum of ``mad.hi.sat.s32`` wraps, though the ISA says that it is clamped: the code that
the driver makes for an H200 (CUDA 13.0) does not clamp it (measured).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pytest_nvfp4.sim.alu.forms import BITS, MASKS, SCALARS, SIGNS, atoms, inline, literal
from pytest_nvfp4.sim.alu.lift import SIGNED, Array, Kernel, clamped, kernels, lift, signed
from pytest_nvfp4.sim.lanes import DTYPES
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction

FORMS = (
    "mul|mad .(lo|hi).(u16|u32|u64|s16|s32|s64)",
    "mul|mad .wide.(u16|u32|s16|s32)",
    "mad .hi.sat.s32",
    "mul24|mad24 .(lo|hi).(u32|s32)",
    "mad24 .hi.sat.s32",
)


_KINDS = {"lo": SCALARS, "hi": SCALARS, "wide": ("u16", "u32", "s16", "s32")}
"""Types of each part of a product."""


def number(text: str, bits: int) -> str:
    """Return the expression of an int atom as a two's complement number."""
    sign = SIGNS[bits]
    value = literal(text)
    return str((value ^ sign) - sign) if value is not None else f"(({text} ^ {sign}) - {sign})"


@kernels
def _wide_kernel(kind: str) -> Kernel:
    """Return a kernel of the product of twice the width."""
    signs, dtype = kind[0] == "s", DTYPES[2 * BITS[kind]]

    def compute(a: Array, b: Array) -> Array:
        product: Array = signed(a).astype(SIGNED[2 * BITS[kind]]) * signed(b) if signs else a.astype(dtype) * b
        return product.view(dtype)

    return compute


def _high_u64(a: Array, b: Array) -> Array:
    low, shift = np.uint64(0xFFFF_FFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> shift, b & low, b >> shift
    middle = a1 * b0 + (a0 * b0 >> shift)
    other = a0 * b1 + (middle & low)
    result: Array = a1 * b1 + (middle >> shift) + (other >> shift)
    return result


def _high_s64(a: Array, b: Array) -> Array:
    zero = np.uint64(0)
    return _high_u64(a, b) - np.where(signed(a) < 0, b, zero) - np.where(signed(b) < 0, a, zero)


@kernels
def _high_kernel(kind: str) -> Kernel:
    """Return a kernel of the upper half of the product."""
    bits = BITS[kind]
    if bits == 64:
        return _high_u64 if kind == "u64" else _high_s64
    whole, dtype = _wide_kernel(kind), DTYPES[2 * bits]
    return lambda a, b: (whole(a, b) >> dtype(bits)).astype(DTYPES[bits])


def _product(kind: str, a: str, b: str) -> str:
    """Return the expression of the whole product of two int atoms, a number."""
    if kind[0] == "u":
        return f"{a} * {b}"
    return f"{number(a, BITS[kind])} * {number(b, BITS[kind])}"


def wide(e: Emitter, kind: str, a: str, b: str) -> str:
    """Return the expression of the product of twice the width."""
    bits = BITS[kind]
    text = f"({_product(kind, a, b)})" + (f" & {MASKS[2 * bits]}" if kind[0] == "s" else "")
    return inline(e, text, lift(_wide_kernel(kind), bits, bits), a, b)


def high(e: Emitter, kind: str, a: str, b: str) -> str:
    """Return the expression of the upper half of the product."""
    bits = BITS[kind]
    text = f"({_product(kind, a, b)}) >> {bits}" + (f" & {MASKS[bits]}" if kind[0] == "s" else "")
    return inline(e, text, lift(_high_kernel(kind), bits, bits), a, b)


@kernels
def _mad_low(bits: int) -> Any:
    mask = MASKS[bits]

    def mad(a: Any, b: Any, c: Any) -> Any:
        # A product of ints may exceed what numpy takes beside an array.
        return (a * b & mask) + c if a.__class__ is int and b.__class__ is int else a * b + c

    return mad


def _multiply(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    adds = ins.root == "mad"
    part = read.one("lo", "hi", "wide")
    kind = read.one("s32") if adds and part == "hi" and read.has("sat") else read.one(*_KINDS[part])
    dst, first, second, *third = read.end(4 if adds else 3)
    bits = BITS[kind]
    a, b = atoms(e, bits, first, second)
    result = 2 * bits if part == "wide" else bits
    text = {"lo": lambda: f"{a} * {b}", "hi": lambda: high(e, kind, a, b), "wide": lambda: wide(e, kind, a, b)}[part]()
    if adds and part == "lo":
        (c,) = atoms(e, bits, *third)
        e.assign(dst, inline(e, f"({text} + {c} & {MASKS[bits]})", _mad_low(bits), a, b, c), bits)
        return
    if adds:
        (c,) = atoms(e, result, *third)
        text = f"({text}) + {c}"
    if adds or part == "lo":
        text = f"({text}) & {MASKS[result]}"
    e.assign(dst, text, result)


def _product24(a: Array, b: Array, kind: str) -> Array:
    """Multiply the low 24 bits, extended by zeros or their sign, as int64."""
    x, y = (
        ((v << 8).view(np.int32).astype(np.int64) >> 8) if kind == "s32" else (v & 0xFFFFFF).astype(np.int64)
        for v in (a, b)
    )
    result: Array = x * y
    return result


@kernels
def _mul24(part: str, kind: str) -> Kernel:
    return lambda a, b: (_product24(a, b, kind) >> (16 if part == "hi" else 0)).astype(np.uint32)


def _mad24_hi_sat(a: Array, b: Array, c: Array) -> Array:
    return clamped((_product24(a, b, "s32") >> 16) + signed(c))


def _multiply24(ins: Instruction, e: Emitter) -> None:
    """Lower the product of the low 24 bits: its low 32 bits, or bits 16 to 47."""
    read = OpcodeReader(ins)
    adds = ins.root == "mad24"
    part = read.one("lo", "hi")
    saturates = adds and part == "hi" and read.has("sat")
    kind = read.one("s32") if saturates else read.one("u32", "s32")
    dst, *sources = read.end(4 if adds else 3)
    names = atoms(e, 32, *sources)
    if saturates:
        e.assign(dst, e.call(lift(_mad24_hi_sat, 32, 32, 32), *names), 32)
        return
    text = e.call(lift(_mul24(part, kind), 32, 32), *names[:2])
    e.assign(dst, f"({text} + {names[2]}) & {MASKS[32]}" if adds else text, 32)


LOWERINGS: Mapping[str, Lowering] = {"mul24": _multiply24, "mad24": _multiply24}

BY_TYPE: Mapping[str, Mapping[str, Lowering]] = {
    "mul": dict.fromkeys(SCALARS, _multiply),
    "mad": dict.fromkeys(SCALARS, _multiply),
}
