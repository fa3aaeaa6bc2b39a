"""Complement, inverses, and the divisions and products built from composition.

Definitions follow CuTe's "Layout Algebra" (CUTLASS, media/docs/cpp/cute/02_layout_algebra.md)."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_nvfp4.layout.algebra import coalesce, concat, cosize, modes, size
from pytest_nvfp4.layout.canonical import coalesced_modes
from pytest_nvfp4.layout.compose import TilerLike, composition
from pytest_nvfp4.layout.coordinates import integer
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.notation import Layout, Tiler
from pytest_nvfp4.layout.tree import Wildcard


def _int_modes(layout: Layout, needed: str) -> list[tuple[int, int]]:
    return [
        (integer(count, where=layout, needed=needed), integer(stride, where=layout, needed=needed))
        for count, stride in coalesced_modes(layout)
    ]


def complement(layout: Layout, cosize_at_least: int | None = None) -> Layout:
    """Return the sorted layout of the offsets missing from ``layout``, so that both cover every offset once.

    They cover at least ``cosize_at_least`` offsets (default: the cosize of ``layout``). Modes of stride 0 are ignored.
    Raises `LayoutError` if two indices share an offset or the strides do not divide one another, because no layout
    fills the gaps then.
    """
    bound = cosize(layout) if cosize_at_least is None else cosize_at_least
    taken = sorted((stride, count) for count, stride in _int_modes(layout, "complement") if stride)
    gaps: list[Layout] = []
    # Sorted modes (s_i : d_i) cover a chain: the gap before mode i is d_i / (s_{i-1} d_{i-1}) : s_{i-1} d_{i-1}.
    reach = 1
    for stride, count in taken:
        if stride < reach or stride % reach:
            raise LayoutError(
                f"{layout} has no complement: stride {stride} is not a positive multiple of the {reach} offsets that "
                "smaller strides cover"
            )
        gaps.append(Layout(stride // reach, reach))
        reach = stride * count
    gaps.append(Layout(-(-bound // reach), reach))
    return coalesce(concat(gaps))


def right_inverse(layout: Layout) -> Layout:
    """Return the longest ``r`` with ``layout(r(i)) == i`` for every index of ``r``; ``1:0`` if no index has offset 1.

    Raises `DynamicLayoutError` or, for a scaled basis or a fraction, `LayoutError`.
    """
    index = 1
    placed: list[tuple[int, int, int]] = []
    for count, stride in _int_modes(layout, "the right inverse"):
        placed.append((stride, count, index))
        index *= count
    chain: list[Layout] = []
    reach = 1
    for stride, count, index in sorted(placed):
        if stride == reach:
            chain.append(Layout(count, index))
            reach *= count
    return coalesce(concat(chain))


def left_inverse(layout: Layout) -> Layout:
    """Return a layout ``l`` with ``l(layout(i)) == i`` for every index ``i``.

    Raises `LayoutError` if there is none: two indices share an offset, or no layout fills the gaps between the offsets.
    """
    if any(stride == 0 for _, stride in coalesced_modes(layout)):
        raise LayoutError(f"{layout} has no left inverse: a mode of stride 0 gives several indices one offset")
    return right_inverse(concat([layout, complement(layout)]))


def logical_divide(layout: Layout, tiler: TilerLike) -> Layout:
    """Return ``(tile, rest)``: the elements that the tiler selects, and the layout of the repetitions of the tile.

    A tiler with modes divides mode by mode: ``((tile0, rest0), (tile1, rest1), ...)``; further modes are unchanged.
    Raises `CompositionError` if the tiler does not divide the layout.
    """
    if isinstance(tiler, Wildcard):
        return layout
    if isinstance(tiler, int):
        tiler = Layout(tiler, 1)
    if isinstance(tiler, Layout):
        divided = composition(layout, concat([tiler, complement(tiler, size(layout))]))
        assert isinstance(divided, Layout)
        return divided
    members = _members(tiler)
    parts = modes(layout)
    if len(members) > len(parts):
        raise LayoutError(f"{layout}: the tiler has {len(members)} modes and the layout {len(parts)}; drop some")
    return concat([*map(logical_divide, parts, members), *parts[len(members) :]])


def zipped_divide(layout: Layout, tiler: TilerLike) -> Layout:
    """Return ``((tile0, tile1, ...), (rest0, rest1, ...))``: `logical_divide` with tiles and rests in a mode each.

    A mode under ``_`` belongs to the tile as a whole, and a mode without a tiler to the rest.
    """
    divided = logical_divide(layout, tiler)
    if isinstance(tiler, int | Layout):
        return divided
    if isinstance(tiler, Wildcard):
        return concat([layout, Layout(1, 0)])
    members, parts = _members(tiler), modes(divided)
    tiles: list[Layout] = []
    rests: list[Layout] = []
    for part, member in zip(parts, members, strict=False):
        tile, rest = (part, Layout(1, 0)) if isinstance(member, Wildcard) else modes(part)
        tiles.append(tile)
        rests.append(rest)
    return concat([concat(tiles), concat([*rests, *parts[len(members) :]])])


def logical_product(layout: Layout, tiler: Layout) -> Layout:
    """Return ``(layout, repetitions)``: the layout repeated according to the tiler, over offsets that it does not use.

    Raises `LayoutError` or `CompositionError` if the repetitions form no layout.
    """
    space = complement(layout, size(layout) * cosize(tiler))
    repeated = composition(space, tiler)
    assert isinstance(repeated, Layout)
    return concat([layout, repeated])


def _members(tiler: TilerLike) -> Sequence[TilerLike]:
    if isinstance(tiler, Tiler):
        return tiler.modes
    if isinstance(tiler, tuple):
        return tiler
    raise LayoutError(f"{tiler} is not a tiler; give an integer, a layout, or one tiler a mode")
