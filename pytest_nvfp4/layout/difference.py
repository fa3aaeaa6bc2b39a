"""First difference of two layouts, from their coalesced modes or by enumeration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from pytest_nvfp4.layout.canonical import Mode, coalesced_modes
from pytest_nvfp4.layout.coordinates import as_tree
from pytest_nvfp4.layout.errors import DynamicLayoutError, LayoutError
from pytest_nvfp4.layout.notation import AnyLayout, Layout, Swizzle
from pytest_nvfp4.layout.offsets import (
    checked_size,
    domain_size,
    is_integer_valued,
    offset_array,
    swizzle_array,
    values,
)
from pytest_nvfp4.layout.tree import Dynamic, ScaledBasis, Tree, is_static, leaves, render_tree, unflatten

if TYPE_CHECKING:
    from pytest_nvfp4.layout.offsets import Offsets


@dataclass(frozen=True, slots=True)
class Difference:
    """The first index at which two layouts differ; unpacks as ``index, coord, offset_a, offset_b``.

    ``coord`` is that index in the shape of the first layout. Offsets are in elements, None past the end of a layout
    and ``?`` if unknown at the end of the other layout.
    """

    index: int
    coord: Tree
    offset_a: Tree | None
    offset_b: Tree | None

    def __iter__(self) -> Iterator[Tree | None]:
        return iter((self.index, self.coord, self.offset_a, self.offset_b))

    @property
    def text(self) -> str:
        """Difference as a sentence."""
        a, b = ("past the end" if o is None else f"at {render_tree(o)}" for o in (self.offset_a, self.offset_b))
        return f"index {self.index}, coordinate {render_tree(self.coord)}, is {a} in one and {b} in the other"


@dataclass(frozen=True, slots=True)
class AddressedLayout:
    """Layout with the swizzle of its pointer (on byte addresses) and the bits of an element."""

    layout: AnyLayout | None
    swizzle: Swizzle | None
    bits: int | None

    def bit_address(self, coord: Tree) -> int:
        """Return the address in bits of an index or coordinate, from a base at 0, after the swizzle.

        Raises `DynamicLayoutError` if it depends on a ``?`` and `LayoutError` without a memory layout or element width.
        """
        if self.layout is None or self.bits is None:
            raise LayoutError(f"{self.layout}: an address needs a layout and elements of known width")
        offset = self.layout(coord)
        if not isinstance(offset, int):
            raise LayoutError(f"coordinate {render_tree(coord)} is at {render_tree(offset)}, not at a memory offset")
        address, rest = divmod(offset * self.bits, 8)
        return (address if self.swizzle is None else self.swizzle(address)) * 8 + rest

    def offset(self, index: int) -> Tree:
        """Return the element offset at an index, after the swizzle; raises as `bit_address` does."""
        if self.layout is None:
            raise LayoutError("a type without a layout has no offsets")
        if self.swizzle is None or self.bits is None:
            return self.layout(index)
        place = Fraction(self.bit_address(index), self.bits)
        return place.numerator if place.denominator == 1 else place


def coordinate(index: int, shape: Tree) -> Tree:
    """Return the coordinate of an index; the last mode, or the first of size ``?``, takes the remainder."""
    sizes = leaves(shape)
    places: list[Tree] = []
    for place, size in enumerate(sizes):
        if isinstance(size, int) and size and place < len(sizes) - 1:
            index, rest = divmod(index, size)
        else:
            index, rest = 0, index
        places.append(rest)
    return unflatten(places, shape)


def plain_difference(a: Layout, b: Layout) -> Difference | None:
    """Return the first index at which two layouts differ, from their coalesced forms, or None.

    Sizes and offsets after a ``?`` are unknown, so a ``?`` before the first difference gives None.
    """
    ones, others = coalesced_modes(a), coalesced_modes(b)
    index = 1
    for place in range(max(len(ones), len(others))):
        one, other = _mode(ones, place), _mode(others, place)
        if one == other and isinstance(one[0], int) and is_static(one):
            index *= one[0]
            continue
        step = _first_step(one, other, _mode(ones, place + 1), _mode(others, place + 1))
        return None if step is None else _at(index * step, a, b)
    return None


END: Mode = (1, 0)


def _mode(modes: Sequence[Mode], place: int) -> Mode:
    return modes[place] if place < len(modes) else END


def _first_step(one: Mode, other: Mode, after_one: Mode, after_other: Mode) -> int | None:
    """Return the distance of the first difference in steps of the current multiple, or None if unknown."""
    (size, stride), (other_size, other_stride) = one, other
    if not isinstance(size, int) or not isinstance(other_size, int):
        return None
    if 1 in (size, other_size):  # one layout has ended, and the other continues
        return 1
    if not (is_static(stride) and is_static(other_stride)):
        return None
    if stride != other_stride:
        return 1
    shorter, after = (size, after_one) if size < other_size else (other_size, after_other)
    # In a coalesced form, the stride after the shorter mode differs from one more step, so the layouts differ there.
    return shorter if after == END or is_static(after) else None


def _at(index: int, a: Layout, b: Layout) -> Difference:
    return Difference(index, coordinate(index, a.shape), _value(a, index), _value(b, index))


def _value(layout: Layout, index: int) -> Tree | None:
    """Return the value at an index in the layout; None past its end."""
    offset, rest = 0, index
    for count, stride in coalesced_modes(layout):  # fast path for integers
        if not isinstance(count, int) or not isinstance(stride, int) or not count:
            return _any_value(layout, index)
        rest, digit = divmod(rest, count)
        offset += digit * stride
    return None if rest else offset


def _any_value(layout: Layout, index: int) -> Tree | None:
    size = known_size(layout)
    if size is not None and index >= size:
        return None
    try:
        vector = layout.vector(coordinate(index, layout.shape))
    except DynamicLayoutError:
        return Dynamic()  # the index is in this layout, but its offset is unknown
    try:
        return as_tree(vector)
    except LayoutError:  # strides such as 1@0 beside 1@0@0 form no coordinate: return the sum
        return tuple(ScaledBasis(amount, modes) if modes else amount for modes, amount in sorted(vector.items()))


def known_size(layout: AnyLayout) -> int | None:
    """Return the number of indices, or None if it is known only at run time."""
    try:
        return domain_size(layout)
    except DynamicLayoutError:
        return None


def address_difference(a: AddressedLayout, b: AddressedLayout) -> Difference | None:
    """Return the first index at which the addresses differ, by enumeration; None if there is none.

    Addresses are element offsets, or bit addresses if a pointer has a swizzle (elements of 4 bits have no byte
    address). Raises `DynamicLayoutError` for a ``?`` and `LayoutError` for a domain too large to enumerate.
    """
    if a.layout is None or b.layout is None:
        raise LayoutError("there is no layout to compare")
    in_bits = a.swizzle is not None or b.swizzle is not None
    size, other_size = domain_size(a.layout), domain_size(b.layout)
    shared = min(size, other_size)
    index = _first_unlike(a, b, shared, in_bits=in_bits)
    if index is None and size == other_size:
        return None
    where = shared if index is None else index
    return Difference(
        where,
        coordinate(where, a.layout.shape),
        a.offset(where) if where < size else None,
        b.offset(where) if where < other_size else None,
    )


_PROBED = 64
"""Indices compared one by one first: layouts that differ mostly do so early, which avoids large arrays."""


def _first_unlike(a: AddressedLayout, b: AddressedLayout, shared: int, *, in_bits: bool) -> int | None:
    one, other = _checked(a, in_bits=in_bits), _checked(b, in_bits=in_bits)
    for index in range(min(shared, _PROBED)):
        if (a.bit_address(index) != b.bit_address(index)) if in_bits else (one(index) != other(index)):
            return index
    if shared <= _PROBED:
        return None
    if is_integer_valued(one) and is_integer_valued(other):
        unlike = _places(a, one, in_bits=in_bits)[:shared] != _places(b, other, in_bits=in_bits)[:shared]
        return int(unlike.argmax()) if unlike.any() else None
    pairs = zip(values(one), values(other), strict=False)
    return next((index for index, (x, y) in enumerate(pairs) if x != y), None)


def _checked(subject: AddressedLayout, *, in_bits: bool) -> AnyLayout:
    layout = subject.layout
    if layout is None or (in_bits and (subject.bits is None or not is_integer_valued(layout))):
        raise LayoutError(f"{layout}: byte addresses need integer offsets and elements of known width")
    checked_size(layout)
    return layout


def _places(subject: AddressedLayout, layout: AnyLayout, *, in_bits: bool) -> Offsets:
    offsets = offset_array(layout)
    if not in_bits or subject.bits is None:
        return offsets
    bits = offsets * subject.bits
    return bits if subject.swizzle is None else swizzle_array(subject.swizzle, bits >> 3) * 8 + (bits & 7)
