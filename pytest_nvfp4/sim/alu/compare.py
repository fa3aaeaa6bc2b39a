"""Comparison (PTX ISA, "setp", "set", and their half-precision forms).

The unordered operators (``equ`` ... ``geu``) are true and the ordered ones false when an operand is NaN; ``ne`` is
ordered; ``num`` and ``nan`` test for NaN. With a second source ``c``, ``p = (a op b) bool c`` and ``q = !(a op b) bool
c``.

Evidence: PTX ISA; every operator is tested against Python's comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from pytest_nvfp4.sim.alu.forms import BITS, MASKS, SIGNS, array, atoms, both, literal
from pytest_nvfp4.sim.alu.integer import flipped
from pytest_nvfp4.sim.alu.lift import Array, lift
from pytest_nvfp4.sim.alu.numbers import floats, halves
from pytest_nvfp4.sim.lanes import DTYPES
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction, Sink

_EQUALITY = {"eq": "==", "ne": "!="}
_ORDER = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED_ORDER = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_FLOAT = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
_INTEGERS = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64")
_FLOATS = ("f16", "bf16", "f32", "f64")
_PAIRS = ("f16x2", "bf16x2")

FORMS = (
    "setp .(eq|ne)[.(and|or|xor)].(b16|b32|b64|u16|u32|u64|s16|s32|s64)",
    "setp .(lt|le|gt|ge)[.(and|or|xor)].(u16|u32|u64|s16|s32|s64)",
    "setp .(lo|ls|hi|hs)[.(and|or|xor)].(u16|u32|u64)",
    "setp .(eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan)[.(and|or|xor)][.ftz].(f16|f32|f16x2)",
    "setp .(eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan)[.(and|or|xor)].(bf16|f64|bf16x2)",
    "set .(as setp)[.(and|or|xor)].(u32|s32|f32|f16|bf16).(b16|b32|b64|u16|u32|u64|s16|s32|s64|f64)",
    "set .(as setp)[.(and|or|xor)][.ftz].(u32|s32|f32|f16).f32",
    "set .(as setp)[.(and|or|xor)].bf16.(f16|f32)",
    "set .(as setp)[.(and|or|xor)][.ftz].(u16|s16|u32|s32|f16).f16",
    "set .(as setp)[.(and|or|xor)].(u16|s16|u32|s32|bf16).bf16",
    "set .(as setp)[.(and|or|xor)][.ftz].(u32|s32|f16x2).f16x2",
    "set .(as setp)[.(and|or|xor)].(u32|s32|bf16x2).bf16x2",
)

_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: (a < b) | (a > b),
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": lambda a, b: a != b,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}


@cache
def _comparison(operator: str, kind: str, flush: bool) -> Callable[..., object]:
    """Return ``operator`` on patterns of a floating-point type as a function from register values to a predicate."""

    def compare(a: Array, b: Array) -> Array:
        return _COMPARE[operator](floats(a, kind, flush=flush), floats(b, kind, flush=flush))

    return lift(compare, BITS[kind], BITS[kind])


def _condition(read: OpcodeReader, e: Emitter, operator: str, kind: str, flush: bool, a: str, b: str) -> str:
    """Return the expression of ``a operator b``."""
    if kind in _FLOATS:
        if operator not in _FLOAT:
            raise read.refuse(f".{operator} compares integers")
        return e.call(_comparison(operator, kind, flush), a, b)
    bits = BITS[kind]
    sign = {**_EQUALITY, **(_ORDER if kind[0] != "b" else {}), **(_UNSIGNED_ORDER if kind[0] == "u" else {})}.get(
        operator
    )
    if sign is None:
        raise read.refuse(f".{operator} does not compare .{kind}")
    if kind[0] == "s" and operator in _ORDER:
        on_ints = f"({flipped(a, bits)} {sign} {flipped(b, bits)})"
        return both(on_ints, f"{_flipped_array(e, a, bits)} {sign} {_flipped_array(e, b, bits)}", a, b)
    on_ints = f"({a} {sign} {b})"
    if literal(a) is None and literal(b) is None:
        return on_ints
    return both(on_ints, f"{array(e, a, bits)} {sign} {array(e, b, bits)}", a, b)


def _flipped_array(e: Emitter, text: str, bits: int) -> str:
    """Return ``flipped`` for use beside arrays."""
    value = literal(text)
    if value is not None:
        return array(e, str(value ^ SIGNS[bits]), bits)
    return f"({text} ^ {array(e, str(SIGNS[bits]), bits)})"


def _halves_conditions(
    read: OpcodeReader, e: Emitter, operator: str, pair: str, flush: bool, a: str, b: str
) -> tuple[str, str]:
    """Return the expressions of ``a operator b`` for the lower and the upper half of a pair."""
    a0, a1, b0, b1 = (e.temporary(e.call(halves, x, part)) for x in (a, b) for part in ("0", "16"))
    kind = pair.removesuffix("x2")
    low = _condition(read, e, operator, kind, flush, a0, b0)
    return low, _condition(read, e, operator, kind, flush, a1, b1)


_BOOL = {"and": "&", "or": "|", "xor": "^"}


def _setp(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins)
    operator = read.one(*_FLOAT, *_UNSIGNED_ORDER)
    combine = read.maybe(*_BOOL)
    flush = read.has("ftz")
    kind = read.one("f16", "f32", "f16x2") if flush else read.one(*_INTEGERS, *_FLOATS, *_PAIRS)
    operands = read.end(4 if combine else 3)
    extra = f" {_BOOL[combine]} {e.predicate(operands[3])}" if combine else ""
    p, q = e.pair(operands[0])
    a, b = atoms(e, BITS[kind], operands[1], operands[2])
    if kind in _PAIRS:
        low, high = _halves_conditions(read, e, operator, kind, flush, a, b)
        low, high = e.temporary(low + extra), e.temporary(high + extra)
        e.assign_predicate(p, low)
        e.assign_predicate(q, high)
        return
    text = _condition(read, e, operator, kind, flush, a, b)
    if isinstance(q, Sink):
        e.assign_predicate(p, f"({text}){extra}" if extra else text)
        return
    # Both before either is assigned: p may be the third source itself.
    text = e.temporary(text)
    first, second = e.temporary(f"{text}{extra}"), e.temporary(f"({text} ^ True){extra}")
    e.assign_predicate(p, first)
    e.assign_predicate(q, second)


_TRUE = {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F80_0000}


@cache
def _answer(true: int, bits: int) -> Callable[..., object]:
    dtype: Any = DTYPES[bits]

    def answer(condition: Any) -> object:
        if condition.__class__ is bool:
            return true if condition else 0
        return np.where(condition, dtype(true), dtype(0))

    return answer


def _results(kind: str, flush: bool) -> tuple[str, ...]:
    """Return the result types of ``set`` by source type."""
    if kind in _PAIRS:
        return (kind, "u32", "s32")
    if kind == "f16":
        return ("f16", "u16", "s16", "u32", "s32") + (() if flush else ("bf16",))
    if kind == "bf16":
        return ("bf16", "u16", "s16", "u32", "s32")
    return ("u32", "s32", "f32", "f16") + (() if flush else ("bf16",))


def _set(ins: Instruction, e: Emitter) -> None:
    """Lower ``set``: all ones (integers) or 1.0 where the condition holds, else 0; per half for a pair."""
    read = OpcodeReader(ins)
    operator = read.one(*_FLOAT, *_UNSIGNED_ORDER)
    combine = read.maybe(*_BOOL)
    flush = read.has("ftz")
    result = read.one("u16", "s16", "u32", "s32", "f16", "bf16", "f32", *_PAIRS)
    kind = read.one("f16", "f32", "f16x2") if flush else read.one(*_INTEGERS, *_FLOATS, *_PAIRS)
    if result not in _results(kind, flush):
        raise read.refuse(f"a .{result} result from .{kind}")
    dst, *sources = read.end(4 if combine else 3)
    extra = f" {_BOOL[combine]} {e.predicate(sources[2])}" if combine else ""
    a, b = atoms(e, BITS[kind], *sources[:2])
    if kind in _PAIRS:
        single = kind[:-2]
        answer = _answer(_TRUE[single] if result in _PAIRS else MASKS[16], 32)
        conditions = _halves_conditions(read, e, operator, kind, flush, a, b)
        low, high = (e.call(answer, f"({condition}){extra}") for condition in conditions)
        e.assign(dst, f"{low} | {high} << 16", 32)
        return
    bits = BITS[result]
    answer = _answer(_TRUE.get(result, MASKS[bits]), bits)
    e.assign(dst, e.call(answer, f"({_condition(read, e, operator, kind, flush, a, b)}){extra}"), bits)


LOWERINGS: Mapping[str, Lowering] = {"setp": _setp, "set": _set}
