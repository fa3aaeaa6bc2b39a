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

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from typing import TypeAlias

from pytest_nvfp4.layout.change import (
    Change,
    Delta,
    FirstDifference,
    HeaderChange,
    ListingDiff,
    ModeChange,
    Severity,
    gates,
    worst_first,
)
from pytest_nvfp4.layout.errors import PoisonedLayout
from pytest_nvfp4.layout.grade import Grade, unreadable
from pytest_nvfp4.layout.launch_facts import FactChange, diff_facts
from pytest_nvfp4.layout.listing import Listing, Record
from pytest_nvfp4.layout.mode_changes import changed_modes
from pytest_nvfp4.layout.pairing import Pairs, match_renames, pair
from pytest_nvfp4.layout.roles import roles_of

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
    grades: dict[tuple[str, str], Grade] = {}
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


def _is_poisoned(record: Record) -> bool:
    """Whether the type holds an ``x``. Most texts have no such word, and then need no parsing to tell."""
    return _POISON.search(record.raw) is not None and isinstance(unreadable(record), PoisonedLayout)


def _changed(old: Record, new: Record, grades: dict[tuple[str, str], Grade], shield: Shield) -> Change:
    key = (old.raw, new.raw)
    grade = grades.get(key)
    if grade is None:
        grade = Grade(old, new)
        if unreadable(new) is None and unreadable(old) is None:
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


def _mode_changes(old: Record, new: Record, grade: Grade) -> tuple[tuple[ModeChange, ...], tuple[str, ...], str]:
    """The modes that changed, with the roles of all modes; nothing when a type cannot be read or has no layout."""
    if grade.error is not None or unreadable(old) is not None or unreadable(new) is not None:
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
    broken = unreadable(record)
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
