"""Constants: integers in four bases, hexadecimal floats, decimal floats, and constant expressions of integers.

Source: PTX ISA, "Constants" (integer constants are 64 bits, signed unless ``U`` or too large; ``0f``/``0d`` are bit
patterns; a decimal float is a double) and "Constant Expressions" (operators as in C).
"""

from __future__ import annotations

import re
import struct

from pytest_nvfp4.sim.ptx.syntax import Immediate

__all__ = ["INTEGER", "double_to_single", "immediate", "integer"]

INTEGER = r"-?\s*(?:0[xX][0-9a-fA-F]+|0[bB][01]+|[0-9]+)U?"
_INTEGER = re.compile(r"(-?)\s*(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0([0-7]+)|([0-9]+))U?\Z")
_FLOAT = re.compile(r"(-?)0(?:[fF]([0-9a-fA-F]{8})|[dD]([0-9a-fA-F]{16}))\Z")
_DECIMAL = re.compile(r"-?[0-9]+(?:\.[0-9]*(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)\Z")
_EXPRESSION = re.compile(r"\s*(0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|[0-9]+U?|<<|>>|[-+*/%&|^~()])")
_MASK = (1 << 64) - 1


def integer(text: str) -> int | None:
    """The value of an integer constant or of a constant expression of integers; None if the text is neither."""
    found = _INTEGER.match(text)
    if found is None:
        return _expression(text) if text[:1] in "-~(0123456789" else None
    sign, hexadecimal, binary, octal, decimal = found.groups()
    if hexadecimal is not None:
        value = int(hexadecimal, 16)
    elif binary is not None:
        value = int(binary, 2)
    elif octal is not None:
        value = int(octal, 8)
    else:
        try:
            value = int(decimal)
        except ValueError:
            return None
        if decimal[0] == "0" and len(decimal) > 1:
            return None
    if value > _MASK:
        return None
    return -value if sign else value


def immediate(text: str) -> Immediate | None:
    """The literal, or None if the text is no literal."""
    value = integer(text)
    if value is not None:
        return Immediate(value)
    found = _FLOAT.match(text)
    if found is not None:
        sign, single, double = found.groups()
        bits = 32 if single is not None else 64
        pattern = int(single or double, 16)
        return Immediate(pattern ^ (1 << bits - 1) if sign else pattern, bits)
    if _DECIMAL.match(text):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 64)
    return None


def double_to_single(pattern: int) -> int:
    """The bit pattern of a double as that of the nearest float; infinity where it is too large."""
    (value,) = struct.unpack("<d", struct.pack("<Q", pattern))
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return int(struct.unpack("<I", packed)[0])


def _expression(text: str) -> int | None:
    """A constant expression by precedence climbing; None if it is not one."""
    pieces: list[str] = []
    position = 0
    while position < len(text.rstrip()):
        found = _EXPRESSION.match(text, position)
        if found is None:
            return None
        pieces.append(found[1])
        position = found.end()
    pieces.reverse()
    try:
        value = _climb(pieces, 0)
    except (IndexError, ZeroDivisionError, ValueError):
        return None
    return None if pieces else value


_BINDING = {"|": 1, "^": 2, "&": 3, "<<": 4, ">>": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6}


def _climb(pieces: list[str], least: int) -> int:
    left = _unary(pieces)
    while pieces and _BINDING.get(pieces[-1], -1) > least:
        operator = pieces.pop()
        right = _climb(pieces, _BINDING[operator])
        left = _wrap(_apply(operator, left, right))
    return left


def _unary(pieces: list[str]) -> int:
    piece = pieces.pop()
    if piece == "-":
        return -_unary(pieces)
    if piece == "+":
        return _unary(pieces)
    if piece == "~":
        return ~_unary(pieces)
    if piece == "(":
        value = _climb(pieces, 0)
        if pieces.pop() != ")":
            raise ValueError("expected )")
        return value
    value_of = integer(piece)
    if value_of is None or not piece[0].isdigit():
        raise ValueError(piece)
    return value_of


def _apply(operator: str, left: int, right: int) -> int:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if operator == "/":
        return _truncated(left, right)
    if operator == "%":
        return left - right * _truncated(left, right)
    if operator == "<<":
        return left << right if 0 <= right < 64 else 0
    if operator == ">>":
        return left >> right
    if operator == "&":
        return left & right
    return left | right if operator == "|" else left ^ right


def _truncated(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _wrap(value: int) -> int:
    """As a signed 64-bit value."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value
