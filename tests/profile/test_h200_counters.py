"""Counted beside measured on an H200, for all shipped Hopper kernels: what is exact in principle is equal.

``data/h200_counters.json`` has the counters of ncu (*measured on an H200*) and of the simulator, of the same calls.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.device.result import SimulatedLaunch
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.simulate import simulate
from pytest_nvfp4.profile.counted import ComparedLaunch, compare_launch
from pytest_nvfp4.profile.result import Metric, ProfiledLaunch
from pytest_nvfp4.profile.shared_counters import SHARED_COUNTERS
from tests.contracts.own import own_cases, own_kernel

KERNELS = Path(__file__).parents[2] / "kernels"
SNAPSHOT = Path(__file__).parent / "data" / "h200_cost.txt"
LAUNCHES = json.loads((Path(__file__).parent / "data" / "h200_counters.json").read_text())["launches"]
GEMM = "nvfp4_group_gemm"
MOVED = {
    (GEMM, "dequantise"): ("shared.loads", "shared.load_wavefronts"),
    (GEMM, "group"): ("global.loads", "global.load_sectors"),
    ("older_group_gemm", "group"): ("global.loads", "global.load_sectors"),
}
"""Counters of loads that ptxas has moved behind a branch. The older GEMM is one that copied scales by ``cp.async``."""


def measured(entry: dict[str, Any]) -> ProfiledLaunch:
    """The measured launch of an entry."""
    fields = entry["measured"]
    counters = {name: Metric.of(value) for name, value in fields["counters"].items()}
    return ProfiledLaunch.model_validate({**fields, "counters": counters})


def compared(entry: dict[str, Any]) -> ComparedLaunch:
    """An entry's two sides."""
    return compare_launch(SimulatedLaunch.model_validate(entry["simulated"]), measured(entry), "sm_90")


def label(entry: dict[str, Any]) -> str:
    """Name of an entry in test ids."""
    return f"{entry['kernel']}-{entry['on']}-{entry['measured']['name'].split('_')[2]}"


@pytest.mark.parametrize("entry", LAUNCHES, ids=label)
def test_what_is_exact_is_equal(entry):
    launch = compared(entry)
    assert launch.because == ""
    assert launch.differing == ()
    moved = [one for one in launch.comparisons if one.verdict == "recompiled"]
    part = entry["measured"]["name"].split("_")[2]
    assert tuple(one.counter.name for one in moved) == MOVED.get((entry["kernel"], part), ())
    assert all(one.difference < 0 for one in moved)
    if part == "group":  # each CTA executes as many fewer
        fewer = 1 if entry["kernel"] == GEMM else 7
        assert {one.difference for one in moved} == {-fewer * entry["simulated"]["grid"][0]}
    equal = [one.counter.name for one in launch.comparisons if one.verdict == "equal"]
    assert {"ctas", "warps"} < set(equal)
    assert len(equal) >= 6


def test_every_counter_that_is_called_equal_was_compared():
    verdicts = Counter((one.counter.name, one.verdict) for entry in LAUNCHES for one in compared(entry).comparisons)
    called = {counter.name for counter in SHARED_COUNTERS if "sm_90" in counter.seen}
    assert {name for name, verdict in verdicts if verdict == "equal"} == called
    # Rows of 272 bytes: an H200 reads more sectors than they have.
    assert verdicts["tma.load_bytes", "unknown"] == 1


@pytest.mark.parametrize("entry", LAUNCHES, ids=label)
def test_a_counter_that_is_one_off_is_found(entry):
    simulated = entry["simulated"]
    for name in ("tma.load.requests", "bulk.load.requests", "wgmma.instructions", "global.store.sectors"):
        if simulated["counters"].get(name):
            wrong = simulated["counters"] | {name: simulated["counters"][name] + 1}
            assert compared({**entry, "simulated": simulated | {"counters": wrong}}).differing


def test_the_snapshot_of_costs_has_the_measured_counts():
    """What ``cost`` says of the grouped GEMM is what an H200 counts: both of the version that was measured last."""
    facts = dict(line.split("  ", 1) for line in SNAPSHOT.read_text().splitlines() if line.startswith("launch."))
    for number, entry in enumerate(
        entry for entry in LAUNCHES if (entry["kernel"], entry["on"]) == (GEMM, "gpumode-0")
    ):
        stored = {
            name.removeprefix(f"launch.{number}."): int(value)
            for name, value in facts.items()
            if name.startswith(f"launch.{number}.") and value.isdigit()
        }
        counters = {name: stored.get(name, 0) for name in entry["simulated"]["counters"] if name != "ctas"}
        simulated = entry["simulated"] | {"counters": counters}
        assert compared({**entry, "simulated": simulated}).differing == ()
        assert counters["global.store.sectors"]


@pytest.mark.slow
def test_the_simulator_still_counts_what_was_measured(tmp_path: Path) -> None:
    """The first two entries of a kernel are those of its contract's problems."""
    pytest.importorskip("cutlass")
    name = "copy_transpose"
    spec, base = own_kernel(KERNELS / name / "sm90.py", "transpose_into", arch="sm_90a")
    cases = own_cases(f"{KERNELS / name / 'contract.py'}::CopyTranspose")
    done = simulate(SimDevice(arch="sm_90a"), spec, cases, folder=tmp_path, base=base)
    launches = [launch for one in done if one.call is not None for launch in one.call.launches]
    entries = [entry for entry in LAUNCHES if entry["kernel"] == name][:2]
    for launch, entry in zip(launches, entries, strict=True):
        found = compare_launch(launch, measured(entry), "sm_90")
        assert found.because == ""
        assert found.differing == ()
        assert sum(one.verdict == "equal" for one in found.comparisons) >= 6
