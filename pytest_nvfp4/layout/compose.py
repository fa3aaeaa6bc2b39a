"""Composition of layouts, and the layout (if there is one) that a list of values belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TypeAlias

from pytest_nvfp4.layout.algebra import concat, modes
from pytest_nvfp4.layout.coordinates import Vector, integer
from pytest_nvfp4.layout.errors import CompositionError
from pytest_nvfp4.layout.notation import AnyLayout, ComposedLayout, Layout, Swizzle, Tile
from pytest_nvfp4.layout.offsets import is_integer_valued, values, values_through
from pytest_nvfp4.layout.tree import Leaf, ScaledBasis, Tree, Wildcard, leaves, render_tree

Tiler: TypeAlias = "int | Layout | ComposedLayout | Tile | Wildcard | tuple[Tiler, ...]"
"""What a layout is composed with or divided by: a layout, or one tiler a mode, where ``4`` stands for ``4:1``."""


def composition(a: AnyLayout | Swizzle, b: Tiler) -> AnyLayout:
    """``a o b``, the layout that takes index ``i`` of ``b`` to ``a(b(i))``, **checked** on the whole domain of ``b``.

    The result nests as ``b`` does, and further where one mode of ``b`` meets several of ``a``. As in CuTe an offset of
    ``b`` past the end of ``a`` goes on in the last mode of ``a``, even if that has size 1. A tile
    composes mode by mode, and the modes of ``a`` that it does not name stay.

    Where ``a`` is composed the result is composed with the same inner function; where ``b`` is composed the result is
    ``a o 0 o b``, which holds by definition.

    Raises `CompositionError`, with the first index that fails, if no layout nesting as ``b`` is ``a(b(i))``: the
    composition of two layouts need not be a layout, and CuTe DSL 4.8.1 returns a wrong one for some inputs.
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
    return by_mode(a, b.modes if isinstance(b, Tile) else b)


def by_mode(a: Layout, tilers: Sequence[Tiler]) -> Layout:
    """``a`` composed with one tiler a mode; raises `CompositionError` as `composition` does."""
    parts = modes(a)
    if len(tilers) > len(parts):
        raise CompositionError(f"{a}: the tile has {len(tilers)} modes and the layout {len(parts)}; drop some")
    tiled: list[Layout] = []
    for part, tiler in zip(parts, tilers, strict=False):
        found = composition(part, tiler)
        if not isinstance(found, Layout):
            raise CompositionError(f"{a}: a composed layout cannot be the tiler of one mode; compose with all of it")
        tiled.append(found)
    return concat([*tiled, *parts[len(tilers) :]])


def _composed(a: Layout, b: Layout) -> Layout:
    lowest = min((place for place in values(b) if isinstance(place, int)), default=0) if is_integer_valued(b) else 0
    if lowest < 0:
        raise CompositionError(f"({a}) o ({b}): offset {lowest} of the second layout is below 0, where none is defined")
    wanted = values_through(a, b)
    step = 1
    found: list[Layout] = []
    for leaf in leaves(b.shape):
        width = integer(leaf, where=b, needed="composition")
        fitted = fit([wanted[place * step] for place in range(width)] if step * width <= len(wanted) else [])
        if isinstance(fitted, int):
            raise _not_a_layout(a, b, fitted * step, wanted[fitted * step])
        found.append(fitted)
        step *= width
    result = _nest(b.shape, found)
    got = values(result)
    wrong = _first_unlike(got, wanted)
    if wrong is not None:
        raise _not_a_layout(a, b, wrong, wanted[wrong])
    return result


def _not_a_layout(a: Layout, b: Layout, index: int, value: Tree) -> CompositionError:
    return CompositionError(
        f"({a}) o ({b}) is not a layout that nests as {b}: no strides give {render_tree(value)} at index {index}, "
        "where the second layout runs across modes of the first; choose sizes and strides that divide those of the "
        "first",
        index,
    )


def _nest(shape: Tree, found: list[Layout]) -> Layout:
    if isinstance(shape, tuple):
        return concat([_nest(child, found) for child in shape])
    return found.pop(0)


def fit(wanted: Sequence[Tree]) -> Layout | int:
    """The coalesced layout whose values are these, or the first index at which no layout can have them.

    Sizes are found as the coalesced form defines them: the first stride is the first step, its size the first index
    where steps of that stride fail; then the same over the multiples of that size. All values are checked.
    """
    vectors = [_as_vector(value) for value in wanted]
    if not vectors:
        return Layout(0, 0)
    if any(vectors[0].values()):
        return 0
    count, step = len(vectors), 1
    found: list[tuple[int, Leaf]] = []
    while step < count:
        stride = vectors[step]
        size = next((n for n in range(1, count // step) if not _equal(vectors[n * step], stride, n)), count // step)
        leaf = _stride(stride)
        if leaf is None or count % (step * size):
            return step if leaf is None else step * size
        found.append((size, leaf))
        step *= size
    if len(found) == 1:
        result = Layout(*found[0])
    else:
        result = Layout(tuple(size for size, _ in found), tuple(leaf for _, leaf in found)) if found else Layout(1, 0)
    wrong = _first_unlike(values(result), wanted)
    return result if wrong is None else wrong


def _first_unlike(got: Sequence[Tree], wanted: Sequence[Tree]) -> int | None:
    # Coordinates are compared as vectors: (3,0) from one side may be (3) from the other, which never steps in mode 1.
    for index, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if a != b and _as_vector(a) != _as_vector(b):
            return index
    return None


def _as_vector(value: Tree, prefix: tuple[int, ...] = ()) -> Vector:
    if not isinstance(value, tuple):
        return {prefix: value} if isinstance(value, int | Fraction) and value else {}
    found: Vector = {}
    for place, child in enumerate(value):
        found.update(_as_vector(child, (*prefix, place)))
    return found


def _equal(vector: Vector, stride: Vector, times: int) -> bool:
    return vector == {path: part * times for path, part in stride.items()}


def _stride(vector: Vector) -> Leaf | None:
    if len(vector) > 1:
        return None
    for path, part in vector.items():
        return ScaledBasis(part, path) if path else part
    return 0
