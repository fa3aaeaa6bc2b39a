"""Pairing of the records of an old listing with those of a new one, also where functions or variables have new names.

A snapshot has no order of creation: it is sorted by name, so that an inserted layout is one added line. Records are
therefore paired in these steps, each of which takes what the steps before it left:

1. a function that only the old listing has, with the most similar one that only the new listing has (`_scope_names`);
2. in a function, equal names; the types of a reassigned variable as a sequence;
3. in a function, equal types: a new name;
4. in different functions, equal variables with equal types: moved code;
5. in a function, the only two layouts of one space, element type and shape: a new name and another layout.

Of two different kernels, more records are paired, each with a word for how sure that is (`PAIRED_BY`): in any function,
the only two layouts of one

6. role, space, element type and shape;
7. role, space and element type;
8. space, element type and shape, if no role is known.

Steps 3 and 4 pair several candidates by the similarity of their names, then in their order. Which of several equal
types is paired with which changes no verdict.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import TypeAlias, TypeVar

from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.listing import Listing, Record
from pytest_nvfp4.layout.roles import roles_of
from pytest_nvfp4.layout.tree import render_tree

Pairs: TypeAlias = list[tuple[Record, Record]]
_T = TypeVar("_T")
_SAME_SCOPE = 0.5
"""Least similarity of a function and its new name, see `_alike`."""


LIKELY, GUESS = "likely", "a guess"
PAIRED_BY: dict[str, str] = {
    "role, space, element type and shape": LIKELY,
    "role, space and element type": GUESS,
    "space, element type and shape": GUESS,
}
"""What two layouts of different kernels have in common -> how sure it is that they are for the same thing."""


def pair_loosely(
    removed: Sequence[Record], added: Sequence[Record]
) -> tuple[list[tuple[Record, Record, str]], list[Record], list[Record]]:
    """Return further pairs of records of different kernels, each with the key of `PAIRED_BY`, and what is left.

    Args:
        removed: The records that `pair` left of the old kernel.
        added: Those of the new kernel.
    """
    found: list[tuple[Record, Record, str]] = []
    for what, key in zip(PAIRED_BY, (_like_with_shape, _like, _object_anywhere), strict=True):
        pairs = list(_matches(removed, added, key, key, only=True))
        found += [(old, new, what) for old, new in pairs]
        gone, come = {old.name for old, _ in pairs}, {new.name for _, new in pairs}
        removed = [record for record in removed if record.name not in gone]
        added = [record for record in added if record.name not in come]
    return found, list(removed), list(added)


def pair(old: Listing, new: Listing, *, renames: bool = True) -> tuple[Pairs, list[Record], list[Record]]:
    """Return the pairs of records, and the records of only the old and of only the new listing.

    Args:
        old: The layouts before.
        new: The layouts after.
        renames: Whether records of different names are paired.
    """
    scopes = _scope_names(old, new) if renames else {}
    pairs, removed, added = _by_name(old, new, scopes)
    if not renames:
        return pairs, removed, added

    def old_scope(record: Record) -> str:
        return scopes.get(_scope(record), _scope(record))

    def take(old_key: Callable[[Record], Hashable], new_key: Callable[[Record], Hashable], *, only: bool) -> None:
        nonlocal removed, added
        found = list(_matches(removed, added, old_key, new_key, only=only))
        gone, come = {left.name for left, _ in found}, {right.name for _, right in found}
        pairs.extend(found)
        removed = [record for record in removed if record.name not in gone]
        added = [record for record in added if record.name not in come]

    take(lambda record: (old_scope(record), record.raw), lambda record: (_scope(record), record.raw), only=False)
    take(lambda record: (_variable(record), record.raw), lambda record: (_variable(record), record.raw), only=False)
    take(lambda record: _object(record, old_scope(record)), lambda record: _object(record, _scope(record)), only=True)
    return pairs, removed, added


def renamed(old: Record, new: Record) -> bool:
    """Return whether two paired records are of different variables; ``x#2`` is the variable ``x``."""
    return old.name.partition("#")[0] != new.name.partition("#")[0]


def _scope(record: Record) -> str:
    return record.name.rpartition(".")[0]


def _variable(record: Record) -> str:
    return record.name.rpartition(".")[2].partition("#")[0]


def _scope_names(old: Listing, new: Listing) -> dict[str, str]:
    """Return the new name of each function that has one."""
    before, after = _by_scope(old), _by_scope(new)
    gone = [scope for scope in before if scope not in after]
    come = [scope for scope in after if scope not in before]
    likeness = {(a, b): _alike(before[a], after[b]) for a in gone for b in come}
    candidates = [(a, b) for a, b in likeness if likeness[a, b] >= _SAME_SCOPE]
    return dict(_assigned(candidates, lambda a, b: (likeness[a, b], _similarity(a, b))))


def _alike(old: Sequence[Record], new: Sequence[Record]) -> float:
    """Return the similarity of two functions, 0 to 1: the share of types, and of variables with their types."""
    types = Counter(record.raw for record in old) & Counter(record.raw for record in new)
    variables = Counter((_variable(record), record.raw) for record in old) & Counter(
        (_variable(record), record.raw) for record in new
    )
    return (types.total() + variables.total()) / (len(old) + len(new))


def _by_name(old: Listing, new: Listing, scopes: dict[str, str]) -> tuple[Pairs, list[Record], list[Record]]:
    """Pair the records of equal names; ``scopes`` has the new names of functions.

    A variable with several types is ``x``, ``x#2``, ... in the order of appearance. An inserted assignment shifts these
    numbers, so such types are aligned as sequences: equal types pair whatever their number.
    """
    pairs: Pairs = []
    removed: list[Record] = []
    added: list[Record] = []
    before: dict[tuple[str, str], list[Record]] = defaultdict(list)
    after: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in old.records:
        before[scopes.get(_scope(record), _scope(record)), _variable(record)].append(record)
    for record in new.records:
        after[_scope(record), _variable(record)].append(record)
    for variable in dict.fromkeys((*before, *after)):
        left, right = before.get(variable, []), after.get(variable, [])
        if len(left) == len(right) == 1:
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


def _by_scope(listing: Listing) -> dict[str, list[Record]]:
    records: dict[str, list[Record]] = defaultdict(list)
    for record in listing.records:
        records[_scope(record)].append(record)
    return records


def _matches(
    removed: Sequence[Record],
    added: Sequence[Record],
    old_key: Callable[[Record], Hashable],
    new_key: Callable[[Record], Hashable],
    *,
    only: bool,
) -> Iterator[tuple[Record, Record]]:
    """Yield pairs of removed and added records with equal keys; with ``only``, if there is one candidate on each side.

    Records whose key is None are not paired.
    """
    gone: dict[Hashable, list[Record]] = defaultdict(list)
    come: dict[Hashable, list[Record]] = defaultdict(list)
    for record in removed:
        gone[old_key(record)].append(record)
    for record in added:
        come[new_key(record)].append(record)
    for key in gone.keys() & come.keys() - {None}:
        left, right = gone[key], come[key]
        if len(left) == len(right) == 1:
            yield left[0], right[0]
        elif not only:
            names = {record.name: record for record in (*left, *right)}
            candidates = [(a.name, b.name) for a in left for b in right]
            for a, b in _assigned(candidates, lambda a, b: (_similarity(a, b),)):
                yield names[a], names[b]


def _assigned(candidates: Sequence[tuple[str, str]], score: Callable[[str, str], _T]) -> Iterator[tuple[str, str]]:
    """Yield candidates from the highest score down, each name once; of equal scores, the first candidate."""
    taken: tuple[set[str], set[str]] = set(), set()
    for a, b in sorted(candidates, key=lambda names: score(*names), reverse=True):  # type: ignore[arg-type, return-value]
        if a not in taken[0] and b not in taken[1]:
            taken[0].add(a)
            taken[1].add(b)
            yield a, b


def _similarity(a: str, b: str) -> float:
    return SequenceMatcher(None, a, b, autojunk=False).ratio()


def _object(record: Record, scope: str) -> Hashable | None:
    """Return the function, space, element type and shape of a layout or tensor; None for any other record."""
    try:
        info = record.info
    except LayoutError:
        return None
    if info.layout is None:
        return None
    return scope, info.space, info.dtype, render_tree(info.layout.shape)


def _object_anywhere(record: Record) -> Hashable | None:
    """Return space, element type and shape of a layout or tensor without a known role."""
    return _object(record, "") if _role(record) is None else None


def _like(record: Record) -> Hashable | None:
    """Return role, space and element type; None without a role."""
    role = _role(record)
    return None if role is None else (role, record.info.space, record.info.dtype)


def _like_with_shape(record: Record) -> Hashable | None:
    role = _role(record)
    return None if role is None else (role, _object(record, ""))


def _role(record: Record) -> Hashable | None:
    """Return what a layout is for: the roles of its modes and their source; None if it is not known."""
    try:
        roles = roles_of(record.name, record.info)
    except LayoutError:
        return None
    return None if roles is None else (roles.modes, roles.source)
