"""Whether two layouts are the same, in what sense, and how that is known.

Levels, from the strictest:

* ``identical``: the same text.
* ``renested``: every top-level mode is the same function; only the nesting inside the modes differs.
* ``same_function``: the same function of one index, cut into other modes.
* ``permuted``: the same modes in another order: the same elements at other coordinates.
* ``different``: some index has another offset, or one layout has more indices.
* ``unknown``: it depends on a run-time ``?``, or the domain is too large to enumerate.

Methods: ``canonical`` (coalesced forms are unique, so this is a proof), ``enumerated`` (every index of the finite
domain was looked at, which is a proof as well), ``not provable``.

What is compared is the layout: with the swizzle of the pointer, which acts on **byte addresses** and so needs the
element's width, but without space, alignment and element type. A ``?`` is a symbol that has an identity inside one
capture only. Two *texts* that are equal are reported ``identical`` even where they hold a ``?``: that claims that the
texts are equal, and nothing about the run-time values. In any other verdict that would need two ``?`` to be equal, the
level is ``unknown`` and `Sameness.if_symbols_match` says what it would be.
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
from pytest_nvfp4.layout.difference import Difference, Subject, address_difference, plain_difference
from pytest_nvfp4.layout.errors import DynamicLayoutError, LayoutError
from pytest_nvfp4.layout.grammar import TypeInfo, dtype_bits, parse_term, parse_type
from pytest_nvfp4.layout.notation import AnyLayout, ComposedLayout, Layout, Swizzle
from pytest_nvfp4.layout.tree import Dynamic, Leaf, ScaledBasis, is_static, leaves, map_leaves

Comparable: TypeAlias = str | TypeInfo | Layout | ComposedLayout
"""A type as text or parsed, a layout as text or parsed."""

Method: TypeAlias = Literal["canonical", "enumerated", "not provable"]


class Level(StrEnum):
    """How much two layouts have in common; see the module."""

    IDENTICAL = "identical"
    RENESTED = "renested"
    SAME_FUNCTION = "same_function"
    PERMUTED = "permuted"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Sameness:
    """A verdict: the level, how it is known, and why in words.

    ``if_symbols_match`` is set where the level is ``unknown`` for the sake of ``?`` alone: the level if every ``?`` of
    one layout is the ``?`` that stands in its place in the other.
    """

    level: Level
    method: Method
    detail: str
    if_symbols_match: Level | None = None


def compare(a: Comparable, b: Comparable) -> Sameness:
    """How the layouts of two types (or two layouts) compare; see the module for the levels and the methods.

    Types without a layout (pointers, MMA and copy atoms, shapes) compare as text: ``identical``, ``renested`` if they
    differ only in printed defaults, else ``different``.

    Raises `LayoutSyntaxError` or `PoisonedLayout` for a text that does not parse.
    """
    if isinstance(a, str | TypeInfo) and isinstance(b, str | TypeInfo):
        return _compare_texts(a if isinstance(a, str) else a.raw, b if isinstance(b, str) else b.raw)
    return _compare_subjects(subject(a), subject(b))


def first_difference(a: Comparable, b: Comparable) -> Difference | None:
    """The first index at which the layouts differ, its coordinate in the shape of ``a``, and both offsets.

    Offsets are in elements (coordinates for coordinate tensors), after the swizzle if there is one; an index past the
    end of a layout has offset None there. None if the layouts are the same function or if no difference can be shown
    because it depends on a ``?``.

    Raises as `compare` does.
    """
    return _difference(subject(a), subject(b))


_LAYOUT_TEXT = re.compile(r"\s*(?:[(\[\d?_-]|S<|x(?::|\s*$))")
"""How the text of a layout (or another term) begins; any other text is a type."""


@lru_cache(maxsize=65536)
def _subject_of_text(text: str) -> Subject:
    term = parse_term(text.strip()) if _LAYOUT_TEXT.match(text) else parse_type(text)
    if not isinstance(term, TypeInfo | Layout | ComposedLayout):
        raise LayoutError(f"{text!r} is neither a type nor a layout; give str(obj.type) or shape:stride")
    return subject(term)


def subject(value: Comparable) -> Subject:
    """What is compared of a type or layout; raises `LayoutError` for a text that is neither."""
    if isinstance(value, str):
        return _subject_of_text(value)
    if isinstance(value, TypeInfo):
        pointer = value.pointer_swizzle
        swizzle = pointer if pointer is not None and pointer.bits else None
        return Subject(_stripped(value.layout), swizzle, dtype_bits(value.dtype))
    return Subject(_stripped(value), None, None)


def _stripped(layout: AnyLayout | None) -> AnyLayout | None:
    """Without a composition that does nothing: no swizzle bits, or no inner function, and offset 0."""
    if not isinstance(layout, ComposedLayout) or layout.offset != 0:
        return layout
    if layout.inner is None or (isinstance(layout.inner, Swizzle) and layout.inner.bits == 0):
        return _stripped(layout.outer)
    return layout


@lru_cache(maxsize=65536)
def _compare_texts(a: str, b: str) -> Sameness:
    one, other = subject(a), subject(b)
    if one.layout is None and other.layout is None:
        return _compare_opaque(a, b)
    return _compare_subjects(one, other)


def _compare_opaque(a: str, b: str) -> Sameness:
    if " ".join(a.split()) == " ".join(b.split()):
        return Sameness(Level.IDENTICAL, "canonical", "the same text; the type has no layout")
    if canonical_text(a) == canonical_text(b):
        return Sameness(Level.RENESTED, "canonical", "the same but for defaults that one version prints")
    return Sameness(Level.DIFFERENT, "canonical", "the texts differ, and the type has no layout to compare")


def _compare_subjects(a: Subject, b: Subject) -> Sameness:
    if a.layout is None or b.layout is None:
        if a.layout is b.layout:
            return Sameness(Level.UNKNOWN, "not provable", "neither has a layout")
        return Sameness(Level.DIFFERENT, "canonical", "only one of them has a layout")
    if a.swizzle != b.swizzle:
        return _compare_addresses(a, b)
    verdict = _compare_layouts(a, b, a.layout, b.layout)
    if a.swizzle is not None and verdict.level is not Level.IDENTICAL:
        return replace(verdict, detail=f"{verdict.detail}, behind the same swizzle {a.swizzle}")
    return verdict


def _compare_layouts(a: Subject, b: Subject, one: AnyLayout, other: AnyLayout) -> Sameness:
    if one == other:
        claim = "" if _is_static(one) else "; that each '?' has the same value in both is not claimed"
        return Sameness(Level.IDENTICAL, "canonical", f"the same text{claim}")
    if isinstance(one, Layout) and isinstance(other, Layout):
        return _compare_plain(one, other)
    if isinstance(one, ComposedLayout) and isinstance(other, ComposedLayout) and one.inner == other.inner:
        verdict = _compare_under(a, b, one, other)
        if verdict is not None:
            return verdict
    return _compare_addresses(a, b)


def _compare_under(a: Subject, b: Subject, one: ComposedLayout, other: ComposedLayout) -> Sameness | None:
    """The verdict on two compositions with one inner function, or None where the outer layouts do not decide it."""
    under = "the same coordinate offset" if one.inner is None else f"the same {one.inner}"
    if one.offset == other.offset:
        verdict = _compare_layouts(a, b, one.outer, other.outer)
        same = verdict.level in (Level.IDENTICAL, Level.RENESTED, Level.SAME_FUNCTION)
        if isinstance(one.inner, Layout) and not same:
            return None  # an inner layout may take different offsets to the same place
        verdict = replace(verdict, detail=f"{verdict.detail}, under {under}")
        if same and not is_static(one.offset):
            return Sameness(Level.UNKNOWN, "not provable", f"{verdict.detail}, but its '?' may differ", verdict.level)
        return verdict
    if isinstance(one.inner, Layout) or not (is_static(one.offset) and is_static(other.offset)):
        return None
    # Outer layouts are 0 at index 0, and a swizzle is a bijection: index 0 tells the offsets apart.
    return Sameness(Level.DIFFERENT, "canonical", f"the offsets {one.offset} and {other.offset} differ at index 0")


def _compare_plain(one: Layout, other: Layout) -> Sameness:
    found = _same_shape_of_function(one, other)
    if found is not None and _is_static(one) and _is_static(other):
        return Sameness(found, "canonical", _IN_WORDS[found])
    difference = None if found else plain_difference(one, other)
    if difference is not None:
        return Sameness(Level.DIFFERENT, "canonical", difference.text)
    if found is not None:
        return Sameness(
            Level.UNKNOWN, "not provable", f"{_IN_WORDS[found]} if each '?' has the same value in both", found
        )
    found = _same_shape_of_function(_anonymous(one), _anonymous(other))
    detail = "it depends on the value of a '?'"
    if found is not None:
        detail = f"{_IN_WORDS[found]} if each '?' has the same value in both; the divisor known of a '?' changed"
    return Sameness(Level.UNKNOWN, "not provable", detail, found)


_IN_WORDS = {
    Level.RENESTED: "the same function mode by mode",
    Level.SAME_FUNCTION: "the same function of one index",
    Level.PERMUTED: "the same modes in another order",
}


def _same_shape_of_function(one: Layout, other: Layout) -> Level | None:
    a, b = _facets(one), _facets(other)
    if a.coalesced == b.coalesced:
        return Level.RENESTED if a.by_mode == b.by_mode else Level.SAME_FUNCTION
    same = a.counted_modes == b.counted_modes or a.counted_leaves == b.counted_leaves
    same = same or a.counted_coalesced == b.counted_coalesced
    return Level.PERMUTED if same else None


def _anonymous(layout: Layout) -> Layout:
    """The layout with every ``?`` alike, whatever divisor and width are known of it."""

    def leaf(part: Leaf) -> Leaf:
        if isinstance(part, ScaledBasis) and isinstance(part.value, Dynamic):
            return ScaledBasis(Dynamic(), part.modes)
        return Dynamic() if isinstance(part, Dynamic) else part

    return Layout(map_leaves(leaf, layout.shape), map_leaves(leaf, layout.stride))


def _compare_addresses(a: Subject, b: Subject) -> Sameness:
    if a.layout is None or b.layout is None:
        return Sameness(Level.UNKNOWN, "not provable", "there is no layout")
    if (a.swizzle or b.swizzle) and (a.bits is None or b.bits is None):
        return Sameness(
            Level.UNKNOWN,
            "not provable",
            "a pointer's swizzle acts on bytes, and the width of the elements is not known",
        )
    what = _addressing(a, b)
    try:
        found = address_difference(a, b)
    except DynamicLayoutError:
        return Sameness(Level.UNKNOWN, "not provable", f"{what} depend on the value of a '?'")
    except LayoutError as error:
        return Sameness(Level.UNKNOWN, "not provable", str(error))
    if found is not None:
        return Sameness(Level.DIFFERENT, "enumerated", f"{found.text}, comparing {what}")
    level = Level.RENESTED if _sizes(a.layout) == _sizes(b.layout) else Level.SAME_FUNCTION
    return Sameness(level, "enumerated", f"every index has the same place, comparing {what}")


def _addressing(a: Subject, b: Subject) -> str:
    swizzles = [swizzle for swizzle in (a.swizzle, b.swizzle) if swizzle is not None]
    if not swizzles:
        return "offsets in elements"
    period = max(1 << (swizzle.bits + swizzle.base + abs(swizzle.shift)) for swizzle in swizzles)
    return f"byte addresses from a base aligned to {period} B"


def _difference(a: Subject, b: Subject) -> Difference | None:
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
    """The layouts under the same bijections, which differ where the compositions do; None if there are none."""
    if isinstance(one, Layout) and isinstance(other, Layout):
        return one, other
    if isinstance(one, Layout) or isinstance(other, Layout) or isinstance(one.inner, Layout):
        return None
    same = one.inner == other.inner and one.offset == other.offset and is_static(one.offset)
    return _outers(one.outer, other.outer) if same else None


def _shown(found: Difference, a: Subject, b: Subject) -> Difference:
    """The difference with the offsets that the whole subjects have there, where these are known."""
    try:
        offsets = [
            None if offset is None else subject.offset(found.index)
            for offset, subject in ((found.offset_a, a), (found.offset_b, b))
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
    """What a layout is compared by. The counted ones leave the order of modes out, and modes of size 1."""

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
