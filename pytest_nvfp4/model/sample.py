"""Large launches: a sample of the resident clusters stands for all of them.

Every n-th SM or group of SMs is replayed with the clusters that it would get in turn. L2 and DRAM serve the sample
``n`` times slower, as each of its clusters stands for ``n``. What a cluster's accesses miss in L2 is counted beforehand
for the clusters of all slots in lockstep: those of one wave are taken to be at the same part of their programs at the
same time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.model.placement import Slots
from pytest_nvfp4.model.recording import Cluster, Footprint, Recording, Unit
from pytest_nvfp4.model.servers import LINE, Traffic, in_lockstep, of_several

__all__ = ["Samples", "events_of"]

_FOLLOWERS = 0.85
"""Share of DRAM's latency that clusters wait for lines which another of their wave has requested. With it, samples
agree with replays of all clusters (tests/model/test_sample.py)."""


def events_of(recording: Recording) -> int:
    """Return how many events a replay of all clusters has."""
    sizes = [sum(len(warp.events) for warp in program.warps) for program in recording.programs]
    return sum(sizes[cluster.program] for cluster in recording.clusters)


class Samples:
    """Samples of launches. What the accesses of a launch miss is counted once for all of its samples.

    It does not depend on what most what-if questions change: rates, latencies, and the events of the programs.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], tuple[Recording, _Moved]] = {}

    def of(
        self, recording: Recording, slots: Slots, chosen: int, capacity: float, written: float = 1.0
    ) -> tuple[Recording, Traffic, Slots]:
        """Return the clusters of some slots as a recording, what they move, and their slots.

        Args:
            recording: The whole launch.
            slots: Slots of the device.
            chosen: Groups of SMs of the sample; all slots of these SMs belong to it.
            capacity: Bytes of L2.
            written: As of ``L2``.
        """
        operations = tuple(program.operations.tobytes() for program in recording.programs)
        key = (id(recording.clusters), id(recording.footprints), operations, len(slots.sms), capacity, written)
        found = self._known.get(key)
        if found is None:
            # The recording is stored as well: an identity is that of an object only as long as it exists.
            found = self._known[key] = (recording, _moved(recording, len(slots.sms), capacity / LINE, written))
        return _sample_of(recording, slots, chosen, found[1])


def _sample_of(recording: Recording, slots: Slots, chosen: int, moved: _Moved) -> tuple[Recording, Traffic, Slots]:
    used = min(slots.groups, len(recording.clusters))
    groups = set(np.linspace(0, used, min(chosen, used), endpoint=False).astype(int).tolist())
    clusters: list[Cluster] = []
    parts: list[NDArray[np.intp]] = []
    count = 0
    for index, cluster in enumerate(recording.clusters):
        if index % len(slots.sms) % slots.groups not in groups:
            continue
        own = np.arange(moved.starts[index], moved.starts[index + 1])[cluster.footprints >= 0]
        numbers = np.full(len(cluster.footprints), -1, np.int32)
        numbers[cluster.footprints >= 0] = np.arange(count, count + len(own))
        count += len(own)
        parts.append(own)
        clusters.append(replace(cluster, footprints=numbers))
    chosen_slots = np.concatenate(parts)
    traffic = Traffic(
        moved.lines[chosen_slots].tolist(),
        moved.missing[chosen_slots].tolist(),
        moved.delayed[chosen_slots].tolist(),
        moved.shared[chosen_slots].tolist(),
        used / len(groups),
    )
    prints = (Footprint(np.zeros(0, np.int32), 0),) * count
    sample = replace(recording, clusters=tuple(clusters), footprints=prints)
    own_slots = tuple(sms for index, sms in enumerate(slots.sms) if index % slots.groups in groups)
    return sample, traffic, Slots(own_slots, len(groups))


@dataclass(frozen=True, slots=True)
class _Moved:
    """What the accesses of all clusters move, in the mean over a wave.

    Attributes:
        starts: By cluster, the first of its slots in the arrays below; then their number.
        lines: By slot, the lines that it touches.
        missing: The lines that it moves from or to DRAM.
        delayed: The share of its clusters that wait for DRAM.
        shared: Whether several clusters touch these lines.
    """

    starts: NDArray[np.int64]
    lines: NDArray[np.float64]
    missing: NDArray[np.float64]
    delayed: NDArray[np.float64]
    shared: NDArray[np.bool_]


def _moved(recording: Recording, resident: int, capacity: float, written: float) -> _Moved:
    # An additional last item for slots without a footprint, whose number is -1.
    sizes = np.array([*(len(footprint.lines) for footprint in recording.footprints), 0], np.float64)
    touched = np.array([*(footprint.sectors * 32 for footprint in recording.footprints), 0], np.float64)
    share = np.minimum(1.0, touched / np.maximum(sizes * LINE, 1))
    stores = (Unit.TMA_STORE, Unit.GLOBAL_STORE)
    writes = []
    for program in recording.programs:
        write = np.zeros(max(program.slots, 1), bool)
        operations = program.operations
        write[operations["slot"][np.isin(operations["unit"], stores) & (operations["slot"] >= 0)]] = True
        writes.append(write)
    numbers = [cluster.footprints for cluster in recording.clusters]
    counts = np.array([len(row) for row in numbers])
    cluster = np.repeat(np.arange(len(numbers)), counts)
    slot = np.concatenate([np.arange(count) for count in counts]) if len(counts) else np.zeros(0, int)
    prints = np.concatenate(numbers).astype(np.int64)
    wave = cluster // resident
    place = slot / np.maximum(counts[cluster], 1)
    order = np.lexsort((cluster, place, wave))
    order = order[prints[order] >= 0]
    write = np.concatenate([writes[item.program][: len(item.footprints)] for item in recording.clusters])
    found, evicted = in_lockstep(prints[order], sizes[prints[order]], write[order], capacity)
    lost, back, waits = (np.zeros(len(prints)) for _ in range(3))
    lost[order], back[order] = np.where(write[order], 0.0, found), evicted
    # Who follows in the same wave finds a line that is still on its way.
    own = np.minimum(lost[order], 1.0)
    _, shared = np.unique(wave[order] * (prints.max(initial=0) + 1) + prints[order], return_inverse=True)
    leader = np.zeros(int(shared.max(initial=0)) + 1)
    np.maximum.at(leader, shared, own)
    waits[order] = own + _FOLLOWERS * (leader[shared] - own)
    programs = np.array([item.program for item in recording.clusters])[cluster]
    # The sample stands for its wave: it moves what the clusters of this wave move in the mean at this slot.
    width = int(slot.max(initial=0)) + 1
    key = (wave * len(recording.programs) + programs) * width + slot
    _, group, members = np.unique(key, return_inverse=True, return_counts=True)
    means = [(np.bincount(group, values) / members)[group] for values in (lost, back, waits)]
    lost, back, waits = means
    starts = np.concatenate([[0], np.cumsum(counts)])
    shared_lines = of_several(recording.clusters, len(recording.footprints))[prints]
    return _Moved(starts, sizes[prints], lost * share[prints] + back * written, waits, shared_lines)
