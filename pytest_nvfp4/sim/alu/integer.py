"""Integer arithmetic except products (PTX ISA, "Integer Arithmetic Instructions"; ``multiply`` has the products).

Results wrap unless ``.sat`` (s32 only) clamps them. The ISA does not define the result of a division by zero: it gives
all ones (``div``) or the dividend (``rem``), and is counted. It is no finding, because the scheduler of NVIDIA's
grouped GEMMs divides by the tile count of a group that does not exist and discards the result.

Evidence: PTX ISA; Python's integers are the oracle of the tests.

Counter: ``divisions.by_zero``, in lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.alu.forms import BITS, MASKS, SCALARS, SIGNS, array, atoms, both, inline, ints, literal
from pytest_nvfp4.sim.alu.lift import Array, Kernel, clamped, kernels, lift, on_pairs, signed, unsigned
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.warp import Warp

_PAIRS = ("u16x2", "s16x2")

FORMS = (
    "add|sub .(u16|u32|u64|s16|s32|s64)",
    "add .(u16x2|s16x2)",
    "add|sub .sat.s32",
    "sad|div|rem .(u16|u32|u64|s16|s32|s64)",
    "abs|neg .(s16|s32|s64)",
    "min|max .(u16|u32|u64|s16|s32|s64|u16x2|s16x2)",
    "min|max .relu.(s16x2|s32)",
    "min|max .s16x2.relu",
)


def flipped(text: str, bits: int) -> str:
    """Return the expression of an atom with its sign bit flipped, which makes unsigned order signed order."""
    sign = SIGNS[bits]
    value = literal(text)
    return str(value ^ sign) if value is not None else f"({text} ^ {sign})"


# ---- add, sub -------------------------------------------------------------------------------------------------------


@kernels
def _saturated(root: str) -> Kernel:
    sign = 1 if root == "add" else -1
    return lambda a, b: clamped(signed(a).astype(np.int64) + sign * signed(b).astype(np.int64))


def _add_pair(a: Array, b: Array) -> Array:
    return (a & 0xFFFF) + (b & 0xFFFF) & 0xFFFF | (a & 0xFFFF0000) + (b & 0xFFFF0000)


def _sum(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    saturates = read.has("sat")
    kind = read.one("s32") if saturates else read.one(*SCALARS, *(_PAIRS if ins.root == "add" else ()))
    dst, *sources = read.end(3)
    bits = BITS[kind]
    a, b = atoms(e, bits, *sources)
    if saturates:
        text = e.call(lift(_saturated(ins.root), 32, 32), a, b)
    elif kind in _PAIRS:
        text = e.call(lift(_add_pair, 32, 32), a, b)
    else:
        sign = "+" if ins.root == "add" else "-"
        # Arrays wrap, and numpy adds an array faster than an int literal.
        on_arrays = f"{array(e, a, bits)} {sign} {array(e, b, bits)}"
        text = both(f"({a} {sign} {b} & {MASKS[bits]})", on_arrays, a, b)
    e.assign(dst, text, bits)


# ---- sad, div, rem --------------------------------------------------------------------------------------------------


@kernels
def _sad_kernel(signs: bool) -> Kernel:
    def compute(a: Array, b: Array, c: Array) -> Array:
        return c + np.where(signed(a) > signed(b) if signs else a > b, a - b, b - a)

    return compute


def _sad(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    kind = read.one(*SCALARS)
    dst, *sources = read.end(4)
    bits = BITS[kind]
    e.assign(dst, e.call(lift(_sad_kernel(kind[0] == "s"), bits, bits, bits), *atoms(e, bits, *sources)), bits)


def _div_unsigned(a: Array, b: Array) -> Array:
    return np.where(b == 0, ~np.zeros_like(a), a // np.where(b == 0, np.ones_like(b), b))


def _rem_unsigned(a: Array, b: Array) -> Array:
    return np.where(b == 0, a, a % np.where(b == 0, np.ones_like(b), b))


def _magnitude(value: Array) -> Array:
    return np.where(signed(value) < 0, -value, value)


def _div_signed(a: Array, b: Array) -> Array:
    if a.itemsize < 8 and np.count_nonzero(b) == b.size:
        # A quotient a / b that is no integer is at least 1 / |b| from one. With |a| < 2^32, float64's error is at most
        # |a / b| * 2^-53 < 2^-21 / |b|, so truncation gives the integer quotient.
        quotient = signed(a).astype(np.float64) / signed(b)
        whole: Array = quotient.astype(np.int64).astype(a.dtype)
        return whole
    size = _div_unsigned(_magnitude(a), _magnitude(b))
    return np.where((signed(a) < 0) ^ (signed(b) < 0) & (b != 0), -size, size) | np.where(b == 0, ~np.zeros_like(a), 0)


def _rem_signed(a: Array, b: Array) -> Array:
    if a.itemsize < 8 and np.count_nonzero(b) == b.size:
        rest: Array = a - _div_signed(a, b) * b
        return rest
    size = _rem_unsigned(_magnitude(a), _magnitude(b))
    return np.where(signed(a) < 0, -size, size)


_DIVISION = {
    ("div", "u"): _div_unsigned,
    ("div", "s"): _div_signed,
    ("rem", "u"): _rem_unsigned,
    ("rem", "s"): _rem_signed,
}


def _check_divisor(w: Warp, mask: int, divisor: Any) -> None:
    """Count the lanes that divide by zero."""
    zero = mask if divisor is True else lanes.bits_of(divisor == 0) & mask
    if zero:
        w.cta.launch.counters["divisions.by_zero"] += zero.bit_count()


def _division(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    kind = read.one(*SCALARS)
    dst, *sources = read.end(3)
    bits = BITS[kind]
    a, b = atoms(e, bits, *sources)
    divisor = literal(b)
    check = e.call(_check_divisor, "w", e.mask, "True")
    if divisor == 0:
        e.line(check)
    elif divisor is None:
        e.line(f"if {b}.__class__ is not int: {e.call(_check_divisor, 'w', e.mask, b)}")
        e.line(f"elif not {b}: {check}")
    lifted = lift(_DIVISION[ins.root, kind[0]], bits, bits)
    sign = "//" if ins.root == "div" else "%"
    if kind[0] == "u" and divisor:
        e.assign(dst, f"{a} {sign} {b}", bits)
    elif kind[0] == "u":
        e.assign(dst, f"({a} {sign} {b} if {ints(a, b)} and {b} else {e.call(lifted, a, b)})", bits)
    else:
        e.assign(dst, e.call(lifted, a, b), bits)


# ---- abs, neg, min, max ---------------------------------------------------------------------------------------------


def _sign(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    bits = BITS[read.one("s16", "s32", "s64")]
    dst, source = read.end(2)
    (a,) = atoms(e, bits, source)
    text = f"-{a} & {MASKS[bits]}"
    if ins.root == "abs":
        text = inline(e, f"({a} if {a} < {SIGNS[bits]} else {text})", _magnitude, a)
    e.assign(dst, text, bits)


@kernels
def _extreme_kernel(root: str, signs: bool, relu: bool, pairs: bool) -> Kernel:
    """Return a kernel of min or max; of pairs of 16-bit patterns, half by half."""
    choose = np.minimum if root == "min" else np.maximum

    def compute(a: Array, b: Array) -> Array:
        if not signs:
            return choose(a, b)
        result: Array = choose(signed(a), signed(b))
        return unsigned(np.maximum(result, result.dtype.type(0)) if relu else result)

    return on_pairs(compute) if pairs else compute


def _extreme(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    relu = read.has("relu")
    kind = read.one("s16x2", "s32") if relu else read.one(*SCALARS, *_PAIRS)
    # ptxas takes the modifier on either side of this type, and the ISA's example has it behind
    relu = relu or (kind == "s16x2" and read.has("relu"))
    dst, *sources = read.end(3)
    bits = BITS[kind]
    a, b = atoms(e, bits, *sources)
    on_arrays = e.call(lift(_extreme_kernel(ins.root, kind[0] == "s", relu, kind in _PAIRS), bits, bits), a, b)
    if kind in _PAIRS or relu:
        e.assign(dst, on_arrays, bits)
        return
    sign = "<" if ins.root == "min" else ">"
    order = (a, b) if kind[0] == "u" else (flipped(a, bits), flipped(b, bits))
    text = f"({a} if {order[0]} {sign} {order[1]} else {b})"
    e.assign(dst, both(text, on_arrays, a, b), bits)


LOWERINGS: Mapping[str, Lowering] = {"sad": _sad, "rem": _division}

BY_TYPE: Mapping[str, Mapping[str, Lowering]] = {
    "add": dict.fromkeys((*SCALARS, *_PAIRS), _sum),
    "sub": dict.fromkeys(SCALARS, _sum),
    "div": dict.fromkeys(SCALARS, _division),
    "abs": dict.fromkeys(("s16", "s32", "s64"), _sign),
    "neg": dict.fromkeys(("s16", "s32", "s64"), _sign),
    "min": dict.fromkeys((*SCALARS, *_PAIRS, "relu"), _extreme),
    "max": dict.fromkeys((*SCALARS, *_PAIRS, "relu"), _extreme),
}
