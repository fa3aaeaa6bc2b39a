"""Which record of an old listing stands against which of a new one."""

from __future__ import annotations

from collections import defaultdict
from difflib import SequenceMatcher
from typing import TypeAlias

from pytest_nvfp4.layout.listing import Listing, Record

Pairs: TypeAlias = list[tuple[Record, Record]]


def pair(old: Listing, new: Listing) -> tuple[Pairs, list[Record], list[Record]]:
    """Records of one name as pairs, and those that only the old or only the new listing has.

    A variable that takes several types is ``x``, ``x#2``, ... in the order of appearance. These numbers move when an
    assignment is inserted, so such types are aligned as sequences: equal ones pair whatever their number.
    """
    pairs: Pairs = []
    removed: list[Record] = []
    added: list[Record] = []
    before, after = _by_variable(old), _by_variable(new)
    for variable in dict.fromkeys((*before, *after)):
        left, right = before.get(variable, []), after.get(variable, [])
        if len(left) == len(right) == 1 and left[0].name == right[0].name:
            pairs.append((left[0], right[0]))
            continue
        matcher = SequenceMatcher(
            None, [record.raw for record in left], [record.raw for record in right], autojunk=False
        )
        for _, i0, i1, j0, j1 in matcher.get_opcodes():
            common = min(i1 - i0, j1 - j0)
            pairs += zip(left[i0 : i0 + common], right[j0 : j0 + common], strict=True)
            removed += left[i0 + common : i1]
            added += right[j0 + common : j1]
    return pairs, removed, added


def _by_variable(listing: Listing) -> dict[str, list[Record]]:
    """The records of each variable, in the listing's order, which is that of their numbers."""
    found: dict[str, list[Record]] = {}
    for record in listing.records:
        found.setdefault(record.name.partition("#")[0], []).append(record)
    return found


def match_renames(removed: list[Record], added: list[Record]) -> tuple[Pairs, list[Record], list[Record]]:
    """Removed and added records that are one layout under a new name, and what is left of both.

    They are one if they have the same scope and the same type text, and no other removed or added record of the scope
    has that text: with two of them nobody can say which became which.
    """
    gone, come = _by_type(removed), _by_type(added)
    pairs = [
        (records[0], come[key][0]) for key, records in gone.items() if len(records) == 1 and len(come.get(key, ())) == 1
    ]
    paired = {record.name for left, right in pairs for record in (left, right)}
    return (
        pairs,
        [record for record in removed if record.name not in paired],
        [record for record in added if record.name not in paired],
    )


def _by_type(records: list[Record]) -> dict[tuple[str, str], list[Record]]:
    found: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        found[record.name.rpartition(".")[0], record.raw].append(record)
    return found
