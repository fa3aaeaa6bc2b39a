"""Grade of the change from one type to another: severity and reasons.

`pytest_nvfp4.layout.diff` has the table of grades.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from pytest_nvfp4.layout.change import Delta, FirstDifference, Method, Severity
from pytest_nvfp4.layout.coordinates import add_vectors, as_tree, tree_vector
from pytest_nvfp4.layout.difference import known_size
from pytest_nvfp4.layout.errors import LayoutError, PoisonedLayout
from pytest_nvfp4.layout.irtypes import TypeInfo, dtype_bits
from pytest_nvfp4.layout.listing import Record
from pytest_nvfp4.layout.measures import measure_deltas
from pytest_nvfp4.layout.notation import AnyLayout, ComposedLayout, Layout, Swizzle
from pytest_nvfp4.layout.properties import property_deltas
from pytest_nvfp4.layout.sameness import SamenessLevel, compare, first_difference
from pytest_nvfp4.layout.tree import Tree, render_tree


class Grade:
    """Grade of a pair of types, independent of their names."""

    __slots__ = ("deltas", "error", "first", "method", "reasons", "severity", "unproven")

    def __init__(self, old: Record, new: Record) -> None:
        self.severity = Severity.DIFFERENT
        self.method: Method = "text"
        self.unproven = False
        self.error: str | None = None
        self.first: FirstDifference | None = None
        self.deltas: tuple[Delta, ...] = ()
        self.reasons: tuple[str, ...] = ()
        after, before = unreadable(new), unreadable(old)
        if isinstance(after, PoisonedLayout):
            self.error = str(after)
        elif after is not None:
            self._unprovable(f"the new type could not be read, so nothing is proved: {after}")
        elif isinstance(before, PoisonedLayout):
            self._unprovable("the old layout was poisoned ('x'), so there was no function to compare with")
        elif before is not None:
            self._unprovable(f"the old type could not be read, so nothing is proved: {before}")
        else:
            self._compared(old.info, new.info)

    def _unprovable(self, reason: str) -> None:
        self.method, self.unproven, self.reasons = "not provable", True, (reason,)

    def _compared(self, old: TypeInfo, new: TypeInfo) -> None:
        function = _function(old, new)
        swizzle = _swizzle_delta(old, new, function.severity)
        properties = [*([swizzle] if swizzle else []), *property_deltas(old, new)]
        properties.sort(key=lambda delta: -delta.severity)
        self.severity = max(Severity.COSMETIC, function.severity, *(delta.severity for delta in properties))
        self.method, self.unproven = function.method, function.unproven
        moved = function.severity > Severity.COSMETIC
        self.deltas = (*properties, *(measure_deltas(old, new) if moved or properties else ()))
        if moved:
            self.first = _first(old, new)
        self.reasons = (function.reason,) if function.reason else ()
        if self.first is not None and function.severity is Severity.DIFFERENT:
            self.reasons = (_another(self.first),)
        if self.severity is Severity.COSMETIC and not self.reasons and not properties:
            self.reasons = ("the types are equal; one DSL version prints a default that the other does not",)


@dataclass(frozen=True, slots=True)
class _Function:
    """Grade of the layout function alone."""

    severity: Severity
    method: Method = "text"
    unproven: bool = False
    reason: str = ""


_LEVELS: dict[SamenessLevel, Severity] = {
    level: Severity.parse(level) for level in SamenessLevel if level is not SamenessLevel.UNKNOWN
}


def _function(old: TypeInfo, new: TypeInfo) -> _Function:
    if old.layout is None or new.layout is None:
        if old.layout is new.layout:
            return _Function(Severity.IDENTICAL)
        gone = "no longer has a layout" if new.layout is None else "had no layout before"
        return _Function(Severity.DIFFERENT, reason=f"the object {gone}")
    same_unit = old.pointer_swizzle is None or old.dtype == new.dtype
    if old.pointer_swizzle == new.pointer_swizzle and same_unit:
        if old.layout == new.layout:
            return _Function(Severity.IDENTICAL)
        if old.layout.shape == new.layout.shape and _erased(old.layout) == _erased(new.layout):
            return _Function(Severity.COSMETIC, "canonical", reason="only strides of modes of size 1 changed")
    sizes = known_size(old.layout), known_size(new.layout)
    if None not in sizes and sizes[0] != sizes[1]:
        # Every level milder than DIFFERENT requires equal sizes.
        return _Function(Severity.DIFFERENT, "canonical", reason=f"{sizes[0]} indices became {sizes[1]}")
    try:
        sameness = compare(old, new)
    except LayoutError as error:
        return _Function(Severity.DIFFERENT, "not provable", unproven=True, reason=f"not provable: {error}")
    if sameness.level not in _LEVELS:
        matched = sameness.if_symbols_match
        hint = "" if matched is None else f" (it would then be {_LEVELS[matched].label})"
        reason = f"not provable: {sameness.detail}{hint}"
        return _Function(Severity.DIFFERENT, "not provable", unproven=True, reason=reason)
    severity = _LEVELS[sameness.level]
    return _Function(severity, sameness.method, reason="" if severity is Severity.IDENTICAL else sameness.detail)


def _swizzle_delta(old: TypeInfo, new: TypeInfo, function: Severity) -> Delta | None:
    """Return the change of the swizzle, graded by its effect on the function of this domain."""
    before, after = (None if info.swizzle is None else str(info.swizzle) for info in (old, new))
    if before == after:
        return None
    if function < Severity.PERMUTED:
        note = "the same addresses on this domain (proved), but another descriptor of the buffer"
        return Delta("swizzle", before, after, "", Severity.SAME_FUNCTION, note)
    return Delta("swizzle", before, after, "", Severity.DIFFERENT, "other addresses, so other bank conflicts")


def _another(first: FirstDifference) -> str:
    if first.old is None:
        return "the new layout has more indices; both are the same function up to the end of the old one"
    if first.new is None:
        return "the new layout has fewer indices; both are the same function up to its end"
    return "another layout function"


def _first(old: TypeInfo, new: TypeInfo) -> FirstDifference | None:
    try:
        under = _under_one_swizzle(old, new)
        found = first_difference(old, new) if under is None else first_difference(*under)
        if found is None:
            return None
        before, after = found.offset_a, found.offset_b
        if under is not None:
            before, after = _finished(old, before), _finished(new, after)
    except LayoutError:
        return None
    return FirstDifference(found.index, render_tree(found.coord), _text(before), _text(after))


def _under_one_swizzle(old: TypeInfo, new: TypeInfo) -> tuple[AnyLayout, AnyLayout] | None:
    """Return the layouts under a shared bijection: a swizzle, a coordinate offset, or the identity.

    A bijection preserves the first differing index, which the coalesced forms give without enumeration.
    """
    before, after = old.layout, new.layout
    if old.pointer_swizzle != new.pointer_swizzle or (old.pointer_swizzle and old.dtype != new.dtype):
        return None
    if isinstance(before, Layout) and isinstance(after, Layout):
        return before, after
    if isinstance(before, ComposedLayout) and isinstance(after, ComposedLayout) and old.pointer_swizzle is None:
        bijective = before.inner is None or isinstance(before.inner, Swizzle)
        if bijective and (before.inner, before.offset) == (after.inner, after.offset):
            return before.outer, after.outer
    return None


def _finished(info: TypeInfo, offset: Tree | None) -> Tree | None:
    """Return the offset of a type's outer layout after the type's coordinate offset or swizzle."""
    if offset is None:
        return None
    layout, swizzle, bits = info.layout, info.pointer_swizzle, dtype_bits(info.dtype)
    if isinstance(layout, ComposedLayout):
        offset = as_tree(add_vectors(tree_vector(layout.offset), tree_vector(offset)))
        swizzle, bits = (layout.inner, 8) if isinstance(layout.inner, Swizzle) else (None, None)
    if swizzle is None:
        return offset
    if not isinstance(offset, int) or not bits:
        raise LayoutError(f"{info}: a swizzle needs integer offsets and elements of known width")
    address, rest = divmod(offset * bits, 8)
    return (swizzle(address) * 8 + rest) // bits


def _text(tree: Tree | None) -> str | None:
    return None if tree is None else render_tree(tree)


@lru_cache(maxsize=16384)
def _erased(layout: AnyLayout) -> AnyLayout:
    """Return the layout with stride 0 in every mode of size 1, equal for cosmetic variants."""
    if isinstance(layout, ComposedLayout):
        return ComposedLayout(layout.inner, layout.offset, _erased(layout.outer))
    return Layout(layout.shape, _erase(layout.shape, layout.stride))


def _erase(shape: Tree, stride: Tree) -> Tree:
    if isinstance(shape, tuple) and isinstance(stride, tuple):
        return tuple(map(_erase, shape, stride))
    return 0 if shape == 1 else stride


def unreadable(record: Record) -> LayoutError | None:
    """Return the error of an unreadable type: poisoned, or not in the grammar."""
    try:
        _ = record.info
    except LayoutError as error:
        return error
    return None
