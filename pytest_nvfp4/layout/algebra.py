"""Basic algebra of layouts: coordinates, measures, regrouping.

Composition is in `pytest_nvfp4.layout.compose`, complement, inverses, divisions and products in
`pytest_nvfp4.layout.divide`. A layout is evaluated by calling it: ``layout(7)``, ``layout((3, (0, 1)))``.
Functions that need numbers raise `DynamicLayoutError` if a layout has a ``?``; `coalesce` and `flatten` accept it.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_nvfp4.layout.canonical import canonical
from pytest_nvfp4.layout.coordinates import compact_stride, integer
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.notation import AnyLayout, ComposedLayout, Layout
from pytest_nvfp4.layout.offsets import domain_size, is_integer_valued, offset_array
from pytest_nvfp4.layout.tree import Dynamic, Leaf, ScaledBasis, Tree, leaves, map_leaves, render_tree


def make_layout(shape: Tree, stride: Tree | None = None) -> Layout:
    """Return the layout of a shape, by default with compact strides (first mode fastest)."""
    return Layout(shape, compact_stride(shape) if stride is None else stride)


def size(layout: AnyLayout) -> int:
    """Return the number of indices (elements) of the layout."""
    return domain_size(layout)


def cosize(layout: AnyLayout) -> int:
    """Return the span of the offsets + 1, the number of elements that an allocation for the layout needs.

    For non-negative strides this is the largest offset + 1, as in CuTe. The offsets of a swizzled layout are
    enumerated. Raises `LayoutError` for scaled-basis or rational strides.
    """
    if isinstance(layout, ComposedLayout):
        if not is_integer_valued(layout):
            raise LayoutError(f"{layout}: cosize needs integer offsets; its values are coordinates")
        return int(offset_array(layout).max()) + 1
    sizes = [integer(leaf, where=layout, needed="cosize") for leaf in leaves(layout.shape)]
    strides = [integer(leaf, where=layout, needed="cosize") for leaf in leaves(layout.stride)]
    if 0 in sizes:
        return 0
    return 1 + sum((count - 1) * abs(step) for count, step in zip(sizes, strides, strict=True))


def rank(layout: AnyLayout) -> int:
    """Return the number of top-level modes; 1 for a layout without brackets."""
    return len(layout.shape) if isinstance(layout.shape, tuple) else 1


def depth(layout: AnyLayout) -> int:
    """Return the nesting depth of the modes: 0 for ``4:1``, 1 for ``(4,8):(1,4)``."""
    return _depth(layout.shape)


def _depth(tree: Tree) -> int:
    return 1 + max(map(_depth, tree), default=0) if isinstance(tree, tuple) else 0


def modes(layout: Layout) -> tuple[Layout, ...]:
    """Return the top-level modes, each as a layout."""
    if isinstance(layout.shape, tuple) and isinstance(layout.stride, tuple):
        return tuple(map(Layout, layout.shape, layout.stride))
    return (layout,)


def concat(parts: Iterable[Layout]) -> Layout:
    """Return the layout whose top-level modes are the given layouts."""
    members = tuple(parts)
    return Layout(tuple(part.shape for part in members), tuple(part.stride for part in members))


def flatten(layout: Layout) -> Layout:
    """Return the same function without nesting; modes of size 1 remain."""
    return Layout(leaves(layout.shape), leaves(layout.stride)) if isinstance(layout.shape, tuple) else layout


def coalesce(layout: Layout, profile: Tree | None = None) -> Layout:
    """Return the same function with the fewest modes, or with the fewest in each mode of ``profile``.

    A tuple as profile coalesces each of the first modes by the profile's member and keeps the others, as CuTe does:
    ``coalesce(layout, (1, 1))`` keeps the rank of a matrix.
    """
    if not isinstance(profile, tuple):
        coalesced = canonical(layout)
        assert isinstance(coalesced, Layout)
        return coalesced
    parts = modes(layout)
    if not isinstance(layout.shape, tuple) or len(profile) > len(parts):
        raise LayoutError(f"{layout}: the profile {render_tree(profile)} names more modes than the layout has")
    return concat([*map(coalesce, parts, profile), *parts[len(profile) :]])


def bind(layout: Layout, numbers: Iterable[int]) -> Layout:
    """Return the layout with every ``?`` replaced, in the order of the text (shape, then stride).

    Raises `LayoutError` for too few or too many numbers, or one that violates a ``div=``.
    """
    given = list(numbers)
    queue = iter(given)

    def value(unknown: Dynamic) -> int:
        number = next(queue, None)
        if number is None or number % unknown.div:
            problem = "there are too few numbers" if number is None else f"{number} is not a multiple of {unknown.div}"
            raise LayoutError(f"{layout}: {problem} for its '?'; give one a '?', left to right: got {given}")
        return number

    def leaf(part: Leaf) -> Leaf:
        if isinstance(part, ScaledBasis) and isinstance(part.value, Dynamic):
            return ScaledBasis(value(part.value), part.modes)
        return value(part) if isinstance(part, Dynamic) else part

    bound = Layout(map_leaves(leaf, layout.shape), map_leaves(leaf, layout.stride))
    if next(queue, None) is not None:
        raise LayoutError(f"{layout}: {len(given)} numbers are too many for its '?'")
    return bound
