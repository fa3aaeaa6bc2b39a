"""Complement, inverses, and the divisions and products that are built from composition."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_nvfp4.layout.algebra import coalesce, concat, cosize, modes, size
from pytest_nvfp4.layout.canonical import coalesced_modes
from pytest_nvfp4.layout.compose import Tiler, composition
from pytest_nvfp4.layout.coordinates import integer
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.notation import Layout, Tile
from pytest_nvfp4.layout.tree import Wildcard


def _int_modes(layout: Layout, needed: str) -> list[tuple[int, int]]:
    return [
        (integer(count, where=layout, needed=needed), integer(stride, where=layout, needed=needed))
        for count, stride in coalesced_modes(layout)
    ]


def complement(layout: Layout, cosize_at_least: int | None = None) -> Layout:
    """The layout of the offsets that ``layout`` leaves out: sorted, and together they cover every offset once.

    It goes on until both cover ``cosize_at_least`` offsets (default: the cosize of ``layout``). Modes of stride 0 play
    no part. Raises `LayoutError` if two indices share an offset or the strides do not divide one another, since no
    layout fills the gaps then.
    """
    bound = cosize(layout) if cosize_at_least is None else cosize_at_least
    taken = sorted((stride, count) for count, stride in _int_modes(layout, "complement") if stride)
    found: list[Layout] = []
    reach = 1
    for stride, count in taken:
        if stride < reach or stride % reach:
            raise LayoutError(
                f"{layout} has no complement: stride {stride} is no positive multiple of the {reach} offsets that "
                "smaller strides cover"
            )
        found.append(Layout(stride // reach, reach))
        reach = stride * count
    found.append(Layout(-(-bound // reach), reach))
    return coalesce(concat(found))


def right_inverse(layout: Layout) -> Layout:
    """The longest ``r`` with ``layout(r(i)) == i`` for every index of ``r``; ``1:0`` if offset 1 is not reached so.

    Raises `DynamicLayoutError` or, for a scaled basis or a fraction, `LayoutError`.
    """
    index = 1
    placed: list[tuple[int, int, int]] = []
    for count, stride in _int_modes(layout, "the right inverse"):
        placed.append((stride, count, index))
        index *= count
    found: list[Layout] = []
    reach = 1
    for stride, count, index in sorted(placed):
        if stride == reach:
            found.append(Layout(count, index))
            reach *= count
    return coalesce(concat(found))


def left_inverse(layout: Layout) -> Layout:
    """A layout ``l`` with ``l(layout(i)) == i`` for every index ``i``.

    Raises `LayoutError` if there is none: two indices share an offset, or the offsets have gaps that no layout fills.
    """
    if any(stride == 0 for _, stride in coalesced_modes(layout)):
        raise LayoutError(f"{layout} has no left inverse: a mode of stride 0 gives several indices one offset")
    return right_inverse(concat([layout, complement(layout)]))


def logical_divide(layout: Layout, tiler: Tiler) -> Layout:
    """``(tile, rest)``: the elements that the tiler picks, and the layout of the repetitions of the tile.

    A tile or tuple divides mode by mode: ``((tile0, rest0), (tile1, rest1), ...)``; modes that it does not name stay.
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
        raise LayoutError(f"{layout}: the tile has {len(members)} modes and the layout {len(parts)}; drop some")
    return concat([*map(logical_divide, parts, members), *parts[len(members) :]])


def zipped_divide(layout: Layout, tiler: Tiler) -> Layout:
    """``((tile0, tile1, ...), (rest0, rest1, ...))``: `logical_divide` tiles in one mode, rests in another.

    A mode under ``_`` goes whole to the tile, and a mode that the tiler does not name to the rest.
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
    """``(layout, repetitions)``: the layout repeated as the tiler says, over offsets that it leaves out.

    Raises `LayoutError` or `CompositionError` if the repetitions are no layout.
    """
    space = complement(layout, size(layout) * cosize(tiler))
    repeated = composition(space, tiler)
    assert isinstance(repeated, Layout)
    return concat([layout, repeated])


def _members(tiler: Tiler) -> Sequence[Tiler]:
    if isinstance(tiler, Tile):
        return tiler.modes
    if isinstance(tiler, tuple):
        return tiler
    raise LayoutError(f"{tiler} is no tiler of a layout; give an integer, a layout, or one tiler a mode")
