"""``m64n192k16``: the shape of a matrix instruction in its opcode."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Shape"]

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")


class Shape(NamedTuple):
    """Rows and columns of the result, and depth, in elements."""

    m: int
    n: int
    k: int

    @classmethod
    def parse(cls, text: str) -> Shape | None:
        """The shape of a part of an opcode, or None if it is none."""
        match = _SHAPE.fullmatch(text)
        return None if match is None else cls(*map(int, match.groups()))
