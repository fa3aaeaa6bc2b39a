"""Recorded launches: what each warp of a cluster waits for, signals, reads and writes, in program order.

``sim.sync.protocol_log`` records them, and documents the kinds of events. Launches of one kernel with different numbers
of iterations are aligned: an array of barriers has the same number in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter

Kind = Literal[
    "wait", "arrive", "arrive-async", "commit", "copy", "read", "write", "mma", "wgmma", "wgmma-done", "cp.async",
    "cp.async-done", "bulk", "bulk-done",
]  # fmt: skip

_SPACE_UNITS = 1 << 15
"""More units than shared memory or TMEM of a CTA has."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Array(_Model):
    cta: int
    stages: int
    count: int
    barriers: tuple[int, ...]
    file: str
    line: int
    named: bool


class _Warp(_Model):
    cta: int
    warp: int
    events: tuple[tuple[Kind, int, int, int, int, int, int], ...]


class _Launch(_Model):
    kernel: str
    code: str
    cluster: int
    truncated: bool
    arrays: tuple[_Array, ...]
    footprints: tuple[tuple[tuple[Literal["smem", "tmem"], int, tuple[tuple[int, int], ...]], ...], ...]
    warps: tuple[_Warp, ...]
    places: dict[int, tuple[str, int, str]]


class _Call(_Model):
    stopped: bool
    launches: tuple[_Launch, ...]


_CALL = TypeAdapter(_Call)


class Role(NamedTuple):
    """A warp of the cluster, by the rank of its CTA and its number."""

    cta: int
    warp: int


class Event(NamedTuple):
    """One step of a warp; ``reads`` and ``writes`` are bit sets of units of memory (see ``Kind``)."""

    kind: Kind
    at: int
    array: int = -1
    stage: int = -1
    number: int = 0
    reads: int = 0
    writes: int = 0


@dataclass(frozen=True, slots=True)
class Array:
    """Barriers that the stages of a ring use in turn.

    Attributes:
        cta: Rank of the CTA that holds them; -1 for the cluster barrier.
        barriers: Byte indices in its shared memory, or the number of a named barrier.
        count: Arrivals that complete a phase; 0 if it is not a constant of the barrier.
        line: Line that initialises the first; 0 if unknown.
        named: Whether it is a named barrier or the cluster barrier, which has no parity.
    """

    cta: int
    barriers: tuple[int, ...]
    count: int
    line: int
    named: bool

    @property
    def stages(self) -> int:
        """Number of barriers."""
        return len(self.barriers)


@dataclass(frozen=True, slots=True)
class Recording:
    """One launch.

    Attributes:
        code: Digest of the instructions: a kernel that is compiled twice, for two sizes of tile, may keep its name.
        label: The problem and the schedule.
        complete: Whether the launch ran to its end.
        places: File, line and statement by instruction.
    """

    kernel: str
    code: str
    label: str
    complete: bool
    cluster: int
    arrays: tuple[Array, ...]
    warps: dict[Role, tuple[Event, ...]]
    places: dict[int, tuple[str, int, str]]

    def name(self, role: Role) -> str:
        """Return a warp's name."""
        return f"CTA rank {role.cta} warp {role.warp}" if self.cluster > 1 else f"warp {role.warp}"

    def place(self, at: int) -> str:
        """Return file, line and statement of an instruction."""
        if at not in self.places:
            return "an instruction without a line"
        file, line, text = self.places[at]
        return f"{PurePath(file).name}:{line}" + (f" `{text}`" if text else "")

    @property
    def length(self) -> int:
        """Number of events of all warps."""
        return sum(map(len, self.warps.values()))


def parse(text: bytes, *, label: str) -> list[Recording]:
    """Return the launches of a recorded call. Raises ValueError (pydantic's) for another format."""
    call = _CALL.validate_json(text)
    # A fault ends the last launch.
    last = len(call.launches) - call.stopped
    return [_recording(launch, label, number < last) for number, launch in enumerate(call.launches)]


def _recording(launch: _Launch, label: str, complete: bool) -> Recording:
    masks = [0, *map(_mask, launch.footprints)]
    if any(max(event[2] - len(launch.arrays), event[5] - len(launch.footprints), event[6] - len(launch.footprints)) >= 0
           for warp in launch.warps for event in warp.events):  # fmt: skip
        raise ValueError("an event refers to an array or a footprint that does not exist")
    return Recording(
        kernel=launch.kernel,
        code=launch.code,
        label=label,
        complete=complete and not launch.truncated,
        cluster=launch.cluster,
        arrays=tuple(Array(each.cta, each.barriers, each.count, each.line, each.named) for each in launch.arrays),
        warps={
            Role(warp.cta, warp.warp): tuple(
                Event(kind, at, array, stage, number, masks[reads + 1], masks[writes + 1])
                for kind, at, array, stage, number, reads, writes in warp.events
            )
            for warp in launch.warps
        },
        places=launch.places,
    )


def _mask(parts: Sequence[tuple[str, int, Sequence[tuple[int, int]]]]) -> int:
    mask = 0
    for space, cta, ranges in parts:
        base = (2 * cta + (space == "tmem")) * _SPACE_UNITS
        for first, end in ranges:
            if not 0 <= first < end <= _SPACE_UNITS:
                raise ValueError(f"[{first}, {end}) is no range of units")
            mask |= ((1 << end - first) - 1) << base + first
    return mask


def align(recordings: Sequence[Recording]) -> list[Recording]:
    """Number the arrays of all recordings of one kernel as in the longest, which shows all stages."""
    longest = max(recordings, key=lambda recording: recording.length)
    number = {
        (array.named, array.cta, barrier): (index, stage)
        for index, array in enumerate(longest.arrays)
        for stage, barrier in enumerate(array.barriers)
    }
    arrays = list(longest.arrays)
    aligned = []
    for recording in recordings:
        own: dict[tuple[int, int], tuple[int, int]] = {}
        for index, array in enumerate(recording.arrays):
            for stage, barrier in enumerate(array.barriers):
                key = (array.named, array.cta, barrier)
                if key not in number:
                    number[key] = (len(arrays), 0)
                    arrays.append(replace(array, barriers=(barrier,)))
                own[index, stage] = number[key]
        warps = {
            role: tuple(
                event if event.array < 0 else event._replace(array=place[0], stage=place[1])
                for event in events
                for place in (own.get((event.array, event.stage), (-1, -1)),)
            )
            for role, events in recording.warps.items()
        }
        aligned.append(replace(recording, warps=warps))
    return [replace(recording, arrays=tuple(arrays)) for recording in aligned]
