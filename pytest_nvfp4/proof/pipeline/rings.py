"""Rings: the memory that warps, copies or MMAs fill stage by stage for others to read, found by what overlaps what.

A ring is named by the array of mbarriers that says its stages are full. Its parts are the memory that one warp fills:
by copies, which signal the barrier themselves; by ``cp.async`` or stores between two waits, and an arrival; or, in
TMEM, by MMAs before a commit. The stages of a part are found from the memory alone: fill n + p is the first to overlap
fill n. So a kernel whose barriers have fewer stages than its memory, or more, is described as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import or_

from pytest_nvfp4.proof.pipeline.recording import Array, Event, Recording, Role
from pytest_nvfp4.proof.pipeline.streams import Action, Completion, Stream, at_once, fitted, group_done, never, uses_of

_READS = {"read": Completion.OWN, "mma": Completion.PIPE, "wgmma": Completion.OWN, "bulk": Completion.OWN}


@dataclass(frozen=True, slots=True)
class Part:
    """The memory of a ring that one warp fills.

    Attributes:
        fill: The stream that fills it, in whose stages the memory is divided.
        reads: The streams that read it.
        memory: The units of memory.
    """

    fill: Stream
    reads: tuple[Stream, ...]
    memory: int

    @property
    def stages(self) -> int:
        """Number of stages of the memory."""
        return self.fill.stages

    @property
    def problem(self) -> str:
        """Why the part cannot be described; empty if it can."""
        return next((each.problem for each in (self.fill, *self.reads) if each.problem), "")


@dataclass(frozen=True, slots=True)
class Ring:
    """Memory that an array of mbarriers guards.

    Attributes:
        array: The array that says a stage is full.
        parts: The memory, by the warp that fills it.
    """

    array: int
    parts: tuple[Part, ...]


def find_rings(recordings: Sequence[Recording], arrays: Sequence[Array], barriers: Sequence[Stream]) -> list[Ring]:
    """Return the rings with at least one reader whose memory is filled more than once."""
    candidates = {
        index: _fill_streams(recordings, index, array, barriers, _waiters(barriers, index))
        for index, array in enumerate(arrays)
        if not array.named
    }
    # A warp may wait for several arrays before it reads: those guard the memory with which its reads are in step.
    guarded = {
        (fill.role, fill.kind)
        for index, fills in candidates.items()
        for fill, read in fills
        if _in_step(recordings, fill, read, _waiters(barriers, index))
    }
    found: list[Ring] = []
    for index, fills in candidates.items():
        waiters = _waiters(barriers, index)
        parts = tuple(
            part
            for fill, read in fills
            if (fill.role, fill.kind) not in guarded or _in_step(recordings, fill, read, waiters)
            if (part := _part(recordings, fill, read)) is not None
        )
        if parts:
            found.append(Ring(index, parts))
    return found


def _waiters(barriers: Sequence[Stream], array: int) -> set[Role]:
    return {stream.role for stream in barriers if (stream.array, stream.action) == (array, Action.WAIT)}


def _in_step(recordings: Sequence[Recording], fill: Stream, memory: int, waiters: set[Role]) -> bool:
    """Return whether each waiter that reads what a stream fills reads once, between two waits, for each fill."""
    if fill.kind == "copy":
        return True
    for recording, uses in zip(recordings, fill.runs, strict=True):
        written = memory & _union(event.writes for event in recording.warps.get(fill.role, ()) if fills(fill, event))
        for role in waiters - {fill.role}:
            events = recording.warps.get(role, ())

            def of_read(event: Event, written: int = written) -> int | None:
                return 0 if event.reads & written else None

            def is_wait(event: Event) -> bool:
                return event.kind == "wait" and event.array == fill.array

            runs = uses_of(events, of_read, splits_at_waits=False, done=never, split=is_wait)
            if runs and len(runs) != len(uses):
                return False
    return True


def _roles(recordings: Sequence[Recording]) -> list[Role]:
    return sorted({role for recording in recordings for role in recording.warps})


def _runs_of(recordings: Sequence[Recording], role: Role) -> list[tuple[Event, ...]]:
    return [recording.warps.get(role, ()) for recording in recordings]


def _union(masks: Iterable[int]) -> int:
    return reduce(or_, masks, 0)


def _fill_streams(
    recordings: Sequence[Recording], index: int, array: Array, barriers: Sequence[Stream], waiters: set[Role]
) -> list[tuple[Stream, int]]:
    """Return the streams that fill memory which an array guards, and that memory; their stages are not known yet."""
    found: list[tuple[Stream, int]] = []
    for role in _roles(recordings):
        runs = _runs_of(recordings, role)

        def of_copy(event: Event) -> int | None:
            return event.stage if event.kind == "copy" and event.array == index else None

        copies = tuple(uses_of(run, of_copy, splits_at_waits=array.stages == 1, done=never) for run in runs)
        if any(copies):
            found.append((Stream(role, Action.FILL, index, 0, Completion.COPY, copies, kind="copy"), -1))
        signals = [
            stream for stream in barriers if (stream.role, stream.array, stream.action) == (role, index, Action.SIGNAL)
        ]
        for completion in {stream.completion for stream in signals}:
            pipe = completion is Completion.PIPE
            kind = "mma" if pipe else "cp.async" if completion is Completion.CP_ASYNC else "write"
            read = _union(
                event.reads
                for recording in recordings
                for reader in waiters
                if reader != role
                for event in recording.warps.get(reader, ())
                if event.kind == "read" or not pipe
            )

            def of_write(event: Event, kind: str = kind, read: int = read) -> int | None:
                return 0 if event.kind == kind and event.writes & read else None

            complete = at_once if kind == "write" else never

            def is_signal(event: Event) -> bool:
                return event.kind == "commit" and event.array == index

            uses = tuple(
                uses_of(run, of_write, splits_at_waits=not pipe, split=is_signal, done=complete)
                for run in runs
            )  # fmt: skip
            if any(uses):
                found.append((Stream(role, Action.FILL, index, 0, completion, uses, kind=kind), read))
    return found


def _part(recordings: Sequence[Recording], fill: Stream, guarded: int) -> Part | None:
    """Return the part that a stream fills, if it is read and filled more than once."""
    runs = _runs_of(recordings, fill.role)
    masks = [
        [
            _union(event.writes & guarded for event in run[use.first : use.last + 1] if fills(fill, event))
            for use in uses
        ]
        for run, uses in zip(runs, fill.runs, strict=True)
    ]
    longest = max(masks, key=len)
    if len(longest) < 2:
        return None
    stages = next((n for n in range(1, len(longest)) if longest[n] & longest[0]), 0)
    if not stages:
        regions = [_union(longest)]
        problem = f"none of its {len(longest)} fills overwrites another"
    else:
        every = [mask for run in masks for mask in run]
        regions = [_union(run[n] for run in masks for n in range(stage, len(run), stages)) for stage in range(stages)]
        overlap = sum(map(int.bit_count, regions)) != _union(every).bit_count()
        problem = f"fills of different stages overlap, of {stages} stages" if overlap else ""
    size = stages or len(longest)
    numbered = tuple(
        tuple(use._replace(stage=number % size, number=0) for number, use in enumerate(uses)) for uses in fill.runs
    )
    fill = replace(fill, stages=size, runs=numbered, problem=problem)
    reads = [] if problem else _reads(recordings, fill, regions)
    if not reads and not (problem and _is_read(recordings, regions[0], fill.role)):
        return None
    return Part(fill, tuple(reads), _union(regions))


def fills(fill: Stream, event: Event) -> bool:
    """Return whether an event within a use of a stream fills the ring."""
    return event.kind == fill.kind and (event.kind != "copy" or event.array == fill.array)


def _is_read(recordings: Sequence[Recording], memory: int, role: Role) -> bool:
    return any(
        event.reads & memory
        for recording in recordings
        for reader, events in recording.warps.items()
        if reader != role
        for event in events
    )


def _reads(recordings: Sequence[Recording], fill: Stream, regions: Sequence[int]) -> list[Stream]:
    """Return the streams that read a part."""
    memory = _union(regions)
    found: list[Stream] = []
    for role in _roles(recordings):
        runs = _runs_of(recordings, role)
        for kind, completion in _READS.items():
            inat_once_pipe = kind == "mma" and fill.completion is Completion.PIPE and role == fill.role
            if inat_once_pipe or not any(event.kind == kind and event.reads & memory for run in runs for event in run):
                continue
            two = next((e for run in runs for e in run if e.kind == kind and len(_touched(e, regions)) > 1), None)
            select = partial(_region, kind=kind, regions=regions)
            uses = tuple(
                uses_of(
                    run, select, splits_at_waits=len(regions) == 1,
                    done=_done(run, kind),
                )
                for run in runs
            )  # fmt: skip
            stream = fitted(
                Stream(role, Action.READ, fill.array, len(regions), completion, uses, kind=kind), recordings
            )
            if two is not None:
                place = recordings[-1].place(two.at)
                stream = replace(stream, problem=f"{place} reads more than one stage at once")
            found.append(stream)
    return found


def _done(events: Sequence[Event], kind: str) -> Callable[[int, Event], int | None]:
    if kind == "mma":
        return never
    return at_once if kind == "read" else group_done(events, kind)


def _touched(event: Event, regions: Sequence[int]) -> list[int]:
    return [stage for stage, region in enumerate(regions) if event.reads & region]


def _region(event: Event, *, kind: str, regions: Sequence[int]) -> int | None:
    if event.kind != kind:
        return None
    touched = _touched(event, regions)
    return touched[0] if touched else None
