"""Modelled times of the recorded twins, against published times of the kernels whose structure they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from pytest_nvfp4.model.constants import DeviceConstants
from pytest_nvfp4.model.recording import Recording
from pytest_nvfp4.model.replay import Conditions, replay, replay_sequence
from pytest_nvfp4.model.storage import loads
from tests.model.main_loop import MAIN_LOOP_CLOCK, K
from tests.model.record_hopper import path_of
from tests.model.record_twins import GEMM_FIELDS, LONG, LOOP_FIELDS, RECORDINGS, SHORT
from tests.model.tables import rows

__all__ = ["ALONE", "Point", "gemms", "grouped", "hopper", "loops"]

GEMM_CLOCK = 1.3
"""GHz, locked (hbarclay/gemm-model)."""
GEMM_HARNESS_US = 5.7
"""What that study's harness adds to a kernel, in the median of the recorded points of the set ``fit``."""
GEMM_FLOOR_US = 23.5
"""Its loop is bound by the host below this time, for e2m1."""

Point = tuple[str, float, float]
"""Name, modelled and published time in the same unit."""

FITTED_VERSION = "v6b"
"""The version whose times the start of a CTA was fitted to (``devices/b200.toml``)."""


@lru_cache(maxsize=1)
def recordings(name: str) -> tuple[Recording, ...]:
    """Return the recordings of a point; what is asked of the same point next does not read them again."""
    return tuple(loads((RECORDINGS / f"{name}.npz").read_bytes()))


def grouped(device: DeviceConstants) -> Iterator[Point]:
    """Return the grouped GEMMs, in us a call under GPU MODE's conditions; those of the fitted version, too."""
    for row in rows("group_gemm_b200.csv"):
        name = f"group_{row['version']}_{row['problem']}"
        (recording,) = recordings(name)
        yield name, replay(recording, device, conditions=Conditions.gpumode()).total_us, float(row["us"])


def loops(device: DeviceConstants) -> Iterator[Point]:
    """Return the main loops that nothing was fitted to, in ms.

    Two short ones are recorded, and their rate is that of the rest. Operands below half of L2 stay there from one run
    to the next.
    """
    for row in rows("b200_mainloop.csv"):
        name = "_".join(["loop", *(row[field] for field in LOOP_FIELDS)])
        if row["set"] == "fit" or not (RECORDINGS / f"{name}.npz").exists():
            continue
        n, tile_k, stages = (int(row[field]) for field in LOOP_FIELDS[1:])
        size = (128 + n) * K * (2 if row["dtype"] == "bf16" else 1)
        far = size > device["l2_capacity"] / 2 * 1e6
        conditions = Conditions(clock_ghz=MAIN_LOOP_CLOCK)
        first, second = (
            replay(one if far else near(one), device, conditions=conditions).kernel_us for one in recordings(name)
        )
        rate = (second - first) / ((LONG - SHORT) * stages)
        yield name, (second + (K // tile_k - LONG * stages) * rate) / 1e3, float(row["time_ms"])


ALONE = Conditions(launch="alone")
"""How ``measure_hopper`` measures."""


def hopper(table: str) -> Callable[[DeviceConstants], Iterator[Point]]:
    """Return a function that yields the points of a Hopper table that were held out, in us."""

    def points(device: DeviceConstants) -> Iterator[Point]:
        for number, row in enumerate(rows(f"{table}.csv")):
            if row["split"] == "held":
                name = path_of(table, number).stem
                times = replay_sequence(recordings(name), device, conditions=ALONE)
                yield name, sum(time.total_us for time in times), float(row["measured_us"])

    return points


def near(recording: Recording) -> Recording:
    """Return a recording whose operands are in L2."""
    clusters = tuple(replace(one, footprints=np.full_like(one.footprints, -1)) for one in recording.clusters)
    return replace(recording, clusters=clusters)


def gemms(device: DeviceConstants) -> Iterator[Point]:
    """Return the persistent GEMMs that nothing was fitted to, in us as the study timed them."""
    for row in rows("b200_gemm_open.csv"):
        name = "_".join(["gemm", *(row[field] for field in GEMM_FIELDS)])
        if row["set"] == "fit" or not (RECORDINGS / f"{name}.npz").exists():
            continue
        (recording,) = recordings(name)
        time = replay(recording, device, conditions=Conditions(clock_ghz=GEMM_CLOCK)).kernel_us + GEMM_HARNESS_US
        yield name, max(time, GEMM_FLOOR_US) if row["in_dtype"] == "e2m1" else time, float(row["runtime_us"])
