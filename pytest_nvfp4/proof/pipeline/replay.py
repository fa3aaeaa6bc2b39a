"""Replay of recorded warps in other legal orders: a search for an order in which a ring fails.

Each warp executes its recorded steps; waits use the hardware's rule (the phase's parity is not the one waited for; PTX
ISA, "mbarrier.test_wait"). One thing is late: a warp before one of its steps, the landing of a copy, or an operation of
a tensor core's pipe and what follows it there. Everything else runs until nothing can. A failure is therefore an order
of the recorded program, for its number of iterations, and no artefact of a model.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pytest_nvfp4.proof.pipeline.protocol import Protocol
from pytest_nvfp4.proof.pipeline.recording import Array, Event, Recording, Role
from pytest_nvfp4.proof.pipeline.rings import fills
from pytest_nvfp4.proof.pipeline.streams import Action, Stream

Failure = Literal["overwritten", "unfilled", "deadlock"]
STEPS = 1_000_000
"""Steps of all replays of one search; beyond it the search ends without an answer."""


class Wanted(NamedTuple):
    """The failure to look for, and the parts of rings in which."""

    failure: Failure
    parts: frozenset[int] = frozenset()


class _Touch(NamedTuple):
    """What a step does to a part of a ring: the stream, the number of the use, and whether it begins the use."""

    part: int
    stream: Stream
    use: int
    begins: bool


class _Late(NamedTuple):
    """What is late: a warp before a position, or what it issued there."""

    role: Role
    position: int
    issued: bool


@dataclass(slots=True)
class _Barrier:
    pending: int
    phase: int = 0
    landed: dict[int, int] = field(default_factory=lambda: defaultdict(int))


class _FailsError(Exception):
    """The failure that is looked for; the message is the order that shows it."""


class _Recorded:
    """A recording, indexed for replays."""

    def __init__(self, protocol: Protocol, index: int, recording: Recording) -> None:
        self.recording = recording
        self.index = index
        self.protocol = protocol
        self.steps: dict[Role, list[tuple[int, Event]]] = {
            role: [(at, event) for at, event in enumerate(events) if not protocol.leaves_out(role, event)]
            for role, events in recording.warps.items()
        }
        self.touches: dict[tuple[Role, int], list[_Touch]] = defaultdict(list)
        self.expected: dict[tuple[int, Stream, int], int] = {}
        """Fill that a read must see, by part, stream and use of the read."""
        self.readers: dict[tuple[int, int], list[tuple[Stream, int]]] = defaultdict(list)
        """Reads of each fill of a part."""
        self.pieces: dict[tuple[Stream, int], int] = {}
        for number, part in enumerate(protocol.parts):
            self._index(number, part.memory, part.fill)
            by_stage: dict[int, list[int]] = defaultdict(list)
            for use, filled in enumerate(part.fill.runs[index]):
                by_stage[filled.stage].append(use)
            for read in part.reads:
                self._index(number, part.memory, read)
                if len(read.runs[index]) != len(part.fill.runs[index]):
                    continue  # which fill a read must see is known only if they are one for one
                seen: dict[int, int] = defaultdict(int)
                for use, done in enumerate(read.runs[index]):
                    round_, seen[done.stage] = seen[done.stage], seen[done.stage] + 1
                    if round_ < len(by_stage[done.stage]):
                        fill = by_stage[done.stage][round_]
                        self.expected[number, read, use] = fill
                        for later in by_stage[done.stage][round_ + 1 :]:
                            self.readers[number, later].append((read, use))
        self.copies: dict[tuple[int, int, int], int] = defaultdict(int)
        """Copies that each phase of a barrier counts."""
        self.phase_of: dict[tuple[Role, int], int] = {}
        for role, steps in self.steps.items():
            rounds: dict[tuple[int, int], int] = defaultdict(lambda: -1)
            before: dict[int, int] = {}
            for position, event in steps:
                if event.kind == "copy":
                    if before.get(event.array) != event.stage:
                        rounds[event.array, event.stage] += 1
                        before[event.array] = event.stage
                    self.phase_of[role, position] = rounds[event.array, event.stage]
                    self.copies[event.array, event.stage, rounds[event.array, event.stage]] += 1
                elif event.kind == "wait" and self.protocol.arrays[event.array].stages == 1:
                    before.clear()
        self.rounds = Counter(
            (event.array, event.number)
            for steps in self.steps.values()
            for _, event in steps
            if event.kind == "arrive" and protocol.arrays[event.array].named
        )

    def _index(self, part: int, memory: int, stream: Stream) -> None:
        of_fill = stream.action is Action.FILL
        for number, use in enumerate(stream.runs[self.index]):
            pieces = 0
            for position in range(use.first, use.last + 1):
                event = self.recording.warps[stream.role][position]
                touched = (
                    fills(stream, event) and event.writes if of_fill else event.kind == stream.kind and event.reads
                )
                if touched & memory:
                    self.touches[stream.role, position].append(_Touch(part, stream, number, position == use.first))
                    pieces += 1
            self.pieces[stream, number] = pieces

    def arrivals(self, number: int, array: Array, phase: int) -> int:
        """Return the arrivals of a phase; for a named barrier, which may differ, those of the recorded round."""
        return self.rounds[number, phase] if array.named else array.count


class _Replay:
    """One replay."""

    def __init__(self, recorded: _Recorded, late: _Late | None, wanted: Wanted) -> None:
        self.recorded = recorded
        self.wanted = wanted
        self.late = late
        self.next = dict.fromkeys(recorded.steps, 0)
        self.barriers = {
            (number, stage): _Barrier(recorded.arrivals(number, array, 0))
            for number, array in enumerate(recorded.protocol.arrays)
            for stage in range(array.stages)
        }
        self.pipes: dict[Role, deque[tuple[int, Event]]] = defaultdict(deque)
        self.open: dict[tuple[Role, str], deque[tuple[int, Event]]] = defaultdict(deque)
        self.landing: list[tuple[Role, int, Event]] = []
        self.left: dict[tuple[Stream, int], int] = dict(recorded.pieces)
        self.steps = 0

    def run(self) -> None:
        """Execute until nothing can move. Raises _FailsError."""
        moved = True
        while moved:
            moved = False
            for role, steps in self.recorded.steps.items():
                while self.next[role] < len(steps) and self._step(role, *steps[self.next[role]]):
                    self.next[role] += 1
                    self.steps += 1
                    moved = True

    def blocked(self) -> Iterator[tuple[Role, Event]]:
        """Yield the warps that have not ended, with their next steps."""
        for role, steps in self.recorded.steps.items():
            if self.next[role] < len(steps):
                yield role, steps[self.next[role]][1]

    def release(self) -> None:
        """Perform all delayed operations."""
        self.late = None
        for role in self.pipes:
            self._drain(role)
        for role, position, event in self.landing:
            self._land(role, position, event)
        self.landing.clear()

    def _is_late(self, role: Role, position: int, *, issued: bool) -> bool:
        return self.late is not None and self.late == (role, position, issued)

    def _step(self, role: Role, position: int, event: Event) -> bool:
        """Execute a step; return whether it could."""
        if self._is_late(role, position, issued=False):
            return False
        kind = event.kind
        if kind == "wait":
            barrier = self.barriers[event.array, event.stage]
            if self.recorded.protocol.arrays[event.array].named:
                return barrier.phase > event.number
            return barrier.phase & 1 != event.number & 1
        self._touch(role, position)
        if kind == "arrive":
            self._arrive(event)
        elif kind in ("mma", "commit"):
            self.pipes[role].append((position, event))
            self._drain(role)
        elif kind == "copy":
            if self._is_late(role, position, issued=True):
                self.landing.append((role, position, event))
            else:
                self._land(role, position, event)
        elif kind in ("cp.async", "arrive-async", "wgmma", "bulk"):
            self.open[role, "cp.async" if kind == "arrive-async" else kind].append((position, event))
            self._complete_copies(role)
        elif kind.endswith("-done"):
            self._complete(role, kind.removesuffix("-done"), event.number)
        else:
            self._done(role, position)
        return True

    def _touch(self, role: Role, position: int) -> None:
        """Check a step that fills or reads a part. Raises _FailsError."""
        for part, stream, use, begins in self.recorded.touches.get((role, position), ()):
            if part not in self.wanted.parts:
                continue
            if stream.action is Action.READ:
                fill = self.recorded.expected.get((part, stream, use))
                source = self.recorded.protocol.parts[part].fill
                if self.wanted.failure == "unfilled" and fill is not None and self.left[source, fill]:
                    raise _FailsError(self._words("reads", (stream, use), (source, fill), "has filled"))
            elif begins and self.wanted.failure == "overwritten":
                for read, earlier in self.recorded.readers.get((part, use), ()):
                    if self.left[read, earlier]:
                        raise _FailsError(self._words("overwrites", (stream, use), (read, earlier), "has read"))

    def _words(self, does: str, one: tuple[Stream, int], other: tuple[Stream, int], done: str) -> str:
        """Return a failure: what one use does before another use has done what it must."""
        recording, run = self.recorded.recording, self.recorded.index
        here, there = one[0].runs[run][one[1]], other[0].runs[run][other[1]]
        return (
            f"N = {max(one[1], other[1]) + 1} (found with {recording.label}): {recording.place(here.at)} "
            f"({recording.name(one[0].role)}) {does} stage {here.stage} in its iteration {one[1]} before "
            f"{recording.place(there.at)} ({recording.name(other[0].role)}) {done} it in its iteration {other[1]}"
        )

    def _done(self, role: Role, position: int) -> None:
        for touch in self.recorded.touches.get((role, position), ()):
            self.left[touch.stream, touch.use] -= 1

    def _land(self, role: Role, position: int, event: Event) -> None:
        self._done(role, position)
        self.barriers[event.array, event.stage].landed[self.recorded.phase_of[role, position]] += 1
        self._turn(event)

    def _arrive(self, event: Event) -> None:
        barrier = self.barriers[event.array, event.stage]
        barrier.pending -= 1 if self.recorded.protocol.arrays[event.array].named else event.number
        self._turn(event)

    def _turn(self, event: Event) -> None:
        """Complete the phase of a barrier if nothing is missing."""
        key = event.array, event.stage
        barrier = self.barriers[key]
        if barrier.pending <= 0 and barrier.landed[barrier.phase] >= self.recorded.copies[*key, barrier.phase]:
            barrier.phase += 1
            array = self.recorded.protocol.arrays[event.array]
            barrier.pending += self.recorded.arrivals(event.array, array, barrier.phase)

    def _drain(self, role: Role) -> None:
        pipe = self.pipes[role]
        while pipe and not self._is_late(role, pipe[0][0], issued=True):
            position, event = pipe.popleft()
            if event.kind == "commit":
                self._arrive(event)
            else:
                self._done(role, position)

    def _complete_copies(self, role: Role) -> None:
        """Complete the cp.async that an arrival follows, unless one is late."""
        queue = self.open[role, "cp.async"]
        while any(event.kind == "arrive-async" for _, event in queue):
            if self._is_late(role, queue[0][0], issued=True):
                return
            position, event = queue.popleft()
            if event.kind == "arrive-async":
                self._arrive(event)
            else:
                self._done(role, position)

    def _complete(self, role: Role, kind: str, number: int) -> None:
        queue = self.open[role, kind]
        while queue and (queue[0][1].kind == "arrive-async" or queue[0][1].number <= number):
            position, event = queue.popleft()
            if event.kind == "arrive-async":
                self._arrive(event)
            else:
                self._done(role, position)


def search(protocol: Protocol, wanted: Wanted) -> str | None:
    """Return an order of a recording in which a failure happens, in the shortest recording that has one."""
    steps = 0
    order = sorted(range(len(protocol.fitted)), key=lambda index: protocol.fitted[index].length)
    for index in order:
        recorded = _Recorded(protocol, index, protocol.fitted[index])
        for late in _choices(recorded):
            replay = _Replay(recorded, late, wanted)
            try:
                replay.run()
                replay.release()
                replay.run()
            except _FailsError as failure:
                return str(failure)
            if wanted.failure == "deadlock" and (blocked := list(replay.blocked())):
                return _deadlock(replay, blocked)
            steps += replay.steps
            if steps > STEPS:
                return None
    return None


def _choices(recorded: _Recorded) -> Iterator[_Late | None]:
    """Yield what may be late: nothing, then the beginning of each use, then what it issued."""
    yield None
    for role, position in recorded.touches:
        if any(touch.begins for touch in recorded.touches[role, position]):
            yield _Late(role, position, issued=False)
    for role, position in recorded.touches:
        if recorded.recording.warps[role][position].kind in ("copy", "mma", "cp.async"):
            yield _Late(role, position, issued=True)


def _deadlock(replay: _Replay, blocked: Sequence[tuple[Role, Event]]) -> str:
    recording = replay.recorded.recording
    names = []
    for role, event in blocked[:3]:
        barrier = replay.barriers[event.array, event.stage]
        array = replay.recorded.protocol.arrays[event.array]
        names.append(
            f"{recording.place(event.at)} ({recording.name(role)}) waits for phase {event.number} of stage "
            f"{event.stage} of the barriers that line {array.line} initialises, which is in phase {barrier.phase} and "
            f"lacks {barrier.pending} arrivals"
        )
    more = f", and {len(blocked) - 3} more warps wait" if len(blocked) > 3 else ""
    fills = max((len(part.fill.runs[replay.recorded.index]) for part in replay.recorded.protocol.parts), default=0)
    return f"N = {fills} ({recording.label}): {'; '.join(names)}{more}; no warp can go on"
