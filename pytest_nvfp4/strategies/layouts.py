"""Strategies of layouts: flat and nested, compact, padded, broadcast, swizzled, of coordinates, with run-time sizes."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import TYPE_CHECKING

from pytest_nvfp4.layout.notation import ComposedLayout, Layout, Swizzle
from pytest_nvfp4.layout.tree import Dynamic, Leaf, ScaledBasis, Tree, leaves, map_leaves, unflatten

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy


def shapes(*, max_size: int = 256, max_rank: int = 4, nested: bool = True) -> SearchStrategy[Tree]:
    """Draw shapes of at most ``max_size`` elements and ``max_rank`` leaves, mostly powers of two.

    ``nested`` allows nested tuples, and a shape that is a single integer.
    """
    from hypothesis import strategies as st

    sizes = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64])

    @st.composite
    def draw_shape(draw: DrawFn) -> Tree:
        flat: list[int] = []
        for _ in range(draw(st.integers(1, max_rank))):
            size = draw(sizes)
            flat.append(size if math.prod(flat) * size <= max_size else 1)
        return draw(_nestings(tuple(flat))) if nested else tuple(flat)

    return draw_shape()


def _nestings(flat: tuple[Leaf, ...]) -> SearchStrategy[Tree]:
    from hypothesis import strategies as st

    @st.composite
    def draw_nesting(draw: DrawFn) -> Tree:
        if len(flat) == 1:
            return draw(st.sampled_from([flat, flat[0]]))
        cuts = [0, *(place for place in range(1, len(flat)) if draw(st.booleans())), len(flat)]
        parts = [flat[start:end] for start, end in itertools.pairwise(cuts)]
        if len(parts) == 1:
            return flat
        return tuple(part[0] if len(part) == 1 else draw(_nestings(part)) for part in parts)

    return draw_nesting()


def layouts(*, max_size: int = 256, max_rank: int = 4, nested: bool = True) -> SearchStrategy[Layout]:
    """Draw static integer layouts: compact in any mode order, padded, broadcast, and with arbitrary strides."""
    from hypothesis import strategies as st

    @st.composite
    def draw_layout(draw: DrawFn) -> Layout:
        shape = draw(shapes(max_size=max_size, max_rank=max_rank, nested=nested))
        flat = leaves(shape)
        if draw(st.booleans()):
            return draw(_ordered(shape))
        stride = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 16, 64, 65, 128])
        return Layout(shape, unflatten([draw(stride) for _ in flat], shape))

    return draw_layout()


def compact_layouts(*, max_size: int = 256, max_rank: int = 4, nested: bool = True) -> SearchStrategy[Layout]:
    """Draw layouts onto exactly ``0 .. size - 1``: compact strides of the modes in any order."""
    return shapes(max_size=max_size, max_rank=max_rank, nested=nested).flatmap(lambda shape: _ordered(shape, pads=(1,)))


def _ordered(shape: Tree, *, pads: tuple[int, ...] = (1, 1, 1, 2, 3)) -> SearchStrategy[Layout]:
    """Draw layouts without overlap: the modes in some order, each beyond all before it, with gaps."""
    from hypothesis import strategies as st

    @st.composite
    def draw_ordered(draw: DrawFn) -> Layout:
        sizes = [size for size in leaves(shape) if isinstance(size, int)]
        strides = [0] * len(sizes)
        reach = 1
        for place in draw(st.permutations(range(len(sizes)))):
            reach *= draw(st.sampled_from(pads))
            strides[place] = reach
            reach *= sizes[place]
        return Layout(shape, unflatten(strides, shape))

    return draw_ordered()


def basis_layouts(*, max_size: int = 256, max_rank: int = 4, fractions: bool = True) -> SearchStrategy[Layout]:
    """Draw layouts of coordinates, as of coordinate tensors: strides ``64@0``, ``1@1``, ``1/2@0``, and 0."""
    from hypothesis import strategies as st

    amounts: list[int | Fraction] = [1, 1, 2, 4, 64, 128]
    if fractions:
        amounts.append(Fraction(1, 2))
    steps: SearchStrategy[Leaf] = st.one_of(
        st.just(0),
        st.builds(ScaledBasis, st.sampled_from(amounts), st.sampled_from([(0,), (1,), (2,)])),
    )

    @st.composite
    def draw_basis(draw: DrawFn) -> Layout:
        shape = draw(shapes(max_size=max_size, max_rank=max_rank))
        return Layout(shape, unflatten([draw(steps) for _ in leaves(shape)], shape))

    return draw_basis()


def swizzles(*, max_bits: int = 3, max_base: int = 5) -> SearchStrategy[Swizzle]:
    """Draw swizzles ``S<bits,base,shift>`` as in shared memory (shift 3 or 4), and others."""
    from hypothesis import strategies as st

    return st.builds(Swizzle, st.integers(0, max_bits), st.integers(0, max_base), st.sampled_from([3, 3, 3, 4, -3]))


def composed_layouts(*, max_size: int = 256) -> SearchStrategy[ComposedLayout]:
    """Draw swizzled layouts: a swizzle, an offset of 0 or a few elements, and a static layout."""
    from hypothesis import strategies as st

    return st.builds(ComposedLayout, swizzles(), st.sampled_from([0, 0, 0, 16, 64]), layouts(max_size=max_size))


def dynamic_layouts(*, max_rank: int = 4) -> SearchStrategy[Layout]:
    """Draw layouts in which some sizes and strides are ``?``, with and without a known divisor."""
    from hypothesis import strategies as st

    unknown = st.builds(Dynamic, st.sampled_from([1, 8, 32]), st.sampled_from([32, 64]))

    @st.composite
    def draw_dynamic(draw: DrawFn) -> Layout:
        layout = draw(layouts(max_rank=max_rank))

        def maybe(leaf: Leaf) -> Leaf:
            return draw(unknown) if draw(st.integers(0, 2)) == 0 else leaf

        return Layout(map_leaves(maybe, layout.shape), map_leaves(maybe, layout.stride))

    return draw_dynamic()


def renested(layout: Layout) -> SearchStrategy[Layout]:
    """Draw other nestings of the same function: sizes split into factors, modes of size 1 added, tuples regrouped."""
    from hypothesis import strategies as st

    @st.composite
    def draw_renested(draw: DrawFn) -> Layout:
        flat: list[tuple[Leaf, Leaf]] = []
        for size, stride in zip(leaves(layout.shape), leaves(layout.stride), strict=True):
            if draw(st.integers(0, 3)) == 0:
                flat.append((1, draw(st.sampled_from([0, 7]))))
            factor = draw(st.sampled_from(_divisors(size))) if isinstance(size, int) and isinstance(stride, int) else 1
            if isinstance(size, int) and isinstance(stride, int) and factor > 1:
                flat += [(factor, stride), (size // factor, stride * factor)]
            else:
                flat.append((size, stride))
        shape = draw(_nestings(tuple(size for size, _ in flat)))
        return Layout(shape, unflatten([stride for _, stride in flat], shape))

    return draw_renested()


def _divisors(size: int) -> list[int]:
    return [factor for factor in range(1, size + 1) if size % factor == 0] or [1]
