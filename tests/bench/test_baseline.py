"""Stored rounds: what can be read, and what may be compared with what."""

from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from pytest_nvfp4.bench.baseline import (
    BaselineError,
    IncomparableError,
    against,
    baseline_rounds,
    read_baseline,
)
from pytest_nvfp4.bench.mark import EXTRA_KEY, TIMER_NAME
from pytest_nvfp4.bench.provenance import Aspect, Provenance, ProvenanceError, differences, refusals
from pytest_nvfp4.problem import Problem, parse_shape
from tests.bench.helpers import B200, H200, SMALL, measurement

NODE = "test_k.py::test_it"


def provenance(device=H200, problem=SMALL, **more):
    return Provenance.of(measurement([20.0, 21.0], **more), device=device, problem=problem)


def entry(**changes):
    made = {
        "options": {"timer": TIMER_NAME},
        "extra_info": {EXTRA_KEY: provenance().model_dump(mode="json")},
        "stats": {"data": [20e-6, 21e-6]},
    }
    return made | changes


def read(stored):
    return read_baseline(stored, nodeid=NODE, source="0001_x.json")


def test_what_was_stored_is_read():
    found = read(entry())
    assert found.rounds_us == pytest.approx((20.0, 21.0))
    assert found.provenance == provenance()
    assert (found.nodeid, found.source) == (NODE, "0001_x.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"options": {"timer": "perf_counter"}}, "its timer is 'perf_counter'"),
        ({"options": None}, "is not a device time"),
        ({"extra_info": {}}, "has no provenance"),
        ({"extra_info": None}, "has no provenance"),
        (
            {"extra_info": {EXTRA_KEY: {"schema_version": 9}}},
            "version of this plugin saved it, or it was edited",
        ),
        ({"stats": {"median": 1}}, "statistics without rounds.*--benchmark-save-data"),
        ({"stats": {"data": [1e-6, -1e-6]}}, "round 1 is not a time"),
        ({"stats": {"data": [1e-6, "x"]}}, "round 1 is not a time"),
        ({"stats": {"data": [1e-6, float("nan")]}}, "round 1 is not a time"),
        ({"stats": {"data": [1e-6, float("inf")]}}, "round 1 is not a time"),
        ({"stats": {"data": [1e-6, 1e305]}}, "round 1 is not a time"),
        ({"stats": {"data": [1e-6, 1e-300]}}, "round 1 is not a time"),
        ({"stats": {"data": [1e-6, 10**400]}}, "round 1 is not a time"),
        ({"stats": {"data": [1e-6, True]}}, "round 1 is not a time"),
        ({"stats": [1]}, "statistics without rounds"),
        ({"options": [1]}, "is not a device time"),
        ({"extra_info": "text"}, "has no provenance"),
        ({"extra_info": {EXTRA_KEY: "text"}}, "version of this plugin saved it, or it was edited"),
    ],
)
def test_what_cannot_serve_says_why_and_what_to_do(changes, words):
    with pytest.raises(BaselineError, match=rf"0001_x\.json: the baseline of test_k\.py::test_it.*{words}") as raised:
        read(entry(**changes))
    assert "save a new one" in str(raised.value)


def config(compared):
    session = SimpleNamespace(compared_mapping=compared)
    return SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin={"pytest-benchmark": session}.get))


def test_the_latest_file_that_has_the_test_counts():
    older, newer = entry(stats={"data": [1e-6]}), entry(stats={"data": [2e-6]})
    compared = {Path("m/0002_b.json"): {NODE: newer}, Path("m/0001_a.json"): {NODE: older}, Path("m/0003_c.json"): {}}
    found = baseline_rounds(config(compared), NODE)
    assert found is not None
    assert (found.rounds_us, found.source) == (pytest.approx((2.0,)), "m/0002_b.json")


@pytest.mark.parametrize("compared", [None, {}, {Path("0001.json"): {"other": {}}}])
def test_nothing_to_compare_with(compared):
    assert baseline_rounds(config(compared), NODE) is None


def test_without_pytest_benchmark():
    nothing = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=lambda _: None))
    assert baseline_rounds(nothing, NODE) is None


DIFFERENT = {
    "device": provenance(device=H200.model_copy(update={"name": "NVIDIA B200", "capability": (10, 0)})),
    "method": provenance(method="CUPTI"),
    "l2": provenance(l2="warm"),
    "dsl": provenance(device=H200.model_copy(update={"dsl": "4.4.0"})),
    "problem": provenance(problem=parse_shape("96x128x512", name="small")),
}


@pytest.mark.parametrize("aspect", get_args(Aspect))
def test_one_difference_is_one_refusal(aspect):
    current = DIFFERENT[aspect]
    (reason,) = refusals(provenance(), current)
    assert reason.startswith("the baseline was measured ")
    assert refusals(provenance(), current, allow=[aspect]) == []
    assert len(refusals(provenance(), current, allow=[one for one in get_args(Aspect) if one != aspect])) == 1
    with pytest.raises(IncomparableError, match=r"small cannot be compared with 0001_x\.json: the baseline was"):
        against(read(entry()), rounds_us=[1.0], provenance=current, name="small")


def test_every_aspect_has_a_case():
    assert set(DIFFERENT) == set(get_args(Aspect))


def test_refusals_name_both_sides():
    text = "; ".join(refusals(provenance(), DIFFERENT["device"]) + refusals(provenance(), DIFFERENT["dsl"]))
    for word in ("NVIDIA H200 (sm_90)", "NVIDIA B200 (sm_100)", "nvidia-cutlass-dsl 4.8.1", "nvidia-cutlass-dsl 4.4.0"):
        assert word in text


def test_a_simulator_is_no_device():
    simulated = provenance(device=H200.model_copy(update={"simulated": True}))
    assert "a simulator of NVIDIA H200" in refusals(provenance(), simulated)[0]


def test_a_seed_or_a_name_does_not_forbid_a_comparison():
    other = Problem("renamed", SMALL.groups, seed=5)
    assert refusals(provenance(), provenance(problem=other)) == []
    assert differences(provenance(), provenance(problem=other)) == ["seed of the inputs 1111 -> 5"]


def test_differences_that_are_told():
    other = provenance(device=H200.model_copy(update={"driver": "590", "uuid": "b"}))
    assert refusals(provenance(), other) == []
    assert differences(provenance(), other) == ["driver 580.1 -> 590", "another card of the same kind"]
    pair = against(read(entry()), rounds_us=[1.0], provenance=other, name="small")
    assert pair.notes == ("driver 580.1 -> 590", "another card of the same kind")
    assert differences(provenance(), provenance()) == []


def test_rounds_are_paired_with_their_conditions():
    stored = entry(extra_info={EXTRA_KEY: provenance(clocks=(345, 1980, 1970)).model_dump(mode="json")})
    pair = against(
        read(stored), rounds_us=(5.0,), provenance=provenance(clocks=(1755,)), name="x", noise=0.01, threshold=0.02
    )
    rounds = pair.rounds
    assert (rounds.name, rounds.current, rounds.noise, rounds.threshold) == ("x", (5.0,), 0.01, 0.02)
    assert rounds.clocks_mhz == (1975.0, 1755.0)
    assert not rounds.interleaved
    unknown = against(read(entry()), rounds_us=(5.0,), provenance=provenance(clocks=(1755,)), name="x")
    assert unknown.rounds.clocks_mhz is None


def test_the_same_kernel_is_named():
    same = provenance().model_copy(update={"kernel_sha256": "abc"})
    stored = entry(extra_info={EXTRA_KEY: same.model_dump(mode="json")})
    assert against(read(stored), rounds_us=[1.0], provenance=same, name="x").notes == (
        "the kernel's files are those of the baseline, byte for byte",
    )
    other = same.model_copy(update={"kernel_sha256": "def"})
    assert against(read(stored), rounds_us=[1.0], provenance=other, name="x").notes == ()


def test_the_first_clock_reading_may_be_of_an_idle_device():
    assert provenance(clocks=(345, 1980, 1980)).clock_mhz == 1980
    assert provenance(clocks=(345,)).clock_mhz == 345
    assert provenance().clock_mhz is None


def test_provenance_survives_json():
    made = provenance(device=B200, clocks=(1965, 1965))
    assert Provenance.read(made.model_dump(mode="json")) == made
    assert "NVIDIA B200" in made.describe()
    assert "cold L2" in made.describe()
    with pytest.raises(ProvenanceError, match="cannot be read"):
        Provenance.read({**made.model_dump(mode="json"), "l2": "hot"})
    with pytest.raises(ProvenanceError):
        Provenance.read("text")
