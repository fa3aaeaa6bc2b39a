"""Values of a static layout in index order, for proofs by enumeration."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from pytest_nvfp4.layout.canonical import coalesced_modes
from pytest_nvfp4.layout.coordinates import integer, tree_size
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.notation import AnyLayout, Layout, Swizzle
from pytest_nvfp4.layout.tree import Tree, leaves

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Offsets: TypeAlias = NDArray[np.int64]

ENUMERATION_LIMIT = 1 << 22
"""Largest number of enumerated integer offsets: nine times the fp4 elements of an SM's shared memory."""

SLOW_LIMIT = 1 << 18
"""Largest number of enumerated coordinates or fractions, which take one Python call each."""

_LISTED = 4096
"""Up to this size a list of Python integers is faster than numpy."""


def domain_size(layout: AnyLayout) -> int:
    """Return the number of indices; raises `DynamicLayoutError` if the shape has a ``?``."""
    return tree_size(layout.shape, where=layout)


def is_integer_valued(layout: AnyLayout) -> bool:
    """Return whether every value is a plain integer: no dynamic, rational or scaled-basis strides or offsets."""
    if isinstance(layout, Layout):
        return all(isinstance(leaf, int) for leaf in (*leaves(layout.shape), *leaves(layout.stride)))
    inner = not isinstance(layout.inner, Layout) or is_integer_valued(layout.inner)
    return inner and isinstance(layout.offset, int) and is_integer_valued(layout.outer)


def values(layout: AnyLayout) -> Sequence[Tree]:
    """Return the values ``layout(0), layout(1), ..., layout(size - 1)`` as Python objects.

    Raises `DynamicLayoutError` for a ``?`` and `LayoutError` for too many indices.
    """
    size = checked_size(layout)
    if not is_integer_valued(layout):
        return [layout(index) for index in range(size)]
    if size <= _LISTED:
        return _listed(layout)
    return offset_array(layout).tolist()  # type: ignore[no-any-return]


def checked_size(layout: AnyLayout) -> int:
    """Return the number of indices, if they can be enumerated; otherwise (``?`` included) raises `LayoutError`."""
    size = domain_size(layout)
    limit = ENUMERATION_LIMIT if is_integer_valued(layout) else SLOW_LIMIT
    if size > limit:
        raise LayoutError(f"{layout}: {size} indices are more than the {limit} that are enumerated; use a tile")
    return size


@lru_cache(maxsize=256)
def _listed(layout: AnyLayout) -> tuple[int, ...]:
    if isinstance(layout, Layout):
        offsets = [0]
        for mode_size, mode_stride in coalesced_modes(layout):
            step = _int(mode_stride, layout)
            offsets = [offset + place * step for place in range(_int(mode_size, layout)) for offset in offsets]
        return tuple(offsets)
    start = _int(layout.offset, layout)
    moved = [start + offset for offset in _listed(layout.outer)]
    if isinstance(layout.inner, Layout):
        return tuple(_int(layout.inner(place), layout) for place in moved)
    return tuple(moved if layout.inner is None else map(layout.inner, moved))


def _int(tree: Tree, layout: AnyLayout) -> int:
    if isinstance(tree, tuple):
        raise LayoutError(f"{layout}: its values are coordinates, not integers")
    return integer(tree, where=layout, needed="enumerating it")


def offset_array(layout: AnyLayout) -> Offsets:
    """Return the offsets of an integer-valued layout as an array of 64-bit integers, shape ``(size,)``.

    Raises as `values` does, and `LayoutError` if a value is not an integer.
    """
    import numpy as np

    checked_size(layout)
    if isinstance(layout, Layout):
        offsets = np.zeros(1, dtype=np.int64)
        for mode_size, mode_stride in coalesced_modes(layout):
            places = np.arange(_int(mode_size, layout), dtype=np.int64) * _int(mode_stride, layout)
            offsets = (places[:, None] + offsets[None, :]).ravel()
        return offsets
    moved = offset_array(layout.outer) + _int(layout.offset, layout)
    if isinstance(layout.inner, Swizzle):
        return swizzle_array(layout.inner, moved)
    return moved if layout.inner is None else _evaluate_array(layout.inner, moved)


def swizzle_array(swizzle: Swizzle, offsets: Offsets) -> Offsets:
    """Return the swizzle of every offset."""
    picked = offsets & (((1 << swizzle.bits) - 1) << (swizzle.base + max(swizzle.shift, 0)))
    return offsets ^ (picked >> swizzle.shift if swizzle.shift >= 0 else picked << -swizzle.shift)


def values_through(outer: Layout, inner: Layout) -> Sequence[Tree]:
    """Return the values ``outer(inner(0)), outer(inner(1)), ...``; raises as `values` does."""
    if is_integer_valued(outer) and is_integer_valued(inner) and checked_size(inner) > _LISTED:
        return _evaluate_array(outer, offset_array(inner)).tolist()  # type: ignore[no-any-return]
    known: dict[Tree, Tree] = {}
    places = values(inner)
    for place in places:
        if place not in known:
            known[place] = outer(place)
    return [known[place] for place in places]


def _evaluate_array(layout: Layout, indices: Offsets) -> Offsets:
    """Return the layout at every index; an index past the end continues in the last mode, as in CuTe."""
    sizes, strides = leaves(layout.shape), leaves(layout.stride)
    total = indices * 0
    for place, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        count = _int(size, layout)
        total += (indices if place == len(sizes) - 1 else indices % count) * _int(stride, layout)
        indices = indices // count
    return total
