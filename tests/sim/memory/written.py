"""Watched regions, and a reference record of their writers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import numpy as np

from pytest_nvfp4.sim.memory.coverage import (
    findings,
    note_items,
    note_rows,
    note_scatter,
    note_write,
)
from pytest_nvfp4.sim.memory.globals import Region

BUFFERS = []


def watched(elements: int = 64, unit: int = 2) -> Region:
    """Return a watched region of elements of ``unit`` bytes, in rows of 8."""
    memory = ctypes.create_string_buffer(elements * unit + 16)
    BUFFERS.append(memory)
    width = 8
    region = Region(
        "C",
        ctypes.addressof(memory),
        elements * unit,
        describe=lambda byte: f"C row {byte // unit // width}, column {byte // unit % width}",
    )
    region.watch(unit)
    return region


def kinds(*regions: Region) -> dict[str, str]:
    """Return the messages of the coverage findings by kind."""
    return {finding.kind: finding.message for finding in findings(regions)}


def write_and_count(region: Region, writes: Iterable[tuple[str, int, int, int]]) -> dict[tuple[int, int], int]:
    """Perform the writes; return how many elements each ordered pair of CTAs wrote again."""
    owner = dict.fromkeys(range(64), -1)
    again: dict[tuple[int, int], int] = {}
    for kind, first, count, cta in writes:
        if kind == "run":
            elements = list(range(first, first + count))
            note_write(region, 2 * first, 2 * count, cta, 5)
        elif kind == "rows":
            elements = [first + 16 * row + i for row in range(3) for i in range(count)]
            note_rows(region, 2 * first, 2 * count, 3, 32, cta, 5)
        elif kind == "items":
            index = np.array([3, 0, count])
            elements = [first + 2 * i + j for i in index.tolist() for j in (0, 1)]
            note_items(region, 2 * first, index, 4, 4, cta, 5)
        else:
            elements = [first, (first + 7) % 62] if count == 2 else [first]
            note_scatter(region, 2 * np.array(elements), 2, cta, 5)
        for element in elements:
            if owner[element] >= 0:
                again[owner[element], cta] = again.get((owner[element], cta), 0) + 1
            owner[element] = cta
    assert region.owner is not None
    assert region.owner.tolist() == list(owner.values())
    return again
