"""What-if questions, answered by a replay with other constants, other conditions, or a changed recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from pytest_nvfp4.model.constants import DeviceConstants
from pytest_nvfp4.model.occupancy import most_registers, obstacles
from pytest_nvfp4.model.recording import Does, Program, Recording, Unit, WarpEvents
from pytest_nvfp4.model.replay import Conditions, Replay, replay, replay_sequence
from pytest_nvfp4.model.sample import Samples, events_of

__all__ = ["MOST_EVENTS", "QUESTIONS", "WhatIf", "one_more_stage", "what_if"]

MOST_EVENTS = 400_000
"""Events up to which a question is answered by replays of all clusters; of a larger launch, by replays of a sample."""
_FREE = 1e9
"""A rate without limit."""

Situation = tuple[Recording, DeviceConstants, Conditions]


class ImpossibleError(ValueError):
    """A change that the device cannot make; the message says why."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """An answer.

    Attributes:
        name: Key of ``QUESTIONS``.
        question: What is changed.
        replay: The modelled launch with this change, or a sample of its clusters; None if the change is not possible.
        change: Relative change of ``total_us``; -0.1 is 10 % faster, and 0 if the change is not possible. Both times
            are of the same sample, if any.
        kernel_change: The same of ``kernel_us``, which has no gap between launches; 0 if the launch overlaps another.
        refused: Why the change is not possible; else empty.
        provided: What must hold for it that a recording does not show; may be empty.
    """

    name: str
    question: str
    replay: Replay | None
    change: float
    kernel_change: float = 0.0
    refused: str = ""
    provided: str = ""


def _perfect_l2(recording: Recording, device: DeviceConstants, conditions: Conditions) -> Situation:
    return recording, device.changed(dram=_FREE, dram_latency=0.0), replace(conditions, dram_tb_s=None)


def _twice_the_dram(recording: Recording, device: DeviceConstants, conditions: Conditions) -> Situation:
    rate = conditions.dram_tb_s
    doubled = None if rate is None else 2 * rate
    return recording, device.changed(dram=2 * device["dram"]), replace(conditions, dram_tb_s=doubled)


def _two_ctas(recording: Recording, device: DeviceConstants, conditions: Conditions) -> Situation | None:
    resident = conditions.ctas_per_sm or recording.ctas_per_sm
    slots = device.clusters(int(np.prod(recording.cluster)))
    if resident > 1 or len(recording.clusters) <= slots:
        return None  # without a second wave, nothing would share an SM
    if reasons := obstacles(recording, 2):
        raise ImpossibleError("; ".join(reasons))
    return recording, device, replace(conditions, ctas_per_sm=2)


def _no_launch(recording: Recording, device: DeviceConstants, conditions: Conditions) -> Situation:
    return recording, device, replace(conditions, launch="none")


def _dependent_launch(recording: Recording, device: DeviceConstants, conditions: Conditions) -> Situation | None:
    return None if conditions.launch != "stream" else (recording, device, replace(conditions, launch="dependent"))


def _no_map_updates(recording: Recording, device: DeviceConstants, conditions: Conditions) -> Situation | None:
    if not any((program.operations["unit"] == Unit.MAP_CHANGE).any() for program in recording.programs):
        return None
    programs = tuple(_without_maps(program) for program in recording.programs)
    return replace(recording, programs=programs), device, conditions


def _one_more_stage(recording: Recording, device: DeviceConstants, conditions: Conditions) -> Situation | None:
    programs = tuple(one_more_stage(program) for program in recording.programs)
    if any(program is None for program in programs):
        return None
    return replace(recording, programs=tuple(program for program in programs if program)), device, conditions


QUESTIONS: dict[str, tuple[str, Callable[[Recording, DeviceConstants, Conditions], Situation | None]]] = {
    "stage": ("one more stage in the ring of copies", _one_more_stage),
    "maps": ("no changes of tensor maps", _no_map_updates),
    "l2": ("every access hits L2", _perfect_l2),
    "dram": ("twice the rate of DRAM", _twice_the_dram),
    "occupancy": ("two CTAs an SM", _two_ctas),
    "dependent": ("programmatic dependent launch", _dependent_launch),
    "launch": ("launches without a gap", _no_launch),
}
"""Name -> what is changed, and how. A change that does not apply to a recording has no answer."""


def what_if(
    recording: Recording,
    device: DeviceConstants,
    base: Replay,
    *,
    conditions: Conditions = Conditions(),  # noqa: B008
    samples: Samples | None = None,
    whole_call: bool = False,
) -> tuple[WhatIf, ...]:
    """Return the answers that apply to a recording, the largest gain first.

    Args:
        base: The replay of the recording.
        samples: See ``replay``.
        whole_call: Whether a call is this launch alone. In a loop of calls a programmatic dependent launch then
            overlaps with one like it, and is replayed behind one.

    Raises ReplayError if a changed recording cannot run to its end.
    """
    answers = []
    samples = samples or Samples()
    if events_of(recording) > MOST_EVENTS:
        base = replay(recording, device, conditions=conditions, samples=samples, most_events=MOST_EVENTS)
    for name, (question, make) in QUESTIONS.items():
        try:
            situation = make(recording, device, conditions)
        except ImpossibleError as error:
            answers.append(WhatIf(name, question, None, 0.0, refused=str(error)))
            continue
        if situation is not None:
            changed, other, under = situation
            behind = whole_call and changed.dependent and under.launch == "dependent"
            launches = [changed] * (2 if behind else 1)
            *_, result = replay_sequence(launches, other, conditions=under, samples=samples, most_events=MOST_EVENTS)
            registers = most_registers(recording, 2) if name == "occupancy" else None
            provided = "" if registers is None else f"if a thread has at most {registers} registers"
            kernel_change = 0.0 if behind else result.kernel_us / base.kernel_us - 1
            if behind:
                provided = "right behind a call like it"
            change = result.total_us / base.total_us - 1
            answers.append(WhatIf(name, question, result, change, kernel_change, provided=provided))
    return tuple(sorted(answers, key=lambda answer: (answer.change, answer.name)))


def _without_maps(program: Program) -> Program:
    """Return a program whose warps neither change tensor maps nor acquire changed ones.

    Waits for these operations stay: their phases need the signals no more.
    """
    units = program.operations["unit"]
    dropped = np.isin(units, (Unit.MAP_CHANGE, Unit.MAP_ACQUIRE))
    phases = program.phases.copy()
    for number in np.flatnonzero(dropped):
        for column in ("done", "read"):
            signals = int(program.operations[column][number])
            if signals >= 0:
                for phase in program.signals[signals]:
                    phases[phase] -= 1
    warps = []
    for warp in program.warps:
        issued = warp.events["does"] == Does.ISSUE
        gone = np.zeros(len(warp.events), bool)
        gone[issued] = dropped[warp.events["item"][issued]]
        warps.append(replace(warp, events=warp.events[~gone]))
    return replace(program, warps=tuple(warps), phases=phases)


def one_more_stage(program: Program) -> Program | None:
    """Return a program whose rings of copies have one stage more; None if it has none.

    A ring is found in what was recorded: waits of one warp at one instruction, each for a phase that is signalled after
    a wait for an earlier copy of the same warp. With one stage more, each of them is the wait of the iteration before,
    and the first is none.
    """
    releases = _releases(program)
    warps = []
    found = False
    for number, warp in enumerate(program.warps):
        events = warp.events
        moved = events.copy()
        gone = np.zeros(len(events), bool)
        waits = events["does"] == Does.WAIT
        for site in np.unique(events["site"][waits]):
            places = np.flatnonzero(waits & (events["site"] == site))
            if all(number in releases.get(int(phase), ()) for phase in events["item"][places]):
                found = True
                moved["item"][places[1:]] = events["item"][places[:-1]]
                gone[places[0]] = True
        warps.append(replace(warp, events=moved[~gone]))
    return replace(program, warps=tuple(warps)) if found else None


def _releases(program: Program) -> dict[int, set[int]]:
    """Return for each phase the warps whose copies were waited for by the warps that signal it."""
    operations = program.operations.tolist()
    copied: dict[int, set[int]] = {}
    for number, warp in enumerate(program.warps):
        for _, _, item in _issues(warp):
            if operations[item][0] == Unit.TMA_LOAD:
                for phase in _signalled(program, operations[item]):
                    copied.setdefault(phase, set()).add(number)
    releases: dict[int, set[int]] = {}
    for warp in program.warps:
        latest: set[int] = set()
        for does, _, _, item in warp.events.tolist():
            if does == Does.WAIT and item in copied:
                latest = copied[item]
            elif does == Does.SIGNAL and item not in copied:
                releases.setdefault(item, set()).update(latest)
            elif does == Does.ISSUE and operations[item][0] in (Unit.COMMIT, Unit.TENSOR, Unit.SHARED_REMOTE):
                for phase in _signalled(program, operations[item]):
                    releases.setdefault(phase, set()).update(latest)
    return releases


def _issues(warp: WarpEvents) -> Iterator[tuple[int, int, int]]:
    for place, (does, _, site, item) in enumerate(warp.events.tolist()):
        if does == Does.ISSUE:
            yield place, site, item


def _signalled(program: Program, operation: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(phase for index in operation[4:6] if index >= 0 for phase in program.signals[index])
