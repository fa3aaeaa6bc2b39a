"""Shifts (PTX ISA, "shl", "shr", "shf").

An amount of the width or more gives 0 (``shl``, unsigned ``shr``) or the sign in every bit (signed ``shr``);
``shf.clamp`` limits it to 32 and ``shf.wrap`` reduces it modulo 32. A right shift by a literal of 5 or more clears the
lane bits of ``%tid``, so its result becomes an int again where all lanes agree. Evidence: PTX ISA.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.alu.forms import BITS, MASKS, SIGNS, array, atom, atoms, both, collapsed, inline, literal
from pytest_nvfp4.sim.alu.lift import Array, Kernel, kernels, lift, signed, unsigned
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction

FORMS = (
    "shl .(b16|b32|b64)",
    "shr .(b16|b32|b64|u16|u32|u64|s16|s32|s64)",
    "shf .(l|r).(clamp|wrap).b32",
)


@kernels
def _logical(root: str) -> Kernel:
    shift = np.left_shift if root == "shl" else np.right_shift

    def compute(a: Array, b: Array) -> Array:
        width = 8 * a.itemsize
        moved: Array = shift(a, np.minimum(b, width - 1).astype(a.dtype))
        return np.where(b >= width, a.dtype.type(0), moved)

    return compute


def _right_signed(a: Array, b: Array) -> Array:
    value = signed(a)
    return unsigned(value >> np.minimum(b, 8 * a.itemsize - 1).astype(value.dtype))


def _shl(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    bits = BITS[read.one("b16", "b32", "b64")]
    dst, source, by = read.end(3)
    a, b = atom(e, source, bits), atom(e, by, 32)
    amount = literal(b)
    if amount is None:
        text = f"({a} << {b} & {MASKS[bits]} if {b} < {bits} else 0)"
        text = inline(e, text, lift(_logical("shl"), bits, 32), a, b)
    else:
        on_ints = f"({a} << {amount} & {MASKS[bits]})"
        text = both(on_ints, f"{a} << {array(e, b, bits)}", a) if amount < bits else "0"
    e.assign(dst, text, bits)


def _shr(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    kind = read.one(*(f"{letter}{width}" for letter in "bus" for width in (16, 32, 64)))
    dst, source, by = read.end(3)
    bits = BITS[kind]
    a, b = atom(e, source, bits), atom(e, by, 32)
    amount = literal(b)
    if kind[0] != "s":
        if amount is None:
            text = inline(e, f"({a} >> {b} if {b} < {bits} else 0)", lift(_logical("shr"), bits, 32), a, b)
        elif amount >= bits:
            text = "0"
        else:
            on_ints, on_arrays = f"({a} >> {amount})", f"{a} >> {array(e, b, bits)}"
            text = collapsed(e, on_ints, on_arrays, a) if amount >= 5 else both(on_ints, on_arrays, a)
    else:
        shift = f"{b} if {b} < {bits} else {bits - 1}" if amount is None else str(min(amount, bits - 1))
        on_ints = f"((({a} ^ {SIGNS[bits]}) - {SIGNS[bits]}) >> ({shift}) & {MASKS[bits]})"
        on_arrays = e.call(lift(_right_signed, bits, 32), a, b)
        if amount is not None and amount >= 5:
            on_arrays = e.call(lanes.collapse, on_arrays)
        text = both(on_ints, on_arrays, a, b)
    e.assign(dst, text, bits)


def _funnel(ins: Instruction, e: Emitter) -> None:
    """Lower ``shf.l``, the upper half of {b, a} << amount, and ``shf.r``, the lower half of {b, a} >> amount."""
    read = OpcodeReader(ins)
    side = read.one("l", "r")
    mode = read.one("clamp", "wrap")
    read.one("b32")
    dst, low, high, by = read.end(4)
    a, b, c = atoms(e, 32, low, high, by)
    amount = literal(c)
    if amount is None:
        shift = f"({c} & 31)" if mode == "wrap" else f"({c} if {c} < 32 else 32)"
    else:
        shift = str(amount & 31 if mode == "wrap" else min(amount, 32))
    moved = f"<< {shift} >> 32" if side == "l" else f">> {shift}"
    on_ints = f"(({b} << 32 | {a}) {moved} & {MASKS[32]})"
    e.assign(dst, inline(e, on_ints, lift(_funnel_kernel(side, mode), 32, 32, 32), a, b, c), 32)


@kernels
def _funnel_kernel(side: str, mode: str) -> Kernel:
    def compute(low: Array, high: Array, amount: Array) -> Array:
        joined = high.astype(np.uint64) << np.uint64(32) | low
        shift = (amount & 31 if mode == "wrap" else np.minimum(amount, 32)).astype(np.uint64)
        return (joined << shift >> np.uint64(32) if side == "l" else joined >> shift).astype(np.uint32)

    return compute


LOWERINGS: Mapping[str, Lowering] = {"shl": _shl, "shr": _shr, "shf": _funnel}
