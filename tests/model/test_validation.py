"""What the guide claims of modelled times holds: each of its rows is computed anew from stored recordings.

A row of the table "How far off" in ``guide/model.md`` is: what was timed, points, median, 90 % and worst error.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from pytest_nvfp4.device.modelled import conditions_text
from pytest_nvfp4.model.bands import bands
from pytest_nvfp4.model.constants import load_device
from pytest_nvfp4.model.recording import Unit
from pytest_nvfp4.model.replay import Conditions, replay
from pytest_nvfp4.model.scope import kind_of
from pytest_nvfp4.model.storage import loads
from tests.model import record_twins, validation
from tests.model.record_hopper import path_of
from tests.model.record_twins import RECORDINGS
from tests.model.recorded_kernels import moved
from tests.model.tables import Errors, rows

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).parents[2] / "pytest_nvfp4" / "guide" / "model.md"
SETS = {"grouped GEMMs": validation.grouped, "main loops": validation.loops, "persistent GEMMs": validation.gemms}
HOPPER = {
    "warp-specialised GEMMs": (validation.hopper("hopper_gemm"), "wgmma GEMM"),
    "problems of the grouped GEMM": (validation.hopper("hopper_group_gemm"), "wgmma GEMM"),
    "transposes": (validation.hopper("hopper_transpose"), "copy"),
}
LEAST_CHANGE = 0.08
"""Published times of two versions that differ by less are not told apart."""


def claimed(what: str) -> Errors:
    """Return what the guide says."""
    number = r"\s*([\d.]+) %\s*\|"
    row = re.search(rf"^\| {what}[^|]*\|\s*(\d+)\s*\|{number}{number}{number}", GUIDE.read_text(), re.MULTILINE)
    assert row is not None, f"the guide has no row for {what}"
    return Errors(int(row[1]), *(float(value) for value in row.groups()[1:]))


@pytest.fixture(scope="module")
def modelled():
    device = load_device("b200")
    return {what: list(points(device)) for what, points in SETS.items()}


@pytest.mark.parametrize("what", SETS)
def test_errors_are_no_worse_than_the_guide_says(what, modelled):
    # What the start of a CTA was fitted to is no evidence.
    held = [point for point in modelled[what] if validation.FITTED_VERSION not in point[0]]
    found, said = Errors.of(time / published for _, time, published in held), claimed(what)
    assert found.points == said.points
    assert round(found.median, 1) <= said.median
    assert round(found.ninety, 1) <= said.ninety
    assert round(found.worst, 1) <= said.worst


@pytest.mark.parametrize(("step", "version"), [("map_parameters", "v1c"), ("persistent", "v2e"), ("pairs", "v5e")])
def test_the_steps_of_the_grouped_gemm_are_those_of_the_guide(step, version, modelled):
    (row,) = re.findall(rf"^\| `{step}` \|[^|]*\|(.*)\|$", GUIDE.read_text(), re.MULTILINE)
    loaded, ctas, times, published = ([float(one) for one in cell.split(",")] for cell in row.split("|"))
    points = [point for point in modelled["grouped GEMMs"] if f"_{version}_" in point[0]]
    (made,) = zip(*(validation.recordings(name) for name, _, _ in points), strict=True)
    assert [round(moved(one) / 1e6, 1) for one in made] == loaded
    assert [one.grid[0] * one.grid[1] * one.grid[2] for one in made] == ctas
    assert [round(time, 1) for _, time, _ in points] == times
    assert [time for *_, time in points] == published


@pytest.mark.slow
@pytest.mark.parametrize("what", HOPPER)
def test_errors_on_an_h200_are_no_worse_than_the_guide_says_and_are_the_bands(what):
    points, kind = HOPPER[what]
    kinds, held = set(), []
    for point in points(load_device("h200")):
        held.append(point)
        kinds.add(kind_of(validation.recordings(point[0])))
    found, said = Errors.of(time / measured for _, time, measured in held), claimed(what)
    assert found.points == said.points
    assert round(found.median, 1) <= said.median
    assert round(found.ninety, 1) <= said.ninety
    assert round(found.worst, 1) <= said.worst
    assert kinds == {kind}
    shortest = min(measured for _, _, measured in held)
    (band,) = (band for band in bands() if (band.device, band.shortest_us) == ("h200", shortest))
    assert (band.kind, band.conditions) == (kind, conditions_text(validation.ALONE))
    assert (band.points, 100 * band.median, 100 * band.p90, 100 * band.worst) == pytest.approx(
        (said.points, said.median, said.ninety, said.worst)
    )


@pytest.mark.parametrize(
    ("what", "kind", "conditions"),
    [
        ("grouped GEMMs", "grouped tcgen05 GEMM", Conditions.gpumode()),
        ("persistent GEMMs", "dense tcgen05 GEMM", Conditions()),
    ],
)
def test_a_band_is_that_of_its_kind(what, kind, conditions, modelled):
    (band,) = (
        band
        for band in bands()
        if (band.device, band.kind, Path(band.test).name) == ("b200", kind, Path(__file__).name)
    )
    assert band.conditions == conditions_text(conditions)
    held = [point for point in modelled[what] if validation.FITTED_VERSION not in point[0]]
    assert band.shortest_us == min(published for _, _, published in held)
    assert {kind_of(validation.recordings(name)) for name, _, _ in held} == {kind}
    said = claimed(what)
    assert (band.points, 100 * band.median, 100 * band.p90, 100 * band.worst) == pytest.approx(
        (said.points, said.median, said.ninety, said.worst)
    )


def test_no_faster_version_is_called_slower(modelled):
    times = {tuple(name.split("_")[1:]): pair for name, *pair in modelled["grouped GEMMs"]}
    pairs = Counter[str]()
    for (version, problem), (other, same) in combinations(times, 2):
        (ours, published), (ours_other, published_other) = times[version, problem], times[other, same]
        if problem == same and abs(published_other / published - 1) > LEAST_CHANGE:
            change = ours_other / ours - 1
            right = (change > 0) == (published_other > published)
            pairs["tie" if abs(change) < LEAST_CHANGE / 2 else "right" if right else "wrong"] += 1
    text = " ".join(GUIDE.read_text().split())
    assert pairs["wrong"] == 0, pairs
    assert f"{pairs['right']} of {pairs.total()}; ties: {pairs['tie']}" in text, pairs


def test_all_points_and_no_others_are_recorded():
    hopper = {
        path_of(table, number).stem
        for table in ("hopper_gemm", "hopper_group_gemm", "hopper_transpose")
        for number, row in enumerate(rows(f"{table}.csv"))
        if row["split"] == "held"
    }
    assert {path.stem for path in RECORDINGS.iterdir()} == {*record_twins.points(), *hopper}


@pytest.mark.skipif(
    not all(importlib.util.find_spec(package) for package in ("cutlass", "torch")), reason="needs the DSL and torch"
)
def test_a_recording_made_anew_is_the_stored_one():
    name = "group_v6b_gpumode-bench-3"
    (new,), (stored,) = loads(record_twins.record(name)), loads((RECORDINGS / f"{name}.npz").read_bytes())

    def work(recording):
        return [Counter(Unit(unit).name for unit in program.operations["unit"]) for program in recording.programs]

    assert work(new) == work(stored)
    assert (new.grid, new.cluster, len(new.footprints)) == (stored.grid, stored.cluster, len(stored.footprints))
    device = load_device("b200")
    times = [replay(one, device, conditions=Conditions.gpumode()).total_us for one in (new, stored)]
    # Another version of the DSL may compile other scalar instructions.
    assert times[0] == pytest.approx(times[1], rel=0.03)


@pytest.mark.parametrize(("name", "value"), [("tma_row", 1.3), ("tma_latency", 600.0)])
def test_a_wrong_constant_is_noticed(name, value):
    points = validation.loops(load_device("b200").changed(**{name: value}))
    assert Errors.of(time / published for _, time, published in points).median > 3 * claimed("main loops").median
