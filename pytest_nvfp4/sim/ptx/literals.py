"""Constants: integers in four bases, hexadecimal floats, decimal floats, and constant expressions of integers.

Source: PTX ISA, "Constants": integer constants are 64 bits, signed unless ``U`` or too large; ``0f``/``0d`` are bit
patterns; a decimal float is a double. "Constant Expressions": the operators are C's; an operation is unsigned if one of
its operands is, ``& | ^ ~`` always, ``%`` reads its operands as unsigned and gives a signed value. Compared with the
values that ptxas 13.4 computes.
"""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable
from typing import NamedTuple

from pytest_nvfp4.sim.ptx.syntax import Immediate

INTEGER = r"-?\s*(?:0[xX][0-9a-fA-F]+|0[bB][01]+|[0-9]+)U?"
"""Pattern of an integer constant."""

_INTEGER = re.compile(r"(-?)\s*(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0([0-7]+)|(0|[1-9][0-9]*))(U?)\Z")
_FLOAT = re.compile(r"0(?:[fF]([0-9a-fA-F]{8})|[dD]([0-9a-fA-F]{16}))\Z")
_DECIMAL = re.compile(r"-?(?:[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)\Z")
_PIECE = re.compile(
    r"\s*(\(\s*\.[su]64\s*\)|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|[0-9]+U?|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^~()!<>?:])"
)
_MASK = (1 << 64) - 1
_TOP = 1 << 63

_BINDING = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7, "<<": 8, ">>": 8,
    "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip


def integer(text: str) -> int | None:
    """Return the value of an integer constant or constant expression; None if the text is neither."""
    found = _INTEGER.match(text)
    if found is None:
        return _expression(text) if text[:1] in "-+~!(0123456789" else None
    sign, *digits, _ = found.groups()
    value = next(int(text, base) for text, base in zip(digits, (16, 2, 8, 10), strict=True) if text is not None)
    if value > _MASK:
        return None
    return -value if sign else value


def immediate(text: str) -> Immediate | None:
    """Parse a literal; None if the text is none."""
    value = integer(text)
    if value is not None:
        return Immediate(value)
    found = _FLOAT.match(text)
    if found is not None:
        single, double = found.groups()
        return Immediate(int(single, 16), 32) if single is not None else Immediate(int(double, 16), 64)
    if _DECIMAL.match(text):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 64)
    return None


def double_to_single(pattern: int) -> int:
    """Convert the bit pattern of a double to that of the nearest float; infinity where it is too large."""
    (value,) = struct.unpack("<d", struct.pack("<Q", pattern))
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return int(struct.unpack("<I", packed)[0])


class _Value(NamedTuple):
    """64 bits as a Python int in the range of its type."""

    value: int
    unsigned: bool


def _typed(value: int, unsigned: bool) -> _Value:
    value &= _MASK
    return _Value(value if unsigned or not value & _TOP else value - (1 << 64), unsigned)


def _expression(text: str) -> int | None:
    """Evaluate a constant expression by precedence climbing; None if it is not one."""
    text = text.rstrip()
    pieces: list[str] = []
    position = 0
    while position < len(text):
        found = _PIECE.match(text, position)
        if found is None:
            return None
        pieces.append(found[1])
        position = found.end()
    pieces.reverse()
    try:
        value = _conditional(pieces)
    except (IndexError, ZeroDivisionError, ValueError):
        return None
    return None if pieces else value.value


def _conditional(pieces: list[str]) -> _Value:
    condition = _climb(pieces, 0)
    if not pieces or pieces[-1] != "?":
        return condition
    pieces.pop()
    first = _conditional(pieces)
    if pieces.pop() != ":":
        raise ValueError("expected :")
    second = _conditional(pieces)
    return _typed((first if condition.value else second).value, first.unsigned or second.unsigned)


def _climb(pieces: list[str], least: int) -> _Value:
    left = _unary(pieces)
    while pieces and _BINDING.get(pieces[-1], -1) > least:
        sign = pieces.pop()
        left = _apply(sign, left, _climb(pieces, _BINDING[sign]))
    return left


def _unary(pieces: list[str]) -> _Value:
    piece = pieces.pop()
    if piece == "(":
        value = _conditional(pieces)
        if pieces.pop() != ")":
            raise ValueError("expected )")
        return value
    if piece[0] == "(":
        return _typed(_unary(pieces).value, "u" in piece)
    if piece in ("-", "+", "~", "!"):
        value = _unary(pieces)
        if piece == "!":
            return _Value(int(not value.value), False)
        if piece == "~":
            return _typed(~value.value, True)
        return _typed(-value.value if piece == "-" else value.value, value.unsigned)
    found = _INTEGER.match(piece)
    number_or_none = integer(piece) if found is not None else None
    if found is None or number_or_none is None:
        raise ValueError(piece)
    return _typed(number_or_none, bool(found[6]) or number_or_none >= _TOP)


def _apply(sign: str, left: _Value, right: _Value) -> _Value:
    if sign in ("<<", ">>"):
        # The result has the left operand's type. The ISA does not define counts from 64 on; ptxas uses them modulo 64.
        count = right.value & 63
        return _typed(left.value << count if sign == "<<" else left.value >> count, left.unsigned)
    if sign in ("&&", "||"):
        truths = bool(left.value), bool(right.value)
        return _Value(int(all(truths) if sign == "&&" else any(truths)), False)
    unsigned = left.unsigned or right.unsigned or sign in "%&|^"
    a, b = _typed(left.value, unsigned).value, _typed(right.value, unsigned).value
    if sign in _COMPARE:
        return _Value(int(_COMPARE[sign](a, b)), False)
    return _typed(_ARITHMETIC[sign](a, b), unsigned and sign != "%")


def _quotient(left: int, right: int) -> int:
    """Divide towards zero, as in C."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "/": _quotient,
    "%": lambda a, b: a - b * _quotient(a, b),
}  # fmt: skip
