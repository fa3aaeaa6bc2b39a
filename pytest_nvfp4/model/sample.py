"""Large launches: a sample of the resident clusters stands for all of them.

Every n-th SM or group of SMs is replayed with the clusters that it would get in turn. L2 and DRAM serve the sample
``n`` times slower, as each of its clusters stands for ``n``. What a cluster's accesses miss in L2 is counted beforehand
for the clusters of all slots in lockstep: those of one wave are taken to be at the same part of their programs at the
same time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.model.placement import Slots
from pytest_nvfp4.model.recording import Cluster, Footprint, Recording, Unit
from pytest_nvfp4.model.servers import LINE, Traffic, in_lockstep

__all__ = ["events_of", "sample_of"]

_FOLLOWERS = 0.85
"""Share of DRAM's latency that clusters wait for lines which another of their wave has requested. With it, samples
agree with replays of all clusters (tests/model/test_sample.py)."""


def events_of(recording: Recording) -> int:
    """Return how many events a replay of all clusters has."""
    sizes = [sum(len(warp.events) for warp in program.warps) for program in recording.programs]
    return sum(sizes[cluster.program] for cluster in recording.clusters)


def sample_of(recording: Recording, slots: Slots, chosen: int, capacity: float) -> tuple[Recording, Traffic, Slots]:
    """Return the clusters of some slots as a recording, what they move, and their slots.

    Args:
        recording: The whole launch.
        slots: Slots of the device.
        chosen: Groups of SMs of the sample; all slots of these SMs belong to it.
        capacity: Bytes of L2.
    """
    lines_of = np.array([len(footprint.lines) for footprint in recording.footprints], np.float64)
    touched = np.array([footprint.sectors * 32 for footprint in recording.footprints], np.float64)
    share = np.minimum(1.0, touched / np.maximum(lines_of * LINE, 1))
    resident = len(slots.sms)
    missing, back, waits = _missing(recording, resident, capacity / LINE, lines_of)
    used = min(slots.groups, len(recording.clusters))
    groups = set(np.linspace(0, used, min(chosen, used), endpoint=False).astype(int).tolist())
    clusters: list[Cluster] = []
    lines: list[float] = []
    moved: list[float] = []
    delayed: list[float] = []
    for index, cluster in enumerate(recording.clusters):
        if index % resident % slots.groups not in groups:
            continue
        numbers = np.full(len(cluster.footprints), -1, np.int32)
        for slot, number in enumerate(cluster.footprints.tolist()):
            if number >= 0:
                numbers[slot] = len(lines)
                lines.append(float(lines_of[number]))
                delayed.append(float(waits[index][slot]))
                moved.append(float(missing[index][slot] * share[number] + back[index][slot]))
        clusters.append(replace(cluster, footprints=numbers))
    prints = (Footprint(np.zeros(0, np.int32), 0),) * len(lines)
    sample = replace(recording, clusters=tuple(clusters), footprints=prints)
    own = tuple(sms for index, sms in enumerate(slots.sms) if index % slots.groups in groups)
    return sample, Traffic(lines, moved, delayed, used / len(groups)), Slots(own, len(groups))


def _missing(
    recording: Recording, resident: int, capacity: float, sizes: NDArray[np.float64]
) -> list[list[NDArray[np.float64]]]:
    """Return the lines that each slot misses, those written back, and the share that waits, in the mean over a wave."""
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
    ends = np.cumsum(counts)[:-1]
    return [np.split(mean, ends) for mean in means]
