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
from pytest_nvfp4.sim.alu.lift import Array, clamped, lift, signed
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


def number(text: str, bits: int) -> str:
    """Return the expression of an int atom as a two's complement number."""
    sign = SIGNS[bits]
    value = literal(text)
    return str((value ^ sign) - sign) if value is not None else f"(({text} ^ {sign}) - {sign})"


def _typed(value: Array, kind: str) -> Array:
    return signed(value) if kind[0] == "s" else value


def _wide_u16(a: Array, b: Array) -> Array:
    result: Array = a.astype(np.uint32) * b
    return result


def _wide_u32(a: Array, b: Array) -> Array:
    return a.astype(np.uint64) * b


def _wide_s16(a: Array, b: Array) -> Array:
    return (signed(a).astype(np.int32) * signed(b)).view(np.uint32)


def _wide_s32(a: Array, b: Array) -> Array:
    return (signed(a).astype(np.int64) * signed(b)).view(np.uint64)


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


def _high_u16(a: Array, b: Array) -> Array:
    return (_wide_u16(a, b) >> 16).astype(np.uint16)


def _high_s16(a: Array, b: Array) -> Array:
    return (_wide_s16(a, b) >> 16).astype(np.uint16)


def _high_u32(a: Array, b: Array) -> Array:
    return (_wide_u32(a, b) >> np.uint64(32)).astype(np.uint32)


def _high_s32(a: Array, b: Array) -> Array:
    return (_wide_s32(a, b) >> np.uint64(32)).astype(np.uint32)


_WIDE = {"u16": _wide_u16, "u32": _wide_u32, "s16": _wide_s16, "s32": _wide_s32}
_HIGH = {"u16": _high_u16, "u32": _high_u32, "u64": _high_u64, "s16": _high_s16, "s32": _high_s32, "s64": _high_s64}


def _product(kind: str, a: str, b: str) -> str:
    """Return the expression of the whole product of two int atoms, a number."""
    if kind[0] == "u":
        return f"{a} * {b}"
    return f"{number(a, BITS[kind])} * {number(b, BITS[kind])}"


def wide(e: Emitter, kind: str, a: str, b: str) -> str:
    """Return the expression of the product of twice the width."""
    bits = BITS[kind]
    text = f"({_product(kind, a, b)})" + (f" & {MASKS[2 * bits]}" if kind[0] == "s" else "")
    return inline(e, text, lift(_WIDE[kind], bits, bits), a, b)


def high(e: Emitter, kind: str, a: str, b: str) -> str:
    """Return the expression of the upper half of the product."""
    bits = BITS[kind]
    text = f"({_product(kind, a, b)}) >> {bits}" + (f" & {MASKS[bits]}" if kind[0] == "s" else "")
    return inline(e, text, lift(_HIGH[kind], bits, bits), a, b)


def _low_of_mad(bits: int) -> Any:
    mask = MASKS[bits]

    def mad(a: Any, b: Any, c: Any) -> Any:
        # A product of ints may exceed what numpy takes beside an array.
        return (a * b & mask) + c if a.__class__ is int and b.__class__ is int else a * b + c

    mad.__name__ = f"mad_low_{bits}"
    return mad


_mad_low = {bits: _low_of_mad(bits) for bits in (16, 32, 64)}


def _kind(read: OpcodeReader, part: str) -> str:
    return read.one(*(SCALARS if part != "wide" else _WIDE))


def _multiply(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    adds = ins.root == "mad"
    part = read.one("lo", "hi", "wide")
    kind = read.one("s32") if adds and part == "hi" and read.has("sat") else _kind(read, part)
    dst, first, second, *third = read.end(4 if adds else 3)
    bits = BITS[kind]
    a, b = atoms(e, bits, first, second)
    result = 2 * bits if part == "wide" else bits
    text = {"lo": lambda: f"{a} * {b}", "hi": lambda: high(e, kind, a, b), "wide": lambda: wide(e, kind, a, b)}[part]()
    if adds and part == "lo":
        (c,) = atoms(e, bits, *third)
        e.assign(dst, inline(e, f"({text} + {c} & {MASKS[bits]})", _mad_low[bits], a, b, c), bits)
        return
    if adds:
        (c,) = atoms(e, result, *third)
        text = f"({text}) + {c}"
    if adds or part == "lo":
        text = f"({text}) & {MASKS[result]}"
    e.assign(dst, text, result)


def _signed24(value: Array) -> Array:
    return (value << 8).view(np.int32).astype(np.int64) >> 8


def _unsigned24(value: Array) -> Array:
    return (value & 0xFFFFFF).astype(np.int64)


def _mul24_lo_u32(a: Array, b: Array) -> Array:
    return (_unsigned24(a) * _unsigned24(b)).astype(np.uint32)


def _mul24_lo_s32(a: Array, b: Array) -> Array:
    return (_signed24(a) * _signed24(b)).astype(np.uint32)


def _mul24_hi_u32(a: Array, b: Array) -> Array:
    return (_unsigned24(a) * _unsigned24(b) >> 16).astype(np.uint32)


def _mul24_hi_s32(a: Array, b: Array) -> Array:
    return (_signed24(a) * _signed24(b) >> 16).astype(np.uint32)


def _mad24_hi_sat(a: Array, b: Array, c: Array) -> Array:
    return clamped((_signed24(a) * _signed24(b) >> 16) + signed(c))


_MUL24 = {
    ("lo", "u32"): _mul24_lo_u32,
    ("lo", "s32"): _mul24_lo_s32,
    ("hi", "u32"): _mul24_hi_u32,
    ("hi", "s32"): _mul24_hi_s32,
}


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
    text = e.call(lift(_MUL24[part, kind], 32, 32), *names[:2])
    e.assign(dst, f"({text} + {names[2]}) & {MASKS[32]}" if adds else text, 32)


LOWERINGS: Mapping[str, Lowering] = {"mul24": _multiply24, "mad24": _multiply24}

BY_TYPE: Mapping[str, Mapping[str, Lowering]] = {
    "mul": dict.fromkeys(SCALARS, _multiply),
    "mad": dict.fromkeys(SCALARS, _multiply),
}
