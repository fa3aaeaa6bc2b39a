"""Which CTA wrote which element of a watched output, and what that says after the launch.

``Region.watch(owner_bytes)`` starts it. Stores, bulk stores and TMA stores call ``note_write`` with the bytes they
wrote, as one contiguous run (``note_write``), as several rows (``note_rows``), or as scattered element offsets
(``note_scatter``); reductions call ``note_reduce``, which claims elements without making a conflict, because several
CTAs may add to one element. An element written again in one launch is a conflict, kept as runs of elements by (CTA
before, CTA now, instruction). A write that covers only a part of an element counts as a write of that element's
whole.

Everything is deterministic but for *which* of two CTAs came first, and the findings name both sorted. Processes that
each ran some of the CTAs merge with ``merge``: two owners
of one element become a conflict.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.finding import Finding

if TYPE_CHECKING:
    from pytest_nvfp4.sim.memory.globals import Region

__all__ = [
    "Conflict",
    "Coverage",
    "findings",
    "merge",
    "note_items",
    "note_reduce",
    "note_rows",
    "note_scatter",
    "note_write",
]

_RUNS = 64
"""Runs of elements that are kept for one pair of CTAs and one instruction; all are counted."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Elements [start, stop) that CTA ``before`` had written when CTA ``now`` wrote them, at instruction ``at``.

    ``at`` is -1 where two processes had one CTA each.
    """

    before: int
    now: int
    at: int
    start: int
    stop: int


@dataclass(slots=True)
class Coverage:
    """The conflicts of one region. ``counts`` holds all of them by (before, now, at), ``conflicts`` the first runs."""

    conflicts: list[Conflict] = field(default_factory=list)
    counts: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _kept: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def record(self, elements: NDArray[np.intp], before: NDArray[np.int32], now: int, at: int) -> None:
        """Note elements (ascending, or in the order of lanes) that ``before`` (as many CTAs) had written already."""
        for cta in np.unique(before):
            key = (int(cta), now, at)
            mine = np.sort(elements[before == cta])
            self.counts[key] = self.counts.get(key, 0) + mine.size
            kept = self._kept.get(key, 0)
            if kept < _RUNS:
                for start, stop in _runs(mine)[: _RUNS - kept]:
                    kept += 1
                    self.conflicts.append(Conflict(key[0], now, at, start, stop))
                self._kept[key] = kept


def _runs(elements: NDArray[np.intp]) -> list[tuple[int, int]]:
    """Ascending numbers as runs [start, stop); numbers that occur twice stay in one run."""
    if not elements.size:
        return []
    breaks = np.flatnonzero(np.diff(elements) > 1) + 1
    starts = elements[np.concatenate(([0], breaks))]
    stops = elements[np.concatenate((breaks - 1, [elements.size - 1]))] + 1
    return [(int(a), int(b)) for a, b in zip(starts, stops, strict=True)]


def note_write(region: Region, offset: int, size: int, cta: int, at: int) -> None:
    """A CTA wrote bytes [offset, offset + size) of a region. Does nothing if the region is not watched."""
    owner = region.owner
    if owner is None:
        return
    unit = region.owner_bytes
    start, stop = offset // unit, (offset + size - 1) // unit + 1
    part = owner[start:stop]
    if part.max(initial=-1) >= region.launch_base:
        _conflict(region, np.arange(start, stop), part, cta, at)
    part[:] = _owner(region, cta)


def note_rows(region: Region, offset: int, size: int, rows: int, pitch: int, cta: int, at: int) -> None:
    """A CTA wrote ``rows`` runs of ``size`` bytes, ``pitch`` bytes apart, the first at ``offset``."""
    owner = region.owner
    if owner is None or not rows:
        return
    unit = region.owner_bytes
    if pitch % unit or offset % unit or size % unit or pitch < size:
        for row in range(rows):
            note_write(region, offset + row * pitch, size, cta, at)
        return
    start, wide, step = offset // unit, size // unit, pitch // unit
    part = np.lib.stride_tricks.as_strided(owner[start:], (rows, wide), (step * 4, 4))
    if part.max() >= region.launch_base:
        elements = start + (np.arange(rows)[:, None] * step + np.arange(wide)).ravel()
        _conflict(region, elements, part.ravel(), cta, at)
    part[:] = _owner(region, cta)


def note_scatter(region: Region, offsets: NDArray[Any], size: int, cta: int, at: int) -> None:
    """A CTA wrote ``size`` bytes at each of several byte offsets.

    An offset that occurs twice (two lanes, one address) is one write here: the store itself reports lanes that differ.
    """
    owner = region.owner
    if owner is None:
        return
    unit = region.owner_bytes
    elements = _elements(offsets, size, unit)
    before = owner[elements]
    if before.max(initial=-1) >= region.launch_base:
        _conflict(region, elements, before, cta, at)
    owner[elements] = _owner(region, cta)


def note_items(region: Region, offset: int, index: NDArray[np.int64], items: int, size: int, cta: int, at: int) -> None:
    """A CTA wrote items of ``size`` bytes: those numbered ``index``, of ``items`` that start at ``offset``."""
    owner = region.owner
    if owner is None:
        return
    unit = region.owner_bytes
    if size % unit or offset % unit:
        note_scatter(region, offset + index * size, size, cta, at)
        return
    wide, start = size // unit, offset // unit
    rows: NDArray[np.int32] = np.ndarray((items, wide), np.int32, owner, 4 * start)
    before = rows[index]
    if before.max() >= region.launch_base:
        elements = start + (index[:, None] * wide + np.arange(wide)).ravel()
        _conflict(region, elements, before.ravel(), cta, at)
    rows[index] = _owner(region, cta)


def note_reduce(region: Region, offset: int, size: int, cta: int) -> None:
    """A CTA added to bytes [offset, offset + size): they count as written, and by whom is not a conflict."""
    owner = region.owner
    if owner is None:
        return
    unit = region.owner_bytes
    part = owner[offset // unit : (offset + size - 1) // unit + 1]
    part[part < region.launch_base] = _owner(region, cta)


def _elements(offsets: NDArray[Any], size: int, unit: int) -> NDArray[np.intp]:
    first = offsets.astype(np.intp) // unit
    if size <= unit:
        return first
    return (first[:, None] + np.arange(size // unit)).ravel()


def _conflict(region: Region, elements: NDArray[np.intp], before: NDArray[np.int32], cta: int, at: int) -> None:
    assert region.coverage is not None
    taken = before >= region.launch_base
    region.coverage.record(elements[taken], before[taken] - region.launch_base, cta, at)


def _owner(region: Region, cta: int) -> int:
    """What stands for a CTA of this launch in ``Region.owner``."""
    owner = region.launch_base + cta
    region.highest = max(region.highest, owner)
    return owner


def merge(region: Region, owner: NDArray[np.int32], coverage: Coverage) -> None:
    """Add what another process saw of the same region in the same launch: its owners and its conflicts.

    The other process must have begun anew (``Region.watch``), so that its owners are plain CTAs.
    """
    assert region.owner is not None
    assert region.coverage is not None
    mine, base = region.owner, region.launch_base
    wrote = owner >= 0
    both = np.flatnonzero(wrote & (mine >= base) & (mine != owner + base))
    for cta in np.unique(owner[both]):
        some = both[owner[both] == cta]
        region.coverage.record(some, mine[some] - base, int(cta), -1)
    np.copyto(mine, owner + np.int32(base), where=wrote & (mine < base))
    region.highest = max(region.highest, base + int(owner.max(initial=-1)))
    region.coverage.conflicts.extend(coverage.conflicts)
    for key, count in coverage.counts.items():
        region.coverage.counts[key] = region.coverage.counts.get(key, 0) + count


def findings(regions: Iterable[Region]) -> list[Finding]:
    """What the coverage of the watched regions says after a launch.

    Kinds: ``never-written``, ``written-by-two`` (CTAs), ``written-twice`` (by one CTA; a note, the result may be
    right).
    """
    found: list[Finding] = []
    for region in regions:
        if region.owner is None:
            continue
        found.extend(_never(region))
        if region.coverage is not None:
            found.extend(_twice(region, region.coverage))
    return found


def _never(region: Region) -> list[Finding]:
    assert region.owner is not None
    missing = np.flatnonzero(region.owner < 0)
    if not missing.size:
        return []
    total = region.owner.size
    if missing.size == total:
        return [Finding("never-written", f"{region.name}: no CTA wrote any of its {total} elements")]
    runs = _runs(missing)
    notes = tuple(_span(region, start, stop) for start, stop in runs[:8])
    if len(runs) > 8:
        notes += (f"and {len(runs) - 8} more runs of elements; {_stride(runs)}",)
    return [
        Finding(
            "never-written",
            f"{region.name}: {missing.size} of {total} elements were never written, the first: {notes[0]}",
            hint="look at the grid's shape, at the CTA's tile coordinates and at the predicate of the last tile",
            notes=notes,
        )
    ]


def _twice(region: Region, coverage: Coverage) -> list[Finding]:
    kinds: dict[str, dict[tuple[int, int], int]] = {"written-by-two": {}, "written-twice": {}}
    for (before, now, _), count in coverage.counts.items():
        kind = "written-twice" if before == now else "written-by-two"
        pair = (min(before, now), max(before, now))
        kinds[kind][pair] = kinds[kind].get(pair, 0) + count
    found = []
    for kind, pairs in kinds.items():
        if not pairs:
            continue
        notes = []
        for low, high in sorted(pairs)[:8]:
            runs = [c for c in coverage.conflicts if {c.before, c.now} == {low, high}]
            one = min(runs, key=lambda c: c.start)
            who = f"CTA {low}, twice" if low == high else f"CTAs {low} and {high}"
            at = f" (instruction {one.at})" if one.at >= 0 else ""
            notes.append(f"{who}: {pairs[low, high]} elements, the first: {_span(region, one.start, one.stop)}{at}")
        if len(pairs) > 8:
            notes.append(f"and {len(pairs) - 8} more pairs of CTAs")
        said = "by two CTAs" if kind == "written-by-two" else "twice by one CTA"
        found.append(
            Finding(
                kind,
                f"{region.name}: {sum(pairs.values())} elements were written {said}; {notes[0]}",
                hint="look at how a CTA's tile follows from its block index" if kind == "written-by-two" else "",
                notes=tuple(notes),
            )
        )
    return found


def _span(region: Region, start: int, stop: int) -> str:
    unit = region.owner_bytes
    first = region.say(region.start + start * unit)
    if stop - start == 1:
        return first
    return f"{first} to {region.say(region.start + (stop - 1) * unit)}"


def _stride(runs: list[tuple[int, int]]) -> str:
    """Whether the runs are rows of one block: equal lengths at equal distances."""
    lengths = {stop - start for start, stop in runs}
    steps = {b[0] - a[0] for a, b in itertools.pairwise(runs)}
    if len(lengths) == 1 and len(steps) == 1:
        return f"each {lengths.pop()} elements, {steps.pop()} elements apart"
    return "of several lengths or distances"
