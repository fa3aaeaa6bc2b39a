"""Selection (PTX ISA, "selp", "slct"). Evidence: PTX ISA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pytest_nvfp4.sim.alu.forms import BITS, SIGNS, atoms, inline, settle
from pytest_nvfp4.sim.alu.lift import Array, lift
from pytest_nvfp4.sim.alu.numbers import flushed
from pytest_nvfp4.sim.lanes import DTYPES
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction

FORMS = (
    "selp .(b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64)",
    "slct .(b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64).s32",
    "slct [.ftz].(b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64).f32",
)

_TYPES = (*tuple(f"{letter}{width}" for letter in "bus" for width in (16, 32, 64)), "f32", "f64")


def _choose(predicate: Array, a: Any, b: Any, bits: int) -> Array:
    dtype = DTYPES[bits]
    chosen: Array = np.where(predicate, dtype(a) if a.__class__ is int else a, dtype(b) if b.__class__ is int else b)
    return chosen


def _selp(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    bits = BITS[read.one(*_TYPES)]
    dst, first, second, condition = read.end(4)
    a, b = atoms(e, bits, first, second)
    p = settle(e, e.predicate(condition))
    text = f"(({a} if {p} else {b}) if {p}.__class__ is bool else {e.call(_choose, p, a, b, str(bits))})"
    e.assign(dst, text, bits)


def _by_sign(a: Array, b: Array, c: Array) -> Array:
    # c is an s32 pattern: below 0x8000_0000 it is not negative.
    return np.where(c < 0x8000_0000, a, b)


def _by_float(a: Array, b: Array, c: Array) -> Array:
    """Select ``a`` where c >= 0; -0.0 counts as 0, and NaN selects ``b``."""
    return np.where(c.view(np.float32) >= 0, a, b)


def _by_flushed_float(a: Array, b: Array, c: Array) -> Array:
    return _by_float(a, b, flushed(c))


def _slct(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    flush = read.has("ftz")
    bits = BITS[read.one(*_TYPES)]
    kind = read.one("f32") if flush else read.one("s32", "f32")
    dst, first, second, by = read.end(4)
    a, b = atoms(e, bits, first, second)
    (c,) = atoms(e, 32, by)
    if kind == "s32":
        e.assign(dst, inline(e, f"({a} if {c} < {SIGNS[32]} else {b})", lift(_by_sign, bits, bits, 32), a, b, c), bits)
    else:
        e.assign(dst, e.call(lift(_by_flushed_float if flush else _by_float, bits, bits, 32), a, b, c), bits)


LOWERINGS: Mapping[str, Lowering] = {"selp": _selp, "slct": _slct}
