"""Values of compositions, and whether some layout has them."""

from __future__ import annotations

from typing import Any

from pytest_nvfp4.layout.grammar import Layout
from pytest_nvfp4.layout.tree import leaves


def has_layout(truth: list[int], b: Layout) -> bool:
    """Whether any layout that nests as b has these values: each leaf alone, and their sum."""
    step, parts = 1, []
    for count in leaves(b.shape):
        part = [truth[place * step] for place in range(count)]
        if not layout_values(part):
            return False
        parts.append(part)
        step *= count
    sums = [0]
    for part in parts:
        sums = [before + own for own in part for before in sums]
    return sums == truth


def layout_values(part: list[int]) -> bool:
    """Whether a list is the values of some layout: for some first size it is a progression repeated by a layout."""
    if len(part) == 1:
        return part == [0]
    for count in (n for n in range(2, len(part) + 1) if len(part) % n == 0):
        first, rest = part[:count], part[::count]
        repeated = [outer + inner for outer in rest for inner in first]
        if first == [part[1] * n for n in range(count)] and repeated == part and layout_values(rest):
            return True
    return False


def _leaf_shapes(shape: Any, like: Any) -> list[Any]:
    if isinstance(like, tuple):
        return [leaf for part, mode in zip(shape, like, strict=True) for leaf in _leaf_shapes(part, mode)]
    return [shape]
