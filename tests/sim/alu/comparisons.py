"""Comparisons in the words of the ISA."""

from __future__ import annotations

import math

INTEGER = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


def holds(operator: str, a: float, b: float) -> bool:
    """The ISA's words: ordered operators need two numbers, unordered ones hold beside NaN."""
    unordered = math.isnan(a) or math.isnan(b)
    if operator in ("num", "nan"):
        return unordered == (operator == "nan")
    if operator in INTEGER:
        return not unordered and INTEGER[operator](a, b)
    return unordered or INTEGER[operator[:-1]](a, b)
