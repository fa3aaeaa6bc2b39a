"""Sameness of two layouts: its level, and the method that established it.

Levels, from the strictest:

* ``identical``: the same text.
* ``renested``: every top-level mode is the same function; only the nesting inside the modes differs.
* ``same_function``: the same function of one index, split into other modes.
* ``permuted``: the same modes in another order: the same elements at other coordinates.
* ``different``: some index has another offset, or one layout has more indices.
* ``unknown``: it depends on a run-time ``?``, or the domain is too large to enumerate.

Methods: ``canonical`` (coalesced forms are unique, so this is a proof), ``enumerated`` (every index of the finite
domain was compared, which is a proof too), ``not provable``.

The comparison includes the swizzle of the pointer, which acts on **byte addresses** and so needs the element's width,
but not space, alignment and element type. A ``?`` is a symbol with an identity only inside one capture. Two equal
*texts* are ``identical`` even with a ``?``: this claims equal texts, not equal run-time values. For any other result
that requires two ``?`` to be equal, the level is ``unknown`` and `Sameness.if_symbols_match` is the level if they are.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from pytest_nvfp4.layout.canonical import Mode, canonical_text, coalesced_modes
from pytest_nvfp4.layout.coordinates import tree_size
from pytest_nvfp4.layout.difference import AddressedLayout, Difference, address_difference, plain_difference
from pytest_nvfp4.layout.errors import DynamicLayoutError, LayoutError
from pytest_nvfp4.layout.grammar import parse_term, parse_type
from pytest_nvfp4.layout.irtypes import TypeInfo, dtype_bits
from pytest_nvfp4.layout.notation import AnyLayout, ComposedLayout, Layout, Swizzle
from pytest_nvfp4.layout.tree import Dynamic, Leaf, ScaledBasis, is_static, leaves, map_leaves

Comparable: TypeAlias = str | TypeInfo | Layout | ComposedLayout
"""Type or layout, as text or parsed."""

Method: TypeAlias = Literal["canonical", "enumerated", "not provable"]


class SamenessLevel(StrEnum):
    """Level of sameness; see the module."""

    IDENTICAL = "identical"
    RENESTED = "renested"
    SAME_FUNCTION = "same_function"
    PERMUTED = "permuted"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Sameness:
    """Result of a comparison: level, method, and explanation.

    ``if_symbols_match`` is set if the level is ``unknown`` only because of ``?``: it is the level if every ``?`` of one
    layout equals the ``?`` at its position in the other.
    """

    level: SamenessLevel
    method: Method
    detail: str
    if_symbols_match: SamenessLevel | None = None


def compare(a: Comparable, b: Comparable) -> Sameness:
    """Compare the layouts of two types (or two layouts); see the module for levels and methods.

    Types without a layout (pointers, MMA and copy atoms, shapes) compare as text: ``identical``, ``renested`` if they
    differ only in printed defaults, else ``different``.

    Raises `LayoutSyntaxError` or `PoisonedLayout` for a text that does not parse.
    """
    if isinstance(a, str | TypeInfo) and isinstance(b, str | TypeInfo):
        return _compare_texts(a if isinstance(a, str) else a.raw, b if isinstance(b, str) else b.raw)
    return _compare_addressed(addressed(a), addressed(b))


def first_difference(a: Comparable, b: Comparable) -> Difference | None:
    """Return the first index at which the layouts differ, its coordinate in the shape of ``a``, and both offsets.

    Offsets are in elements (coordinates for coordinate tensors), after the swizzle if there is one; an index past the
    end of a layout has offset None there. None if the layouts are the same function or a difference would depend on a
    ``?``.

    Raises as `compare` does.
    """
    return _difference(addressed(a), addressed(b))


_LAYOUT_TEXT = re.compile(r"\s*(?:[(\[\d?_-]|S<|x(?::|\s*$))")
"""Beginning of the text of a layout or another term; any other text is a type."""


@lru_cache(maxsize=65536)
def _addressed_text(text: str) -> AddressedLayout:
    term = parse_term(text.strip()) if _LAYOUT_TEXT.match(text) else parse_type(text)
    if not isinstance(term, TypeInfo | Layout | ComposedLayout):
        raise LayoutError(f"{text!r} is neither a type nor a layout; give str(obj.type) or shape:stride")
    return addressed(term)


def addressed(value: Comparable) -> AddressedLayout:
    """Convert a type or layout for comparison; raises `LayoutError` for a text that is neither."""
    if isinstance(value, str):
        return _addressed_text(value)
    if isinstance(value, TypeInfo):
        pointer = value.pointer_swizzle
        swizzle = pointer if pointer is not None and pointer.bits else None
        return AddressedLayout(_stripped(value.layout), swizzle, dtype_bits(value.dtype))
    return AddressedLayout(_stripped(value), None, None)


def _stripped(layout: AnyLayout | None) -> AnyLayout | None:
    """Drop a composition without effect: offset 0, and no swizzle bits or no inner function."""
    if not isinstance(layout, ComposedLayout) or layout.offset != 0:
        return layout
    if layout.inner is None or (isinstance(layout.inner, Swizzle) and layout.inner.bits == 0):
        return _stripped(layout.outer)
    return layout


@lru_cache(maxsize=65536)
def _compare_texts(a: str, b: str) -> Sameness:
    one, other = addressed(a), addressed(b)
    if one.layout is None and other.layout is None:
        return _compare_opaque(a, b)
    return _compare_addressed(one, other)


def _compare_opaque(a: str, b: str) -> Sameness:
    if " ".join(a.split()) == " ".join(b.split()):
        return Sameness(SamenessLevel.IDENTICAL, "canonical", "the same text; the type has no layout")
    if canonical_text(a) == canonical_text(b):
        return Sameness(SamenessLevel.RENESTED, "canonical", "equal except for defaults that only one version prints")
    return Sameness(SamenessLevel.DIFFERENT, "canonical", "the texts differ, and the type has no layout to compare")


def _compare_addressed(a: AddressedLayout, b: AddressedLayout) -> Sameness:
    if a.layout is None or b.layout is None:
        if a.layout is b.layout:
            return Sameness(SamenessLevel.UNKNOWN, "not provable", "neither has a layout")
        return Sameness(SamenessLevel.DIFFERENT, "canonical", "only one of them has a layout")
    if a.swizzle != b.swizzle:
        return _compare_addresses(a, b)
    verdict = _compare_layouts(a, b, a.layout, b.layout)
    if a.swizzle is not None and verdict.level is not SamenessLevel.IDENTICAL:
        return replace(verdict, detail=f"{verdict.detail}, behind the same swizzle {a.swizzle}")
    return verdict


def _compare_layouts(a: AddressedLayout, b: AddressedLayout, one: AnyLayout, other: AnyLayout) -> Sameness:
    if one == other:
        claim = "" if _is_static(one) else "; that each '?' has the same value in both is not claimed"
        return Sameness(SamenessLevel.IDENTICAL, "canonical", f"the same text{claim}")
    if isinstance(one, Layout) and isinstance(other, Layout):
        return _compare_plain(one, other)
    if isinstance(one, ComposedLayout) and isinstance(other, ComposedLayout) and one.inner == other.inner:
        verdict = _compare_under(a, b, one, other)
        if verdict is not None:
            return verdict
    return _compare_addresses(a, b)


def _compare_under(
    a: AddressedLayout, b: AddressedLayout, one: ComposedLayout, other: ComposedLayout
) -> Sameness | None:
    """Compare two compositions with the same inner function; None if the outer layouts do not decide."""
    under = "the same coordinate offset" if one.inner is None else f"the same {one.inner}"
    if one.offset == other.offset:
        verdict = _compare_layouts(a, b, one.outer, other.outer)
        same = verdict.level in (SamenessLevel.IDENTICAL, SamenessLevel.RENESTED, SamenessLevel.SAME_FUNCTION)
        if isinstance(one.inner, Layout) and not same:
            return None  # an inner layout may map different offsets to the same value
        verdict = replace(verdict, detail=f"{verdict.detail}, under {under}")
        if same and not is_static(one.offset):
            return Sameness(
                SamenessLevel.UNKNOWN, "not provable", f"{verdict.detail}, but its '?' may differ", verdict.level
            )
        return verdict
    if isinstance(one.inner, Layout) or not (is_static(one.offset) and is_static(other.offset)):
        return None
    # Outer layouts are 0 at index 0, and a swizzle is a bijection, so different offsets differ at index 0.
    return Sameness(
        SamenessLevel.DIFFERENT, "canonical", f"the offsets {one.offset} and {other.offset} differ at index 0"
    )


def _compare_plain(one: Layout, other: Layout) -> Sameness:
    found = _function_level(one, other)
    if found is not None and _is_static(one) and _is_static(other):
        return Sameness(found, "canonical", _IN_WORDS[found])
    difference = None if found else plain_difference(one, other)
    if difference is not None:
        return Sameness(SamenessLevel.DIFFERENT, "canonical", difference.text)
    if found is not None:
        return Sameness(
            SamenessLevel.UNKNOWN, "not provable", f"{_IN_WORDS[found]} if each '?' has the same value in both", found
        )
    found = _function_level(_anonymous(one), _anonymous(other))
    detail = "it depends on the value of a '?'"
    if found is not None:
        detail = f"{_IN_WORDS[found]} if each '?' has the same value in both; the known divisor of a '?' changed"
    return Sameness(SamenessLevel.UNKNOWN, "not provable", detail, found)


_IN_WORDS = {
    SamenessLevel.RENESTED: "the same function mode by mode",
    SamenessLevel.SAME_FUNCTION: "the same function of one index",
    SamenessLevel.PERMUTED: "the same modes in another order",
}


def _function_level(one: Layout, other: Layout) -> SamenessLevel | None:
    a, b = _facets(one), _facets(other)
    if a.coalesced == b.coalesced:
        return SamenessLevel.RENESTED if a.by_mode == b.by_mode else SamenessLevel.SAME_FUNCTION
    same = a.counted_modes == b.counted_modes or a.counted_leaves == b.counted_leaves
    same = same or a.counted_coalesced == b.counted_coalesced
    return SamenessLevel.PERMUTED if same else None


def _anonymous(layout: Layout) -> Layout:
    """Return the layout with every ``?`` replaced by one without divisor and width."""

    def leaf(part: Leaf) -> Leaf:
        if isinstance(part, ScaledBasis) and isinstance(part.value, Dynamic):
            return ScaledBasis(Dynamic(), part.modes)
        return Dynamic() if isinstance(part, Dynamic) else part

    return Layout(map_leaves(leaf, layout.shape), map_leaves(leaf, layout.stride))


def _compare_addresses(a: AddressedLayout, b: AddressedLayout) -> Sameness:
    if a.layout is None or b.layout is None:
        return Sameness(SamenessLevel.UNKNOWN, "not provable", "there is no layout")
    if (a.swizzle or b.swizzle) and (a.bits is None or b.bits is None):
        return Sameness(
            SamenessLevel.UNKNOWN, "not provable", "a pointer's swizzle acts on bytes, and the element width is unknown"
        )
    what = _addressing(a, b)
    try:
        found = address_difference(a, b)
    except DynamicLayoutError:
        return Sameness(SamenessLevel.UNKNOWN, "not provable", f"{what} depend on the value of a '?'")
    except LayoutError as error:
        return Sameness(SamenessLevel.UNKNOWN, "not provable", str(error))
    if found is not None:
        return Sameness(SamenessLevel.DIFFERENT, "enumerated", f"{found.text}, comparing {what}")
    level = SamenessLevel.RENESTED if _sizes(a.layout) == _sizes(b.layout) else SamenessLevel.SAME_FUNCTION
    return Sameness(level, "enumerated", f"every index has the same address, comparing {what}")


def _addressing(a: AddressedLayout, b: AddressedLayout) -> str:
    swizzles = [swizzle for swizzle in (a.swizzle, b.swizzle) if swizzle is not None]
    if not swizzles:
        return "offsets in elements"
    period = max(1 << (swizzle.bits + swizzle.base + abs(swizzle.shift)) for swizzle in swizzles)
    return f"byte addresses from a base aligned to {period} B"


def _difference(a: AddressedLayout, b: AddressedLayout) -> Difference | None:
    one, other = a.layout, b.layout
    if one is None or other is None:
        return None
    if a.swizzle == b.swizzle:
        pair = _outers(one, other)
        if pair is not None:
            found = plain_difference(*pair)
            return None if found is None else _shown(found, a, b)
    try:
        return address_difference(a, b)
    except LayoutError:
        return None


def _outers(one: AnyLayout, other: AnyLayout) -> tuple[Layout, Layout] | None:
    """Return the layouts under the same bijections, which differ where the compositions do, or None."""
    if isinstance(one, Layout) and isinstance(other, Layout):
        return one, other
    if isinstance(one, Layout) or isinstance(other, Layout) or isinstance(one.inner, Layout):
        return None
    same = one.inner == other.inner and one.offset == other.offset and is_static(one.offset)
    return _outers(one.outer, other.outer) if same else None


def _shown(found: Difference, a: AddressedLayout, b: AddressedLayout) -> Difference:
    """Return the difference with the final offsets, if they are known."""
    try:
        offsets = [
            None if offset is None else operand.offset(found.index)
            for offset, operand in ((found.offset_a, a), (found.offset_b, b))
        ]
    except LayoutError:
        return found
    return replace(found, offset_a=offsets[0], offset_b=offsets[1])


def _is_static(layout: AnyLayout) -> bool:
    if isinstance(layout, Layout):
        return _facets(layout).static
    inner = not isinstance(layout.inner, Layout) or _is_static(layout.inner)
    return inner and is_static(layout.offset) and _is_static(layout.outer)


class _Facets(NamedTuple):
    """Properties of a layout for comparison; the counted ones ignore the order of modes and modes of size 1."""

    static: bool
    coalesced: tuple[Mode, ...]
    by_mode: tuple[tuple[Mode, ...], ...]
    counted_modes: frozenset[tuple[tuple[Mode, ...], int]]
    counted_leaves: frozenset[tuple[Mode, int]]
    counted_coalesced: frozenset[tuple[Mode, int]]


@lru_cache(maxsize=65536)
def _facets(layout: Layout) -> _Facets:
    if isinstance(layout.shape, tuple) and isinstance(layout.stride, tuple):
        by_mode = tuple(coalesced_modes(Layout(*mode)) for mode in zip(layout.shape, layout.stride, strict=True))
    else:
        by_mode = (coalesced_modes(layout),)
    flat = zip(leaves(layout.shape), leaves(layout.stride), strict=True)
    coalesced = coalesced_modes(layout)
    return _Facets(
        static=is_static(layout.shape) and is_static(layout.stride),
        coalesced=coalesced,
        by_mode=by_mode,
        counted_modes=frozenset(Counter(filter(None, by_mode)).items()),
        counted_leaves=frozenset(Counter(mode for mode in flat if mode[0] != 1).items()),
        counted_coalesced=frozenset(Counter(coalesced).items()),
    )


def _sizes(layout: AnyLayout) -> tuple[int, ...]:
    shape = layout.shape if isinstance(layout.shape, tuple) else (layout.shape,)
    return tuple(map(tree_size, shape))
