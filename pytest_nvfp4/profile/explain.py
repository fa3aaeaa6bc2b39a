"""A profile explained: what limits each launch, and, beside a simulation of the same call, what was counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_nvfp4.device.modelled import CONDITIONS, conditions_of, device_for, recordings_of, replayed_call
from pytest_nvfp4.device.result import SimulatedCall
from pytest_nvfp4.device.simulate import SimulationResult
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.model.constants import ConstantsError
from pytest_nvfp4.model.replay import ReplayError
from pytest_nvfp4.model.sample import Samples
from pytest_nvfp4.model.what_if import what_if
from pytest_nvfp4.profile.analysis import Analysis, ModelledGains, analyse
from pytest_nvfp4.profile.counted import ComparedLaunch, compare_call
from pytest_nvfp4.profile.result import Profile
from pytest_nvfp4.profile.shared_counters import chip_of

_BETWEEN = ("dependent", "launch")
"""Questions about the time between kernels, which the time of a kernel in a profile does not have."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """A call of the profiled kernel in the simulator.

    Attributes:
        call: Its launches with their counters.
        capability: Compute capability of the simulated device.
        gains: What the time model says of its launches, by their number; empty if nothing is modelled.
        notes: Why something is missing.
    """

    call: SimulatedCall
    capability: tuple[int, int]
    gains: Mapping[int, ModelledGains] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a profile shows.

    Attributes:
        analyses: What limits each launch, in the order of the profile.
        compared: The launches that were simulated too, counted beside measured.
        notes: Why something was not compared or modelled.
    """

    analyses: tuple[Analysis, ...]
    compared: tuple[ComparedLaunch, ...] = ()
    notes: tuple[str, ...] = ()


def explain(profile: Profile, simulated: Simulated | None = None) -> Explanation:
    """Explain a profile, whoever made it; with a simulation of the same call, compare counters and model gains."""
    sms = None if profile.device is None else profile.device.sms
    if simulated is None:
        return Explanation(tuple(analyse(launch, sms=sms) for launch in profile.launches))
    notes = list(simulated.notes)
    measured_on = None if profile.device is None else profile.device.capability
    capability = measured_on or simulated.capability
    chip = chip_of(capability)
    compared: Sequence[ComparedLaunch] = ()
    if capability[0] != simulated.capability[0]:
        notes.append(
            f"not compared: measured on sm_{capability[0]}{capability[1]}, simulated for "
            f"sm_{simulated.capability[0]}{simulated.capability[1]}"
        )
    elif chip is None:
        notes.append(f"not compared: the counters of sm_{capability[0]}{capability[1]} are not known")
    else:
        compared = compare_call(simulated.call, profile.launches, chip)
        if profile.launches and not compared:
            names = ", ".join(dict.fromkeys(launch.kernel[:60] for launch in simulated.call.launches))
            notes.append(f"not compared: no launch of the profile is of a simulated kernel ({names})")
    numbers = {id(one.measured): one.number for one in compared if not one.because}
    analyses = []
    for launch in profile.launches:
        number = numbers.get(id(launch))
        gains = None if number is None else simulated.gains.get(number)
        analyses.append(analyse(launch, sms=sms, modelled=gains))
    return Explanation(tuple(analyses), tuple(compared), tuple(notes))


def simulated_call(done: SimulationResult, arch: str) -> Simulated | None:
    """Return a simulation for ``explain``; None if the call reached no launch.

    Gains are modelled if the simulation was recorded, under GPU MODE's conditions, as shares of the kernel's time; for
    a shorter gap between launches, as shares of the time with the gap.
    """
    from pytest_nvfp4.driver.device_model import for_arch

    if done.call is None:
        return None
    capability = for_arch(arch).capability
    try:
        gains, notes = _gains(done, arch)
    except (ConstantsError, ReplayError, DoorError) as error:
        gains, notes = {}, (f"no gain is modelled: {error}",)
    return Simulated(done.call, capability, gains, notes)


def _gains(done: SimulationResult, arch: str) -> tuple[dict[int, ModelledGains], tuple[str, ...]]:
    recordings = recordings_of(done)
    if not recordings:
        return {}, ()
    device = device_for(arch)
    conditions = conditions_of(next(iter(CONDITIONS)), device)
    samples = Samples()
    call, replays = replayed_call(recordings, device, conditions, samples)
    if call.refused:
        return {}, (f"no gain is modelled: {call.refused[0]}",)
    gains = {}
    for number, (recording, base, launch) in enumerate(zip(recordings, replays, call.launches, strict=True)):
        answers = what_if(recording, device, base, conditions=conditions, samples=samples)
        gains[number] = ModelledGains(
            launch,
            {
                answer.name: answer.change if answer.name in _BETWEEN else answer.kernel_change
                for answer in answers
                if answer.replay is not None
            },
            {answer.name: answer.refused or answer.provided for answer in answers if answer.refused or answer.provided},
        )
    return gains, ()
