"""Composition of layouts, and fitting a layout to a list of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from pytest_nvfp4.layout.algebra import concat, modes
from pytest_nvfp4.layout.canonical import layout_of
from pytest_nvfp4.layout.coordinates import Vector, integer, tree_vector
from pytest_nvfp4.layout.errors import CompositionError
from pytest_nvfp4.layout.notation import AnyLayout, ComposedLayout, Layout, Swizzle, Tiler
from pytest_nvfp4.layout.offsets import is_integer_valued, values, values_through
from pytest_nvfp4.layout.tree import Leaf, ScaledBasis, Tree, Wildcard, leaves, render_tree

TilerLike: TypeAlias = "int | Layout | ComposedLayout | Tiler | Wildcard | tuple[TilerLike, ...]"
"""Second operand of composition and division: a layout, or one tiler per mode, where ``4`` stands for ``4:1``."""


def composition(a: AnyLayout | Swizzle, b: TilerLike) -> AnyLayout:
    """Return ``a o b``, the layout that maps index ``i`` of ``b`` to ``a(b(i))``, **checked** on the domain of ``b``.

    The result nests as ``b``, and further where one mode of ``b`` spans several of ``a``. As in CuTe, an offset of
    ``b`` past the end of ``a`` continues in the last mode of ``a``, even if that has size 1. A tiler composes mode by
    mode; further modes of ``a`` are unchanged.

    If ``a`` is a composed layout, so is the result, with the same inner function. If ``b`` is one, the result is
    ``a o 0 o b`` by definition.

    Raises `CompositionError` with the first failing index if no layout nesting as ``b`` equals ``a(b(i))``: the
    composition of two layouts is not always a layout, and CuTe DSL 4.8.1 returns a wrong one for some inputs, such as
    ``(2,3,2):(1,4,2) o (4,2):(1,4)``.
    """
    if isinstance(a, ComposedLayout):
        outer = composition(a.outer, b)
        return ComposedLayout(a.inner, a.offset, outer)
    if isinstance(a, Swizzle):
        if isinstance(b, Layout | ComposedLayout):
            return ComposedLayout(a, 0, b)
        raise CompositionError(f"{a}: a swizzle has no modes to compose with a tile; give a layout")
    if isinstance(b, ComposedLayout):
        return ComposedLayout(a, 0, b)
    if isinstance(b, Wildcard):
        return a
    if isinstance(b, int):
        return _composed(a, Layout(b, 1))
    if isinstance(b, Layout):
        return _composed(a, b)
    return by_mode(a, b.modes if isinstance(b, Tiler) else b)


def by_mode(a: Layout, tilers: Sequence[TilerLike]) -> Layout:
    """Compose ``a`` with one tiler per mode; raises `CompositionError` as `composition` does."""
    parts = modes(a)
    if len(tilers) > len(parts):
        raise CompositionError(f"{a}: the tiler has {len(tilers)} modes and the layout {len(parts)}; drop some")
    tiled: list[Layout] = []
    for part, tiler in zip(parts, tilers, strict=False):
        composed = composition(part, tiler)
        if not isinstance(composed, Layout):
            raise CompositionError(f"{a}: a composed layout cannot be the tiler of one mode; compose with all of it")
        tiled.append(composed)
    return concat([*tiled, *parts[len(tilers) :]])


def _composed(a: Layout, b: Layout) -> Layout:
    lowest = min((place for place in values(b) if isinstance(place, int)), default=0) if is_integer_valued(b) else 0
    if lowest < 0:
        raise CompositionError(f"({a}) o ({b}): offset {lowest} of the second layout is negative")
    expected = values_through(a, b)
    step = 1
    fits: list[Layout] = []
    for leaf in leaves(b.shape):
        width = integer(leaf, where=b, needed="composition")
        fitted = fit([expected[place * step] for place in range(width)] if step * width <= len(expected) else [])
        if isinstance(fitted, int):
            raise _not_a_layout(a, b, fitted * step, expected[fitted * step])
        fits.append(fitted)
        step *= width
    result = _nest(b.shape, fits)
    wrong = _first_unlike(values(result), expected)
    if wrong is not None:
        raise _not_a_layout(a, b, wrong, expected[wrong])
    return result


def _not_a_layout(a: Layout, b: Layout, index: int, value: Tree) -> CompositionError:
    return CompositionError(
        f"({a}) o ({b}) is not a layout that nests as {b}: no strides give {render_tree(value)} at index {index}, "
        "where the second layout crosses modes of the first; choose sizes and strides that divide those of the first",
        index,
    )


def _nest(shape: Tree, parts: list[Layout]) -> Layout:
    if isinstance(shape, tuple):
        return concat([_nest(child, parts) for child in shape])
    return parts.pop(0)


def fit(expected: Sequence[Tree]) -> Layout | int:
    """Return the coalesced layout with these values, or the first index at which no layout can have them.

    Sizes follow from the uniqueness of the coalesced form: the first stride is the first step, its size the first index
    at which a multiple of that step fails; then the same over the multiples of that size. All values are checked.
    """
    vectors = [_as_vector(value) for value in expected]
    if not vectors:
        return Layout(0, 0)
    if any(vectors[0].values()):
        return 0
    count, step = len(vectors), 1
    fitted: list[tuple[int, Leaf]] = []
    while step < count:
        stride = vectors[step]
        size = next((n for n in range(1, count // step) if not _equal(vectors[n * step], stride, n)), count // step)
        leaf = _stride(stride)
        if leaf is None or count % (step * size):
            return step if leaf is None else step * size
        fitted.append((size, leaf))
        step *= size
    result = layout_of(tuple(fitted))
    wrong = _first_unlike(values(result), expected)
    return result if wrong is None else wrong


def _first_unlike(actual: Sequence[Tree], expected: Sequence[Tree]) -> int | None:
    # Coordinates are compared as vectors: one side may have (3,0) where the other, which never steps in mode 1, has
    # (3).
    for index, (a, b) in enumerate(zip(actual, expected, strict=True)):
        if a != b and _as_vector(a) != _as_vector(b):
            return index
    return None


def _as_vector(value: Tree) -> Vector:
    return {path: part for path, part in tree_vector(value).items() if part}


def _equal(vector: Vector, stride: Vector, times: int) -> bool:
    return vector == {path: part * times for path, part in stride.items()}


def _stride(vector: Vector) -> Leaf | None:
    if len(vector) > 1:
        return None
    for path, part in vector.items():
        return ScaledBasis(part, path) if path else part
    return 0
