"""Layout functions by their definition alone, without anything of the algebra."""

from __future__ import annotations

import math

from pytest_nvfp4.layout.notation import Layout
from pytest_nvfp4.layout.tree import leaves


def value(layout: Layout, index: int) -> dict[tuple[int, ...], object]:
    """The digits of the index times the strides, summed by coordinate mode; zeros are left out."""
    total: dict[tuple[int, ...], object] = {}
    for count, stride in zip(leaves(layout.shape), leaves(layout.stride), strict=True):
        index, digit = divmod(index, count)
        path = getattr(stride, "modes", ())
        total[path] = total.get(path, 0) + digit * getattr(stride, "value", stride)
    return {path: amount for path, amount in total.items() if amount}


def function(layout: Layout) -> list[dict[tuple[int, ...], object]]:
    """All values, in the order of the index."""
    return [value(layout, index) for index in range(math.prod(leaves(layout.shape)))]
