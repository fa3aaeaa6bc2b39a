"""Flags in global memory: what a write makes of a cell, and when a poll ends.

A **cell** is a word of 4 or 8 bytes of global memory that some warp polls. A write sets it (``st``) or adds to it
(``add``); a poll ends when its comparison (``eq``, ``ne``, ``lt``, ``le``, ``gt``, ``ge``) of the cell with an operand
holds. The kind of an operation has the type besides: ``st.b32``, ``add.b64``, ``ge.s32``, ``ne.u64``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Final

COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
WRITE_KINDS = frozenset({"st.b32", "st.b64", "add.b32", "add.b64"})
POLL_KINDS = frozenset(f"{name}.{sign}{bits}" for name in COMPARISONS for sign in "su" for bits in (32, 64))


def holds(kind: str, value: int, operand: int) -> bool:
    """Return whether a poll of a kind ends at a value of its cell."""
    name, _, form = kind.partition(".")
    bits = int(form[1:])
    return COMPARISONS[name](*(_number(each, bits, signed=form[0] == "s") for each in (value, operand)))


def written(kind: str, value: int, operand: int) -> int:
    """Return the value of a cell after a write of a kind."""
    name, _, form = kind.partition(".")
    return _number(value + operand if name == "add" else operand, int(form[1:]), signed=False)


def _number(value: int, bits: int, *, signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value
