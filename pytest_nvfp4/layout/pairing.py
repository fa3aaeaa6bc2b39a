"""Pairing of the records of an old listing with those of a new one."""

from __future__ import annotations

from collections import defaultdict
from difflib import SequenceMatcher
from typing import TypeAlias

from pytest_nvfp4.layout.listing import Listing, Record

Pairs: TypeAlias = list[tuple[Record, Record]]


def pair(old: Listing, new: Listing) -> tuple[Pairs, list[Record], list[Record]]:
    """Return pairs of records of the same name, and the records of only the old or only the new listing.

    A variable with several types is ``x``, ``x#2``, ... in the order of appearance. An inserted assignment shifts these
    numbers, so such types are aligned as sequences: equal types pair whatever their number.
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
    """Return the records of each variable, in the listing's order, which is by number."""
    records: dict[str, list[Record]] = defaultdict(list)
    for record in listing.records:
        records[record.name.partition("#")[0]].append(record)
    return records


def match_renames(removed: list[Record], added: list[Record]) -> tuple[Pairs, list[Record], list[Record]]:
    """Return pairs of removed and added records that are renames, and the remaining removed and added records.

    A rename has the same scope and type text, and no other removed or added record of the scope has that text;
    otherwise the assignment would be ambiguous.
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
    by_type: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        by_type[record.name.rpartition(".")[0], record.raw].append(record)
    return by_type
