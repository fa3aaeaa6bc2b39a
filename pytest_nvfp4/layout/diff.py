"""Diff of two listings by meaning: changes, their severity, and the first difference.

Grades of a change (the worst of all lines that apply):

==============  =======================================================================================
severity        changes
==============  =======================================================================================
IDENTICAL       the same text
COSMETIC        the stride of a mode of size 1; a default that only one DSL version prints (an MMA's
                ``permutation_MNK`` of nothing); a gained alignment; a new name with the same type (renamed);
                an added layout, which has no counterpart
RENESTED        each top-level mode is the same function; nested modes are grouped differently
SAME_FUNCTION   the same 1-D function with other top-level modes; another swizzle that is the same
                function on this domain
PERMUTED        the same modes in another order
DIFFERENT       another function; a swizzle, space, element type, kind of object or instruction argument
                changed; an alignment lost; a layout removed (it is no longer watched); a function that
                cannot be proved the same (flag ``unproven``); a poisoned layout ``x`` (a hard error, even
                when it was poisoned before)
==============  =======================================================================================

TMEM columns, shared-memory bytes, bank conflicts and vector width follow from the function, so they inform without
adding to the severity. A run-time ``?`` has an identity only inside one capture: equal texts count as equal, and any
other comparison with a ``?`` is "not provable".
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
    HeaderChange,
    ListingDiff,
    ModeChange,
    Severity,
    worst_first,
)
from pytest_nvfp4.layout.errors import PoisonedLayout
from pytest_nvfp4.layout.grade import Grade, unreadable
from pytest_nvfp4.layout.listing import Listing, Record
from pytest_nvfp4.layout.mode_changes import changed_modes
from pytest_nvfp4.layout.pairing import GUESS, PAIRED_BY, pair, pair_loosely, renamed
from pytest_nvfp4.layout.roles import roles_of

_POISON = re.compile(r"\bx\b")
Shield: TypeAlias = Callable[[str], bool]


def diff_listings(
    old: Listing, new: Listing, *, protected: Collection[str] = (), renames: bool = True, other_kernel: bool = False
) -> ListingDiff:
    """Compare two listings by meaning.

    Args:
        old: the layouts before.
        new: the layouts after.
        protected: names of layouts protected against unnoticed changes, as in the listing or as ``fnmatch`` patterns;
            a name without a dot matches the variable in every scope, ``#2`` of a reassigned variable included. If the
            DSL versions differ, a cosmetic change of a protected layout counts as unprotected, because another version
            may print the same layout differently.
        renames: whether to pair layouts of different names, see `pytest_nvfp4.layout.pairing`.
        other_kernel: whether the listings are of different kernels, so that layouts are also paired by what they are
            for. Such a change says how sure that is; one that is a guess is as grave as a removal.
    """
    shield = _shield(protected)
    pairs, removed, added = pair(old, new, renames=renames)
    identical = 0
    changes: list[Change] = []
    grades: dict[tuple[str, str], Grade] = {}
    for left, right in pairs:
        if left.raw != right.raw or _is_poisoned(right):
            changes.append(_changed(left, right, grades, shield))
        elif renamed(left, right):
            changes.append(_renaming(left, right, shield))
        else:
            identical += 1
    if other_kernel:
        loose, removed, added = pair_loosely(removed, added)
        for left, right, what in loose:
            same = left.raw == right.raw and not _is_poisoned(right)
            found = _renaming(left, right, shield) if same else _changed(left, right, grades, shield)
            changes.append(_unsure(found, left, what))
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
    """Return whether the type holds an ``x``; the regular expression avoids parsing most types."""
    return _POISON.search(record.raw) is not None and isinstance(unreadable(record), PoisonedLayout)


def _changed(old: Record, new: Record, grades: dict[tuple[str, str], Grade], shield: Shield) -> Change:
    key = (old.raw, new.raw)
    grade = grades.get(key)
    if grade is None:
        grade = Grade(old, new)
        if unreadable(new) is None and unreadable(old) is None:
            grades[key] = grade  # the error of an unreadable type names its layout, so it is not shared
    modes, roles, source = _mode_changes(old, new, grade)
    return Change(
        new.name,
        "changed",
        old,
        new,
        grade.severity,
        grade.method,
        grade.unproven,
        grade.error,
        (*grade.reasons, *((f"it was {old.name}",) if renamed(old, new) else ())),
        modes,
        roles,
        source,
        grade.first,
        grade.deltas,
        shield(new.name) or shield(old.name),
        old.name if renamed(old, new) else None,
    )


def _mode_changes(old: Record, new: Record, grade: Grade) -> tuple[tuple[ModeChange, ...], tuple[str, ...], str]:
    """Return the changed modes, the roles of all modes and their source; empty if a type is unreadable or opaque."""
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
    protected = shield(new.name) or shield(old.name)
    reasons = [f"{old.name} is renamed to {new.name}, with the same type"]
    if shield(old.name) and not shield(new.name):
        reasons.append("the settings protect only the old name: change it in `protected`")
    return Change(
        new.name, "renamed", old, new, Severity.COSMETIC, reasons=tuple(reasons), protected=protected, old_name=old.name
    )


def _unsure(change: Change, old: Record, what: str) -> Change:
    """Return a change of layouts that are paired by what they have in common, with how sure that is."""
    sure = PAIRED_BY[what]
    severity = max(change.severity, Severity.DIFFERENT) if sure is GUESS else change.severity
    reason = f"taken for {old.name} of the other kernel by {what}: {sure}"
    return replace(change, severity=severity, sure=sure, reasons=(reason, *change.reasons))


def _removal(record: Record, shield: Shield) -> Change:
    reason = "the layout was removed, so it is no longer checked; accept this if the kernel dropped it on purpose"
    protected = shield(record.name)
    return Change(record.name, "removed", record, None, Severity.DIFFERENT, reasons=(reason,), protected=protected)


def _addition(record: Record, shield: Shield) -> Change:
    broken = unreadable(record)
    poisoned = isinstance(broken, PoisonedLayout)
    if broken is None:
        reason = "a new layout without a counterpart to compare"
    else:
        reason = "" if poisoned else f"a new layout with an unreadable type: {broken}"
    return Change(
        record.name,
        "added",
        None,
        record,
        Severity.DIFFERENT if poisoned else Severity.COSMETIC,
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
    """Return the predicate of protected names; see `diff_listings`."""
    exact = frozenset(protected)

    @cache
    def shielded(name: str) -> bool:
        plain_name = name.partition("#")[0]
        variable = plain_name.rpartition(".")[2]
        if not exact or exact & {name, plain_name, variable}:
            return bool(exact)
        return any(fnmatchcase(plain_name if "." in pattern else variable, pattern) for pattern in exact)

    return shielded
