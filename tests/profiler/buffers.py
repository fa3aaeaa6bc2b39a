"""Buffers of regions, as a kernel writes them."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_nvfp4.profiler.records import (
    EVENT_WORDS,
    HEAD_WORDS,
    HEADER_WORDS,
    KernelRecord,
    Kind,
    buffer_words,
    decode,
    slice_words,
    tag,
)

REGIONS = ("a", "b")
EPOCH_NS = 0x1_8000_0000_0000
"""A time of a GPU's timer, whose high half is not 0."""

Events = Sequence[tuple[float, Kind, int]]
"""Nanoseconds since the start of the warp, kind, and number of the region."""


def buffer(
    warps: dict[int, tuple[int, float, Events]],
    *,
    slices: int = 8,
    events: int = 4,
    grid: int = 2,
    block: int = 64,
    ghz: float = 2.0,
    step_ns: int = 32,
    launches: int = 1,
    epoch_ns: int = EPOCH_NS,
) -> list[int]:
    """The words of a launch. ``warps``: by slice, the SM, the ns at which the warp starts, and its events.

    The clock of SM n is ahead by n billion cycles; the timer advances in steps.
    """
    words = [0] * buffer_words(slices, events)
    words[:7] = [grid, 1, 1, block, 1, 1, launches]
    for number, (sm, start, recorded) in warps.items():
        at = HEADER_WORDS + number * slice_words(events)

        def clocks(ns: float, sm: int = sm) -> tuple[int, int]:
            timer = epoch_ns + int(ns // step_ns * step_ns)
            return (round(ns * ghz) + sm * 1_000_000_000) & 0xFFFFFFFF, timer

        clock, timer = clocks(start)
        words[at : at + 6] = [len(recorded), sm, clock, timer & 0xFFFFFFFF, timer >> 32, 1]
        for place, (ns, kind, region) in enumerate(recorded[:events]):
            clock, timer = clocks(start + ns)
            first = at + HEAD_WORDS + EVENT_WORDS * place
            words[first : first + EVENT_WORDS] = [clock, timer & 0xFFFFFFFF, tag(kind, region), 0xFFFFFFFF]
    return words


def decoded(words: list[int], *, slices: int = 8, events: int = 4) -> KernelRecord:
    """The record in a buffer."""
    return decode(words, kernel="k", regions=REGIONS, slices=slices, events=events)
