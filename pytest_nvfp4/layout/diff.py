"""The diff of two listings by meaning: what changed, whether it matters, and where it shows first.

How a change is graded (the worst of all lines that apply):

==============  =======================================================================================
severity        what is graded so
==============  =======================================================================================
IDENTICAL       the same text
COSMETIC        the stride of a mode of size 1; a default that only one DSL version prints (an MMA's
                ``permutation_MNK`` of nothing); a gained alignment; a new name that holds the same type
                (renamed); an added layout, with which nothing can be compared
RENESTED        each top-level mode is the same function; modes inside are grouped otherwise
SAME_FUNCTION   the same 1-D function with other top-level modes; another swizzle that gives the same
                function on this domain
PERMUTED        the same modes in another order
DIFFERENT       another function; a swizzle, space, element type, kind of object or instruction argument
                changed; an alignment lost; a layout removed (it is no longer watched); a function that
                cannot be proved the same (flag ``unproven``); a poisoned layout ``x`` (a hard error, even
                when it was poisoned before)
==============  =======================================================================================

TMEM columns, shared-memory bytes, bank conflicts and vector width follow from the function, and so inform without
adding to the severity. A run-time ``?`` has an identity inside one capture only: equal texts are taken as equal,
and anything else with a ``?`` is "not provable".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from typing import TypeAlias

from pytest_nvfp4.layout.change import (
    Change,
    Delta,
    FirstDifference,
    HeaderChange,
    ListingDiff,
    Method,
    ModeChange,
    Severity,
    gates,
    worst_first,
)
from pytest_nvfp4.layout.coordinates import add_vectors, as_tree, tree_vector
from pytest_nvfp4.layout.errors import LayoutError, PoisonedLayout
from pytest_nvfp4.layout.grammar import TypeInfo, dtype_bits
from pytest_nvfp4.layout.launch_facts import FactChange, diff_facts
from pytest_nvfp4.layout.listing import Listing, Record
from pytest_nvfp4.layout.measures import measure_deltas
from pytest_nvfp4.layout.mode_changes import changed_modes
from pytest_nvfp4.layout.notation import AnyLayout, ComposedLayout, Layout, Swizzle
from pytest_nvfp4.layout.pairing import Pairs, match_renames, pair
from pytest_nvfp4.layout.properties import property_deltas
from pytest_nvfp4.layout.roles import roles_of
from pytest_nvfp4.layout.sameness import Level, compare, first_difference
from pytest_nvfp4.layout.tree import Tree, leaves, render_tree

__all__ = [
    "Change",
    "Delta",
    "FactChange",
    "FirstDifference",
    "HeaderChange",
    "ListingDiff",
    "ModeChange",
    "Severity",
    "diff_facts",
    "diff_listings",
    "gates",
]

_POISON = re.compile(r"\bx\b")
Shield: TypeAlias = Callable[[str], bool]


def diff_listings(old: Listing, new: Listing, *, protected: Collection[str] = (), renames: bool = True) -> ListingDiff:
    """Compare two listings by meaning.

    Args:
        old: what the layouts were.
        new: what they are.
        protected: names of layouts that must never change unnoticed, as in the listing or as ``fnmatch`` patterns;
            one without a dot names the variable in every scope, and ``#2`` of a reassigned variable is covered.
            Where the two were made by different versions of the DSL, a cosmetic change of a protected layout counts
            like any other: another version writes the same layout in another way.
        renames: pair a removed with an added layout of the same scope and the same type text, where there is
            exactly one of each, instead of reporting both.
    """
    shield = _shield(protected)
    pairs, removed, added = pair(old, new)
    renamed: Pairs = []
    if renames:
        renamed, removed, added = match_renames(removed, added)
    identical = 0
    changes: list[Change] = []
    grades: dict[tuple[str, str], _Grade] = {}
    for left, right in pairs:
        if left.raw == right.raw and not _is_poisoned(right):
            identical += 1
            continue
        changes.append(_changed(left, right, grades, shield))
    changes += [_renaming(left, right, shield) for left, right in renamed]
    changes += [_removal(record, shield) for record in removed]
    changes += [_addition(record, shield) for record in added]
    dsl, header = _headers(old, new)
    if dsl is not None:
        changes = [
            replace(change, protected=False) if change.protected and change.severity <= Severity.COSMETIC else change
            for change in changes
        ]
    return ListingDiff(worst_first(changes), identical, dsl, header)


class _Grade:
    """What two types are to each other, whatever their name. Made once for a pair of texts, since types repeat."""

    __slots__ = ("deltas", "error", "first", "method", "reasons", "severity", "unproven")

    def __init__(self, old: Record, new: Record) -> None:
        self.severity = Severity.DIFFERENT
        self.method: Method = "text"
        self.unproven = False
        self.error: str | None = None
        self.first: FirstDifference | None = None
        self.deltas: tuple[Delta, ...] = ()
        self.reasons: tuple[str, ...] = ()
        after, before = _unreadable(new), _unreadable(old)
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
            self.reasons = ("the types say the same; one DSL version prints a default that the other does not",)


@dataclass(frozen=True, slots=True)
class _Function:
    """The grade of the layout function alone."""

    severity: Severity
    method: Method = "text"
    unproven: bool = False
    reason: str = ""


_LEVELS = {
    Level.IDENTICAL: Severity.IDENTICAL,
    Level.RENESTED: Severity.RENESTED,
    Level.SAME_FUNCTION: Severity.SAME_FUNCTION,
    Level.PERMUTED: Severity.PERMUTED,
    Level.DIFFERENT: Severity.DIFFERENT,
}


def _function(old: TypeInfo, new: TypeInfo) -> _Function:
    if old.layout is None or new.layout is None:
        if old.layout is new.layout:
            return _Function(Severity.IDENTICAL)
        gone = "has no layout any more" if new.layout is None else "had no layout before"
        return _Function(Severity.DIFFERENT, reason=f"the object {gone}")
    same_unit = old.pointer_swizzle is None or old.dtype == new.dtype
    if old.pointer_swizzle == new.pointer_swizzle and same_unit:
        if old.layout == new.layout:
            return _Function(Severity.IDENTICAL)
        if old.layout.shape == new.layout.shape and _erased(old.layout) == _erased(new.layout):
            return _Function(Severity.COSMETIC, "canonical", reason="only strides of modes of size 1 changed")
    sizes = _size(old.layout), _size(new.layout)
    if None not in sizes and sizes[0] != sizes[1]:
        # No level below DIFFERENT allows it, so nothing more needs comparing.
        return _Function(Severity.DIFFERENT, "canonical", reason=f"{sizes[0]} indices became {sizes[1]}")
    try:
        found = compare(old, new)
    except LayoutError as error:
        return _Function(Severity.DIFFERENT, "not provable", unproven=True, reason=f"not provable: {error}")
    if found.level not in _LEVELS:
        hint = "" if found.if_symbols_match is None else f" (it would then be {_LEVELS[found.if_symbols_match].label})"
        reason = f"not provable: {found.detail}{hint}"
        return _Function(Severity.DIFFERENT, "not provable", unproven=True, reason=reason)
    severity = _LEVELS[found.level]
    return _Function(severity, found.method, reason="" if severity is Severity.IDENTICAL else found.detail)


def _size(layout: AnyLayout) -> int | None:
    """The number of indices, or ``None`` when it is known only at run time."""
    sizes = [leaf for leaf in leaves(layout.shape) if isinstance(leaf, int)]
    return math.prod(sizes) if len(sizes) == len(leaves(layout.shape)) else None


def _swizzle_delta(old: TypeInfo, new: TypeInfo, function: Severity) -> Delta | None:
    """The change of the swizzle, worth what it does to the function of this domain."""
    before, after = (None if info.swizzle is None else str(info.swizzle) for info in (old, new))
    if before == after:
        return None
    if function < Severity.PERMUTED:
        note = "the same addresses on this domain (proved), but another descriptor of the buffer"
        return Delta("swizzle", before, after, "", Severity.SAME_FUNCTION, note)
    return Delta("swizzle", before, after, "", Severity.DIFFERENT, "other addresses, so other bank conflicts")


def _another(first: FirstDifference) -> str:
    if first.old is None:
        return "the new layout has more indices; up to where the old one ends, both are the same function"
    if first.new is None:
        return "the new layout has fewer indices; up to where it ends, both are the same function"
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
    """The layouts under what both share, if that is a bijection: a swizzle, a coordinate offset, or nothing.

    They differ first at the same index as the whole, which their coalesced forms show without looking at every index.
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
    """The offset of a type's outer layout taken through the type's coordinate offset or swizzle."""
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
    """The layout with stride 0 in every mode of size 1: what two cosmetic variants have in common, ``?`` or not."""
    if isinstance(layout, ComposedLayout):
        return ComposedLayout(layout.inner, layout.offset, _erased(layout.outer))
    return Layout(layout.shape, _erase(layout.shape, layout.stride))


def _erase(shape: Tree, stride: Tree) -> Tree:
    if isinstance(shape, tuple) and isinstance(stride, tuple):
        return tuple(map(_erase, shape, stride))
    return 0 if shape == 1 else stride


def _is_poisoned(record: Record) -> bool:
    """Whether the type holds an ``x``. Most texts have no such word, and then need no parsing to tell."""
    return _POISON.search(record.raw) is not None and isinstance(_unreadable(record), PoisonedLayout)


def _unreadable(record: Record) -> LayoutError | None:
    """The error of a type that cannot be read: poisoned, or not in the grammar."""
    try:
        _ = record.info
    except LayoutError as error:
        return error
    return None


def _changed(old: Record, new: Record, grades: dict[tuple[str, str], _Grade], shield: Shield) -> Change:
    key = (old.raw, new.raw)
    grade = grades.get(key)
    if grade is None:
        grade = _Grade(old, new)
        if _unreadable(new) is None and _unreadable(old) is None:
            grades[key] = grade  # the error of an unreadable type names its layout, and so is not shared
    modes, roles, source = _mode_changes(old, new, grade)
    return Change(
        name=new.name,
        kind="changed",
        old=old,
        new=new,
        severity=grade.severity,
        method=grade.method,
        unproven=grade.unproven,
        error=grade.error,
        reasons=grade.reasons,
        modes=modes,
        roles=roles,
        role_source=source,
        first=grade.first,
        deltas=grade.deltas,
        protected=shield(new.name) or shield(old.name),
    )


def _mode_changes(old: Record, new: Record, grade: _Grade) -> tuple[tuple[ModeChange, ...], tuple[str, ...], str]:
    """The modes that changed, with the roles of all modes; nothing when a type cannot be read or has no layout."""
    if grade.error is not None or _unreadable(old) is not None or _unreadable(new) is not None:
        return (), (), ""
    before, after = old.info, new.info
    if before.layout is None or after.layout is None:
        return (), (), ""
    old_roles, new_roles = roles_of(old.name, before), roles_of(new.name, after)
    modes = changed_modes(before.layout, after.layout, old_roles=old_roles, new_roles=new_roles)
    roles = new_roles or old_roles
    return modes, () if roles is None else roles.modes, "" if roles is None else roles.source


def _renaming(old: Record, new: Record, shield: Shield) -> Change:
    return Change(
        name=new.name,
        kind="renamed",
        old=old,
        new=new,
        severity=Severity.COSMETIC,
        reasons=(f"the same type under another name; it was {old.name}",),
        protected=shield(new.name) or shield(old.name),
        old_name=old.name,
    )


def _removal(record: Record, shield: Shield) -> Change:
    return Change(
        name=record.name,
        kind="removed",
        old=record,
        new=None,
        severity=Severity.DIFFERENT,
        reasons=("the layout is gone, so it is no longer watched; accept this if the kernel dropped it on purpose",),
        protected=shield(record.name),
    )


def _addition(record: Record, shield: Shield) -> Change:
    broken = _unreadable(record)
    poisoned = isinstance(broken, PoisonedLayout)
    if broken is None:
        reason = "a new layout; there is nothing to compare it with"
    else:
        reason = "" if poisoned else f"a new layout, whose type could not be read: {broken}"
    return Change(
        name=record.name,
        kind="added",
        old=None,
        new=record,
        severity=Severity.DIFFERENT if poisoned else Severity.COSMETIC,
        error=str(broken) if poisoned else None,
        reasons=(reason,) if reason else (),
        protected=shield(record.name),
    )


def _headers(old: Listing, new: Listing) -> tuple[HeaderChange | None, tuple[HeaderChange, ...]]:
    keys = dict.fromkeys((*old.header, *new.header))
    changes = [
        HeaderChange(key, old.header.get(key), new.header.get(key))
        for key in keys
        if old.header.get(key) != new.header.get(key)
    ]
    dsl = next((change for change in changes if change.key == "dsl"), None)
    return dsl, tuple(change for change in changes if change.key != "dsl")


def _shield(protected: Collection[str]) -> Shield:
    """Whether a name is protected: see `diff_listings`."""
    exact = frozenset(protected)

    @cache
    def shielded(name: str) -> bool:
        plain_name = name.partition("#")[0]
        variable = plain_name.rpartition(".")[2]
        if not exact or exact & {name, plain_name, variable}:
            return bool(exact)
        return any(fnmatchcase(plain_name if "." in pattern else variable, pattern) for pattern in exact)

    return shielded
