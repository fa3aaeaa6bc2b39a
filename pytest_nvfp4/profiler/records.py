"""The records of a kernel's regions: their layout in device memory, and their decoding.

A kernel has one buffer of 32-bit words, little endian:

    header  16 words    grid x, y, z; block x, y, z; launches since the buffer was cleared; 9 words 0
    slices  a number of ``slices`` for each channel, each of

        head    8 words   events (lost ones included), SM, %clock, %globaltimer low and high, 1, 2 words 0
        event   4 words   %clock, %globaltimer low, tag, value; ``events`` times

A slice belongs to one warp of the grid, number ``CTA * warps of a CTA + warp``, and to a channel: 0 for events of the
warp's lane 0, and 1 for those of an elected lane. Only one lane writes into a slice, so that no atomic operation is
needed. A tag has the kind of the event in bits 30-31, the lane in bits 25-29, and the number of the region below.

``%clock`` gives differences within an SM, in cycles, and ``%globaltimer`` the order of SMs; the latter advances in
steps of 32 ns or more. (PTX ISA, "Special Registers: %clock", "%globaltimer".)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

HEADER_WORDS, HEAD_WORDS, EVENT_WORDS, CHANNELS = 16, 8, 4, 2
MOST_REGIONS = 1 << 25
_LOW = 0xFFFFFFFF


class Kind(IntEnum):
    """What an event is."""

    BEGIN = 1
    END = 2
    MARK = 3


@dataclass(frozen=True, slots=True)
class Event:
    """An event of one lane.

    Attributes:
        clock: Cycles of the SM's clock modulo 2^32.
        timer_ns: Low 32 bits of ``%globaltimer``.
        region: Number of the region.
        value: The value given with it, as a signed integer; 0 without one.
    """

    clock: int
    timer_ns: int
    kind: Kind
    lane: int
    region: int
    value: int


@dataclass(frozen=True, slots=True)
class WarpRecord:
    """The events of a warp on one channel, in program order.

    Attributes:
        cta: Linear number in the grid.
        clock, timer_ns: When the warp started; ``timer_ns`` has all 64 bits.
        lost: Number of events that found no room.
    """

    cta: int
    warp: int
    channel: int
    sm: int
    clock: int
    timer_ns: int
    events: tuple[Event, ...]
    lost: int


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """What the launches of a kernel since the last clearing left in its buffer.

    Attributes:
        regions: Names by number.
        launches: Number of launches. Each overwrites its predecessor's records.
        not_recorded: Number of warps of the grid without a slice.
        damaged: Number of slices whose content no kernel writes.
    """

    kernel: str
    regions: tuple[str, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    launches: int
    warps: tuple[WarpRecord, ...]
    not_recorded: int = 0
    damaged: int = 0


def slice_words(events: int) -> int:
    """Return the words of a slice of so many events."""
    return HEAD_WORDS + EVENT_WORDS * events


def buffer_words(slices: int, events: int) -> int:
    """Return the words of a buffer."""
    return HEADER_WORDS + CHANNELS * slices * slice_words(events)


def tag(kind: Kind, region: int) -> int:
    """Return the tag of an event of lane 0."""
    return kind << 30 | region


def decode(words: Sequence[int], *, kernel: str, regions: Sequence[str], slices: int, events: int) -> KernelRecord:
    """Return the content of a buffer.

    Args:
        words: The buffer as unsigned 32-bit words.
        kernel: Name of the kernel.
        regions: Names of its regions by number.
        slices, events: As the buffer was made.

    Raises ValueError if the buffer has another size.
    """
    if len(words) != buffer_words(slices, events):
        raise ValueError(f"{len(words)} words are no buffer of {slices} slices of {events} events")
    grid, block, launches = _three(words, 0), _three(words, 3), words[6]
    warps = -(-block[0] * block[1] * block[2] // 32)
    total = grid[0] * grid[1] * grid[2] * warps
    found: list[WarpRecord] = []
    damaged = 0
    for channel in range(CHANNELS):
        for number in range(min(slices, total)):
            at = HEADER_WORDS + (channel * slices + number) * slice_words(events)
            if not words[at + 5]:
                continue
            head, kept = words[at : at + HEAD_WORDS], min(words[at], events)
            first = at + HEAD_WORDS
            recorded = [
                _event(words[place : place + EVENT_WORDS])
                for place in range(first, first + EVENT_WORDS * kept, EVENT_WORDS)
            ]
            own = tuple(event for event in recorded if event is not None and event.region < len(regions))
            if len(own) < kept:
                damaged += 1
            elif own or not channel:
                cta, warp = divmod(number, warps)
                timer = head[4] << 32 | head[3]
                found.append(WarpRecord(cta, warp, channel, head[1], head[2], timer, own, head[0] - kept))
    return KernelRecord(kernel, tuple(regions), grid, block, launches, tuple(found), max(0, total - slices), damaged)


def _three(words: Sequence[int], at: int) -> tuple[int, int, int]:
    return words[at], words[at + 1], words[at + 2]


def _event(words: Sequence[int]) -> Event | None:
    """Return an event, or None for words that no kernel writes."""
    clock, timer, tagged, value = words
    if not tagged >> 30:
        return None
    region = tagged & MOST_REGIONS - 1
    return Event(clock, timer, Kind(tagged >> 30), tagged >> 25 & 31, region, value - (value >> 31 << 32))
