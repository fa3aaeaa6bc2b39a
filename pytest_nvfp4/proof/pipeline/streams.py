"""Streams: the uses that one warp makes of one ring, numbered in program order.

A stream has one *use* for each stage that it passes: a wait for it, a signal at its barrier, the copies or stores that
fill it, the reads of it. Use n of a stream is at stage (n + shift) mod S; use n of a wait waits for phase
floor(n / S) + phase of its barrier. A stream whose recorded uses are anything else does not fit, and its `problem` says
which use of which line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from pytest_nvfp4.proof.pipeline.recording import Array, Event, Recording, Role


class Action(StrEnum):
    """What the uses of a stream do."""

    WAIT = "waits for"
    SIGNAL = "signals"
    FILL = "fills"
    READ = "reads"


class Completion(StrEnum):
    """When a use of a stream is complete."""

    OWN = "at its last instruction, or at the wait for its group"
    PIPE = "in the order of the tensor core's pipe, which a commit follows"
    COPY = "before its bytes complete the phase of its barrier"
    CP_ASYNC = "before a later cp.async.mbarrier.arrive of the warp"


class Use(NamedTuple):
    """One use: its stage, and positions in the warp's events.

    Attributes:
        stage: Stage of the barrier or of the memory.
        number: Phase of a wait, arrivals of a signal.
        first, last: Positions of its first and last event.
        done: Position at which it is complete; None if no position of the warp shows that.
        at: Its first instruction.
    """

    stage: int
    number: int
    first: int
    last: int
    done: int | None
    at: int


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """The uses that a warp makes of an array of barriers or of the memory of a ring.

    Attributes:
        array: The array waited for or signalled; of a fill or a read, the array that says the ring is full.
        stages: Number of stages.
        completion: When a use is complete.
        runs: The uses in each recording.
        kind: Kind of the events that fill or read memory; empty for waits and signals.
        shift, phase: See the module.
        problem: Why the recordings do not fit; empty if they do.
    """

    role: Role
    action: Action
    array: int
    stages: int
    completion: Completion
    runs: tuple[tuple[Use, ...], ...]
    kind: str = ""
    shift: int = 0
    phase: int = 0
    problem: str = ""

    @property
    def at(self) -> int:
        """Instruction of the last recorded use: prologues are rare in it."""
        return max((run[-1] for run in self.runs if run), key=lambda use: use.last).at

    @property
    def is_wait(self) -> bool:
        """Whether its uses are waits."""
        return self.action is Action.WAIT

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of uses in each recording."""
        return tuple(map(len, self.runs))


def uses_of(
    events: Sequence[Event],
    select: Callable[[Event], int | None],
    *,
    splits_at_waits: bool,
    done: Callable[[int, Event], int | None],
    split: Callable[[Event], bool] = lambda _: False,
) -> tuple[Use, ...]:
    """Return the uses among a warp's events: runs of selected events at one stage.

    Args:
        events: The warp's events.
        select: Returns the stage of an event of the stream, None for others.
        splits_at_waits: Whether a wait ends a use, which a ring of one stage needs.
        done: Returns the position at which an event is complete.
        split: Returns whether an event ends a use.
    """
    found: list[Use] = []
    open_use = False
    for position, event in enumerate(events):
        stage = select(event)
        if stage is None:
            open_use &= not ((splits_at_waits and event.kind == "wait") or split(event))
            continue
        number = event.number if event.kind in ("arrive", "arrive-async", "commit") else 0
        complete = done(position, event)
        previous = found[-1] if found and open_use and found[-1].stage == stage else None
        if previous is None:
            found.append(Use(stage, number, position, position, complete, event.at))
        else:
            done_at = None if complete is None or previous.done is None else max(previous.done, complete)
            found[-1] = previous._replace(number=previous.number + number, last=position, done=done_at)
        open_use = True
    return tuple(found)


def at_once(position: int, event: Event) -> int:
    """Return the position of an event, which is complete there."""
    del event
    return position


def never(position: int, event: Event) -> None:
    """Return None: no position of the warp shows that the event is complete."""
    del position, event


def group_done(events: Sequence[Event], kind: str) -> Callable[[int, Event], int | None]:
    """Return a function from an operation of a kind to the position at which its group is complete."""
    waits = [(position, event.number) for position, event in enumerate(events) if event.kind == f"{kind}-done"]

    def done(position: int, event: Event) -> int | None:
        return next((at for at, number in waits if at > position and number >= event.number), None)

    return done


def barrier_streams(recordings: Sequence[Recording], arrays: Sequence[Array]) -> list[Stream]:
    """Return the waits and signals of all warps."""
    found: list[Stream] = []
    roles = sorted({role for recording in recordings for role in recording.warps})
    for role in roles:
        events = [recording.warps.get(role, ()) for recording in recordings]
        used = sorted({(e.array, how) for each in events for e in each if e.array >= 0 and (how := signal_of(e))})
        for index, completion in used:
            array = arrays[index]
            waits, own = completion == "wait", completion == Completion.OWN

            def select(event: Event, index: int = index, completion: str = completion) -> int | None:
                return event.stage if event.array == index and signal_of(event) == completion else None

            runs = tuple(
                _distinct(each, index)
                if waits
                else uses_of(each, select, splits_at_waits=array.stages == 1, done=at_once if own else never)
                for each in events
            )
            action = Action.WAIT if waits else Action.SIGNAL
            how = Completion.OWN if waits else Completion(completion)
            found.append(fitted(Stream(role, action, index, array.stages, how, runs), recordings, named=array.named))
    return found


def signal_of(event: Event) -> str | None:
    """Return ``wait``, or the completion of a signal; None for another event."""
    match event.kind:
        case "wait":
            return "wait"
        case "arrive":
            return Completion.OWN
        case "commit":
            return Completion.PIPE
        case "arrive-async":
            return Completion.CP_ASYNC
        case "copy":
            return Completion.COPY
    return None


def _distinct(events: Sequence[Event], array: int) -> tuple[Use, ...]:
    """Return the waits for an array without those for a phase that the warp has seen complete."""
    found: list[Use] = []
    for position, event in enumerate(events):
        if (event.kind, event.array) != ("wait", array):
            continue
        if not found or (found[-1].stage, found[-1].number) != (event.stage, event.number):
            found.append(Use(event.stage, event.number, position, position, position, event.at))
    return tuple(found)


def fitted(stream: Stream, recordings: Sequence[Recording], *, named: bool = False) -> Stream:
    """Return the stream with its shift and phase, or with the problem that prevents them.

    The uses of a signal of a ``named`` barrier are numbered by rounds.
    """
    longest = max(stream.runs, key=len)
    if not longest:
        return stream
    shift = longest[0].stage
    phase = longest[0].number if stream.action is Action.WAIT else 0
    amount = longest[0].number
    for recording, run in zip(recordings, stream.runs, strict=True):
        for number, use in enumerate(run):
            where = f"{recording.place(use.at)} ({recording.name(stream.role)}, {recording.label})"
            stage = (number + shift) % stream.stages
            if use.stage != stage:
                problem = f"use {number} of {where} is at stage {use.stage}, and stages in turn would give {stage}"
            elif stream.action is Action.WAIT and use.number != number // stream.stages + phase:
                problem = (
                    f"use {number} of {where} passed at phase {use.number} of its barrier, and one phase for each "
                    f"round of {stream.stages} stages would give {number // stream.stages + phase}"
                )
            elif stream.action is Action.SIGNAL and named:
                if use.number == number:
                    continue
                problem = f"use {number} of {where} is in round {use.number} of the barrier"
            elif stream.action is Action.SIGNAL and use.number != amount:
                problem = f"use {number} of {where} makes {use.number} arrivals, and use 0 makes {amount}"
            else:
                continue
            return replace(stream, shift=shift, phase=phase, problem=problem)
    return replace(stream, shift=shift, phase=phase)
