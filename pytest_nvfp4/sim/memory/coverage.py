"""Record of the CTA that wrote each element of a watched output, and the findings that follow from it.

``Region.watch(owner_bytes)`` starts the record. Every store reports the bytes it wrote: as one contiguous run
(``note_write``), as several rows (``note_rows``), or as scattered offsets (``note_scatter``, ``note_items``).
What the host's copies and operators wrote (``note_request``) is no CTA's.
Reductions report through ``note_reduce``, which sets an owner but records no conflict, because several CTAs may add to
one element. A second write of an element in one launch is a conflict. A write of a part of an element counts as a write
of the whole element.

The record is deterministic except for the order of two CTAs, so findings name both in ascending order. In a forked
process, ``Region.notes`` also lists the reports, which the parent repeats (``repeat``): they are much smaller than the
record of a large output.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.sim.memory.globals import Coverage, Region, contiguous_runs, dense

NOBODY = -1
"""Owner of an element that was not written."""
FIRST_REQUEST = -2
"""Owner of the elements that the first copy or operator of the host's wrote; the next one's is one less."""
_SHOWN = 8
"""Runs or pairs of CTAs that a finding lists."""


def note_write(region: Region, offset: int, size: int, cta: int, at: int) -> None:
    """Record a CTA's write of bytes [offset, offset + size); does nothing if the region is not watched."""
    owner = region.owner
    if owner is None:
        return
    if region.notes is not None:
        region.notes.append((note_write, offset, size, cta, at))
    unit = region.owner_bytes
    start, stop = offset // unit, (offset + size - 1) // unit + 1
    part = owner[start:stop]
    if part.max(initial=-1) >= region.launch_base:
        _conflict(region, np.arange(start, stop), part, cta, at)
    part[:] = _owner(region, cta)


def note_rows(region: Region, offset: int, size: int, rows: int, pitch: int, cta: int, at: int) -> None:
    """Record a CTA's write of ``rows`` runs of ``size`` bytes, ``pitch`` bytes apart, the first at ``offset``."""
    owner = region.owner
    if owner is None or not rows:
        return
    unit = region.owner_bytes
    if pitch % unit or offset % unit or size % unit or pitch < size:
        for row in range(rows):
            note_write(region, offset + row * pitch, size, cta, at)
        return
    if region.notes is not None:
        region.notes.append((note_rows, offset, size, rows, pitch, cta, at))
    start, wide, step = offset // unit, size // unit, pitch // unit
    part = np.lib.stride_tricks.as_strided(owner[start:], (rows, wide), (step * 4, 4))
    if part.max() >= region.launch_base:
        elements = start + (np.arange(rows)[:, None] * step + np.arange(wide)).ravel()
        _conflict(region, elements, part.ravel(), cta, at)
    part[:] = _owner(region, cta)


def note_scatter(region: Region, offsets: NDArray[Any], size: int, cta: int, at: int) -> None:
    """Record a CTA's write of ``size`` bytes at each of several byte offsets.

    A repeated offset (two lanes, one address) is one write here: the store itself reports lanes that differ.
    """
    owner = region.owner
    if owner is None:
        return
    if region.notes is not None:
        region.notes.append((note_scatter, offsets, size, cta, at))
    unit = region.owner_bytes
    elements = _elements(offsets, size, unit)
    before = owner[elements]
    if before.max(initial=-1) >= region.launch_base:
        _conflict(region, elements, before, cta, at)
    owner[elements] = _owner(region, cta)


def note_items(region: Region, offset: int, index: NDArray[np.int64], items: int, size: int, cta: int, at: int) -> None:
    """Record a CTA's write of the items ``index`` among ``items`` items of ``size`` bytes that start at ``offset``."""
    owner = region.owner
    if owner is None:
        return
    unit = region.owner_bytes
    if size % unit or offset % unit:
        note_scatter(region, offset + index * size, size, cta, at)
        return
    if region.notes is not None:
        region.notes.append((note_items, offset, index, items, size, cta, at))
    wide, start = size // unit, offset // unit
    rows: NDArray[np.int32] = np.ndarray((items, wide), np.int32, owner, 4 * start)
    before = rows[index]
    if before.max() >= region.launch_base:
        elements = start + (index[:, None] * wide + np.arange(wide)).ravel()
        _conflict(region, elements, before.ravel(), cta, at)
    rows[index] = _owner(region, cta)


def unclaimed(region: Region, offset: int, index: NDArray[np.int64], items: int, size: int) -> bool:
    """Return whether ``note_items`` of whole elements finds no element that the launch wrote before."""
    unit = region.owner_bytes
    if region.owner is None or size % unit or offset % unit:
        return False
    rows: NDArray[np.int32] = np.ndarray((items, size // unit), np.int32, region.owner, 4 * (offset // unit))
    return bool(rows[index].max() < region.launch_base)


def note_reduce(region: Region, offset: int, size: int, cta: int) -> None:
    """Record a CTA's reduction into bytes [offset, offset + size): they count as written, without a conflict."""
    owner = region.owner
    if owner is None:
        return
    if region.notes is not None:
        region.notes.append((note_reduce, offset, size, cta))
    unit = region.owner_bytes
    part = owner[offset // unit : (offset + size - 1) // unit + 1]
    part[part < region.launch_base] = _owner(region, cta)


def note_request(region: Region, extent: Extent, number: int = FIRST_REQUEST) -> None:
    """Record that a copy or an operator of the host's wrote a strided array: every element that it overlaps."""
    owner = region.owner
    if owner is None:
        return
    unit = region.owner_bytes
    start = extent.address - region.start
    if 0 not in extent.shape and dense(extent):
        stop = start + extent.size * prod(extent.shape)
        owner[max(0, start // unit) : max(0, -(-stop // unit))] = number
        return
    places = np.array([start], np.int64)
    for length, stride in zip(extent.shape, extent.strides, strict=True):
        places = (places[:, None] + np.arange(length, dtype=np.int64) * stride).ravel()
    first, last = places // unit, (places + extent.size - 1) // unit
    while first.size:
        inside = (first >= 0) & (first < owner.size)
        owner[first[inside]] = number
        first, last = first[first < last] + 1, last[first < last]


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
    """Return the number that stands for a CTA of this launch in ``Region.owner``."""
    owner = region.launch_base + cta
    region.highest = max(region.highest, owner)
    return owner


def repeat(region: Region, notes: Iterable[tuple[Any, ...]]) -> None:
    """Record what another process reported for the region in the same launch (``Region.notes``)."""
    for note, *arguments in notes:
        note(region, *arguments)


def findings(regions: Iterable[Region]) -> list[Finding]:
    """Return the findings on the watched regions after a launch.

    Kinds: ``never-written``, ``written-by-two`` (two CTAs), ``written-twice`` (one CTA; the result may be right).
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
    missing = np.flatnonzero(region.owner == NOBODY)
    if not missing.size:
        return []
    total = region.owner.size
    if missing.size == total:
        return [Finding("never-written", f"{region.name}: no CTA wrote any of its {total} elements")]
    runs = contiguous_runs(missing)
    notes = tuple(_span(region, start, stop) for start, stop in runs[:_SHOWN])
    if len(runs) > _SHOWN:
        notes += (f"and {len(runs) - _SHOWN} more runs of elements; {_stride(runs)}",)
    return [
        Finding(
            "never-written",
            f"{region.name}: {missing.size} of {total} elements were never written, the first: {notes[0]}",
            hint="check the grid's shape, the CTA's tile coordinates and the predicate of the last tile",
            notes=notes,
        )
    ]


def _twice(region: Region, coverage: Coverage) -> list[Finding]:
    kinds: dict[str, dict[tuple[int, int], int]] = {"written-by-two": {}, "written-twice": {}}
    for (before, now, _), count in coverage.counts.items():
        kind = "written-twice" if before == now else "written-by-two"
        pair = (min(before, now), max(before, now))
        kinds[kind][pair] = kinds[kind].get(pair, 0) + count
    repeated = []
    for kind, pairs in kinds.items():
        if not pairs:
            continue
        notes = []
        for low, high in sorted(pairs)[:_SHOWN]:
            conflicts = [c for c in coverage.conflicts if {c.before, c.now} == {low, high}]
            first = min(conflicts, key=lambda c: c.start)
            ctas = f"CTA {low}, twice" if low == high else f"CTAs {low} and {high}"
            at = f" ({first.place})" if first.place else ""
            span = _span(region, first.start, first.stop)
            notes.append(f"{ctas}: {pairs[low, high]} elements, the first: {span}{at}")
        if len(pairs) > _SHOWN:
            notes.append(f"and {len(pairs) - _SHOWN} more pairs of CTAs")
        writers = "by two CTAs" if kind == "written-by-two" else "twice by one CTA"
        repeated.append(
            Finding(
                kind,
                f"{region.name}: {sum(pairs.values())} elements were written {writers}; {notes[0]}",
                hint="check how a CTA's tile follows from its block index" if kind == "written-by-two" else "",
                notes=tuple(notes),
            )
        )
    return repeated


def _span(region: Region, start: int, stop: int) -> str:
    unit = region.owner_bytes
    first = region.place(region.start + start * unit)
    if stop - start == 1:
        return first
    return f"{first} to {region.place(region.start + (stop - 1) * unit)}"


def _stride(runs: list[tuple[int, int]]) -> str:
    """Describe the lengths and distances of runs; rows of one block have equal lengths at equal distances."""
    lengths = {stop - start for start, stop in runs}
    steps = {b[0] - a[0] for a, b in itertools.pairwise(runs)}
    if len(lengths) == 1 and len(steps) == 1:
        return f"each {lengths.pop()} elements, {steps.pop()} elements apart"
    return "of several lengths or distances"
