"""Modelled times: a recording replayed on the constants of a device, under given conditions."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_nvfp4.model.account import Crossing, Segment, critical_path
from pytest_nvfp4.model.barriers import PhaseSpan, phase_spans
from pytest_nvfp4.model.constants import DeviceConstants
from pytest_nvfp4.model.placement import slots_of
from pytest_nvfp4.model.recording import Recording
from pytest_nvfp4.model.replay_machine import Machine
from pytest_nvfp4.model.replay_state import ReplayError
from pytest_nvfp4.model.replay_steps import Costs, steps_of
from pytest_nvfp4.model.sample import Samples, events_of
from pytest_nvfp4.model.servers import L2, LINE, atoms_of

__all__ = ["MOST_EVENTS", "Conditions", "Replay", "ReplayError", "Segment", "replay", "replay_sequence"]

Launch = Literal["stream", "alone", "dependent", "graph", "none"]

MOST_EVENTS = 2_000_000
"""Events up to which all clusters are replayed; a larger launch is replayed by a sample of them."""

_LEAST_BUSY = 0.2
"""Busy share in the whole launch below which a unit is no bound: the steady part is then next to nothing."""
_LIMITING = 0.8
"""Busy share from which a unit is called the bound."""
_BOUNDS = ("TMA load", "TMA store", "tensor core", "tensor memory", "shared memory", "issue slots", "L2", "DRAM")


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a launch is timed.

    Attributes:
        cold_l2: Whether L2 holds nothing of the launch's memory; else the same launch ran just before.
        launch: How launches follow each other: in a stream, with programmatic dependent launch, in a graph, alone
            between two events (a call's own launches in a stream, or dependent as they were made), or at once.
        clock_ghz: Clock of the SMs; None for the device's.
        dram_tb_s: Rate of DRAM; None for the device's.
        ctas_per_sm: Resident CTAs an SM; None for the recording's.
    """

    cold_l2: bool = True
    launch: Launch = "stream"
    clock_ghz: float | None = None
    dram_tb_s: float | None = None
    ctas_per_sm: int | None = None

    @staticmethod
    def gpumode() -> Conditions:
        """Return GPU MODE's: a cold L2, launches in a stream, and the DRAM of its B200.

        It reads 5,914.8 GB/s at most (gau-nernst, gpu-mode-kernels, nvidia/README.md).
        """
        return Conditions(cold_l2=True, launch="stream", dram_tb_s=5.9148)


@dataclass(frozen=True, slots=True)
class Passed:
    """A mark that a warp passed.

    Attributes:
        cluster: Number of the cluster in the grid; ``cta`` is the rank in it.
        at_ns: Time since the start of the first launch.
        mark: Index into ``Recording.marks``.
    """

    cluster: int
    cta: int
    warp: int
    sm: int
    at_ns: float
    mark: int


@dataclass(frozen=True, slots=True)
class Replay:
    """A modelled launch.

    Attributes:
        device: Name of the device table; ``digest`` identifies its values.
        kernel_us: From the start of the first CTA to the end of the last, its writes included.
        launch_us: From the end of the launch before to the start of the first CTA.
        total_us: Time of one launch, with the gap before it.
        busy: Share of the kernel's time that each unit is busy: of the busiest, and in the mean.
        fill_us: Until the first matrix instruction (else the first copy) of the median SM.
        drain_us: From the last matrix instruction of the median SM to the kernel's end.
        tail_us: From the first SM that has nothing more to do to the kernel's end.
        waves: Clusters over slots.
        bound: The unit that limits the steady part, or ``latency``.
        path: The critical path, ranked by time; its parts add up to ``kernel_us``.
        waits: The waits on the critical path, the most frequent first.
        intervals: For a timeline: (unit or role, SM, start, end, site) in ns, if asked for.
        phases: For a timeline: the phases of barriers with their waits, if asked for.
        marks: What the author named, as warps passed it, each warp's in order.
        notes: What the figures do not include.
    """

    kernel: str
    device: str
    digest: str
    kernel_us: float
    launch_us: float
    total_us: float
    busy: dict[str, tuple[float, float]]
    fill_us: float
    drain_us: float
    tail_us: float
    waves: float
    bound: str
    path: tuple[Segment, ...]
    waits: tuple[Crossing, ...]
    intervals: tuple[tuple[str, int, float, float, str], ...] = ()
    phases: tuple[PhaseSpan, ...] = ()
    marks: tuple[Passed, ...] = ()
    notes: tuple[str, ...] = ()


def replay(
    recording: Recording,
    device: DeviceConstants,
    *,
    conditions: Conditions = Conditions(),
    timeline: bool = False,
    samples: Samples | None = None,
    most_events: int | None = None,
) -> Replay:
    """Return the modelled time of one launch; for the arguments see ``replay_sequence``.

    Raises ReplayError if the recording is refused, or cannot run to its end.
    """
    replays = replay_sequence(
        (recording,), device, conditions=conditions, timeline=timeline, samples=samples, most_events=most_events
    )
    return replays[0]


def replay_sequence(
    recordings: Sequence[Recording],
    device: DeviceConstants,
    *,
    conditions: Conditions = Conditions(),
    timeline: bool = False,
    samples: Samples | None = None,
    most_events: int | None = None,
) -> list[Replay]:
    """Return the modelled times of launches that follow each other in a stream.

    A programmatic dependent launch starts as its predecessor's CTAs leave their SMs, once all of them have allowed it.
    Memory of different launches is taken to be different: L2 is as ``Conditions.cold_l2`` says for each.

    Args:
        samples: Samples that several replays of the same recordings share.
        most_events: Events up to which all clusters of a launch are replayed; None for ``MOST_EVENTS``.

    Raises ReplayError if a recording is refused, or cannot run to its end.
    """
    replays: list[Replay] = []
    samples = samples or Samples()
    most = MOST_EVENTS if most_events is None else most_events
    before: Machine | None = None
    for recording in recordings:
        machine = _machine(recording, device, conditions, samples, most, timeline=timeline)
        if not conditions.cold_l2:
            machine.run()
            l2 = machine.l2
            machine = _machine(recording, device, conditions, samples, most, timeline=timeline)
            machine.l2 = l2
        if before is None or not (recording.dependent and conditions.launch in ("dependent", "alone")):
            start = 0.0 if before is None else before.end + _launch_ns(device, conditions, first=False)
            machine.run(start, before.end if before else 0.0)
        else:
            opened = before.trigger
            same = len(before.ends) == len(machine.slots.sms)
            free = before.ends if same else [max(before.ends)] * len(machine.slots.sms)
            machine.run([max(end, opened) for end in free], before.end)
        replays.append(_result(machine, device, conditions, before))
        before = machine
    return replays


def _launch_ns(device: DeviceConstants, conditions: Conditions, *, first: bool) -> float:
    if conditions.launch == "alone" and not first:
        return device["launch"]
    names = {"stream": "launch", "dependent": "launch_dependent", "graph": "launch_graph", "alone": "launch_alone"}
    return device[names[conditions.launch]] if conditions.launch in names else 0.0


def _machine(
    recording: Recording,
    device: DeviceConstants,
    conditions: Conditions,
    samples: Samples,
    most: int,
    *,
    timeline: bool,
) -> Machine:
    if recording.refused:
        raise ReplayError(f"{recording.kernel}: no time can be modelled: {'; '.join(recording.refused)}")
    if not recording.clusters:
        raise ReplayError(f"{recording.kernel}: the recording has no clusters")
    costs = Costs.of(device, conditions.clock_ghz or device["clock"], conditions.dram_tb_s or device["dram"])
    slots = slots_of(recording, device, ctas_per_sm=conditions.ctas_per_sm)
    traffic = None
    events = events_of(recording)
    # Clusters that wait for each other are replayed all: those of a sample would wait for others.
    if events > most and slots.groups > 1 and not recording.cells:
        chosen = max(2, slots.groups * most // events)
        recording, traffic, slots = samples.of(
            recording, slots, chosen, device["l2_capacity"] * 1e6, device["dram_written"]
        )
    atoms, sets = atoms_of(recording.footprints) if traffic is None else ([], 0)
    return Machine(
        recording=recording,
        costs=costs,
        programs=steps_of(recording, device, costs),
        slots=slots,
        traffic=traffic,
        atoms=atoms,
        l2=L2(sets, device["l2_capacity"] * 1e6 / LINE, device["dram_written"]),
        cta_start=device["cta_start"],
        timeline=[] if timeline else None,
    )


def _result(machine: Machine, device: DeviceConstants, conditions: Conditions, before: Machine | None) -> Replay:
    recording = machine.recording
    start = machine.started if before is None else max(machine.started, before.end)
    kernel = machine.end - machine.started
    launch = _launch_ns(device, conditions, first=True) if before is None else max(0.0, machine.started - before.end)
    scale = machine.traffic.scale if machine.traffic else 1.0
    sms = int(device["sms"]) / scale
    sampled = f"replayed: {len(recording.clusters)} clusters, each for {scale:.3g}"
    busy = {
        unit: (max(values.values()) / kernel, sum(values.values()) / sms / kernel)
        for unit, values in machine.busy.items()
        if max(values.values(), default=0.0) > 0
    }
    for unit, spent in (("L2", machine.l2_busy), ("DRAM", machine.dram_busy)):
        if spent:
            busy[unit] = (spent / kernel, spent / kernel)
    fill = statistics.median(machine.first_use.values()) - machine.started if machine.first_use else 0.0
    drain = machine.end - statistics.median(machine.last_use.values()) if machine.last_use else 0.0
    used = min(len(machine.ends), len(recording.clusters))
    # The time in which each unit can be busy: that of the matrix instructions, or from the first copy on.
    multiplies = max(kernel - fill - drain, 0.05 * kernel)
    copies = max(machine.end - machine.first_load, 0.05 * kernel)
    shares = {
        unit: values[0] * kernel / (multiplies if unit == "tensor core" else copies)
        for unit, values in busy.items()
        if unit in _BOUNDS
    }
    unit = max(shares, key=lambda name: shares[name], default="latency")
    intervals = tuple(
        (name, sm, begin, end, recording.sites[site].source if site >= 0 else "")
        for name, sm, begin, end, site in machine.timeline or ()
    )
    path, waits = critical_path(machine)
    return Replay(
        kernel=recording.kernel,
        device=device.name,
        digest=device.digest,
        kernel_us=kernel / 1e3,
        launch_us=launch / 1e3,
        total_us=(machine.end - start + launch) / 1e3,
        busy=busy,
        fill_us=fill / 1e3,
        drain_us=drain / 1e3,
        tail_us=(machine.end - min(sorted(machine.ends, reverse=True)[:used])) / 1e3,
        waves=len(recording.clusters) / len(machine.slots.sms),
        bound=unit if shares.get(unit, 0.0) >= _LIMITING and busy[unit][0] >= _LEAST_BUSY else "latency",
        path=path,
        waits=waits,
        intervals=intervals,
        phases=() if machine.timeline is None else tuple(phase_spans(machine)),
        marks=tuple(
            Passed(recording.clusters[w.cluster.number].index, w.cta, w.warp.index, w.sm, at, mark)
            for w, at, mark in machine.marks
        ),
        notes=recording.notes if machine.traffic is None else (*recording.notes, sampled),
    )
