"""Unique coalesced form of a layout, and canonical text of a type.

Coalescing drops modes of size 1 and merges neighbours ``s:d, s':d'`` where ``s * d == d'``. The result depends
only on the layout as a function f of one index: the first stride is f(1), the first size is the least n with
f(n) != n f(1), and so on through the multiples of that size. So two static layouts are the same function exactly when
their coalesced forms are equal, for integer, rational and scaled-basis strides alike. A ``?`` remains as written
without arithmetic: equal texts with ``?`` do not imply equal functions.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from pytest_nvfp4.layout.grammar import parse_type
from pytest_nvfp4.layout.irtypes import ArgumentGroup, IrType, Keyword, Quoted, TypeInfo
from pytest_nvfp4.layout.notation import AnyLayout, ComposedLayout, Layout, Swizzle, Tiler
from pytest_nvfp4.layout.tree import Dynamic, Leaf, ScaledBasis, Wildcard, leaves

Mode = tuple[Leaf, Leaf]


@lru_cache(maxsize=65536)
def canonical(layout: AnyLayout) -> AnyLayout:
    """Return the coalesced form: flat, without modes of size 1, neighbours merged; ``1:0`` if nothing is left.

    In a composed layout, the outer layout is coalesced, and a swizzle of no bits with offset 0 is dropped. The inner
    layout is unchanged, because its shape is the profile of its coordinates.
    """
    if isinstance(layout, Layout):
        return layout_of(coalesced_modes(layout))
    outer = canonical(layout.outer)
    if isinstance(layout.inner, Swizzle) and layout.inner.bits == 0 and layout.offset == 0:
        return outer
    if layout.inner is None and layout.offset == 0:
        return outer
    return ComposedLayout(layout.inner, layout.offset, outer)


@lru_cache(maxsize=65536)
def coalesced_modes(layout: Layout) -> tuple[Mode, ...]:
    """Return the modes ``(size, stride)`` of the coalesced form: none for size 1, ``(0, 0)`` for an empty layout."""
    sizes, strides = leaves(layout.shape), leaves(layout.stride)
    if 0 in sizes:
        return ((0, 0),)
    modes: list[Mode] = []
    for size, stride in zip(sizes, map(_reduced, strides), strict=True):
        if size == 1:
            continue
        if modes and isinstance(size, int):
            last_size, last_stride = modes[-1]
            if isinstance(last_size, int) and _times(last_size, last_stride) == stride:
                modes[-1] = (last_size * size, last_stride)
                continue
        modes.append((size, stride))
    return tuple(modes)


def layout_of(modes: tuple[Mode, ...]) -> Layout:
    """Return the flat layout of ``(size, stride)`` modes; ``1:0`` for none."""
    if not modes:
        return Layout(1, 0)
    if len(modes) == 1:
        return Layout(*modes[0])
    return Layout(tuple(size for size, _ in modes), tuple(stride for _, stride in modes))


def _reduced(stride: Leaf) -> Leaf:
    """Replace a basis vector scaled by zero, of any mode, by 0."""
    return 0 if isinstance(stride, ScaledBasis) and stride.value == 0 else stride


def _times(size: int, stride: Leaf) -> Leaf | None:
    if isinstance(stride, ScaledBasis):
        scaled = _times(size, stride.value)
        return ScaledBasis(scaled, stride.modes) if isinstance(scaled, int | Fraction) else None
    if isinstance(stride, Dynamic | Wildcard):
        return None
    product = size * stride
    return product.numerator if product.denominator == 1 else product


@lru_cache(maxsize=65536)
def canonical_text(info: TypeInfo | str) -> str:
    """Return the canonical text of a type, as in snapshots.

    For a type with a layout (``layout``, ``composed_layout``, ``memref``, ``coord_tensor``, ``smem_desc_view``) it is
    the coalesced form, after ``S<..> o 0 o`` if the pointer has a swizzle. Element type, space, alignment and the
    nesting of modes are only in the raw text. For any other type it is the type without printed defaults, such as a
    ``permutation_MNK`` that permutes nothing, which 4.8.1 prints and 4.4.0 does not.

    Raises `LayoutSyntaxError` or `PoisonedLayout` as `parse_type` does.
    """
    if isinstance(info, str):
        info = parse_type(info)
    if info.layout is None:
        return str(_without_defaults(info.tree))
    layout = canonical(info.layout)
    pointer = info.pointer_swizzle
    return f"{layout}" if pointer is None or pointer.bits == 0 else f"{pointer} o 0 o {layout}"


def _without_defaults(tree: IrType) -> IrType:
    if tree.args is None:
        return tree
    args = (_without_defaults(arg) if isinstance(arg, IrType) else arg for arg in tree.args if not _is_default(arg))
    return IrType(tree.name, tuple(args))


def _is_default(arg: object) -> bool:
    if not (isinstance(arg, Keyword) and arg.name == "permutation_MNK" and isinstance(arg.value, ArgumentGroup)):
        return False
    tiles = [member.term for member in arg.value.members if isinstance(member, Quoted)]
    return all(isinstance(tile, Tiler) and set(tile.modes) == {Wildcard.ALL} for tile in tiles)
