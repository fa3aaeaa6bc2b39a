"""What limits a launch: each class by its rule, what speaks against it, and that no conclusion rests on the unknown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.model.what_if import QUESTIONS
from pytest_nvfp4.profile.analysis import Analysis, Bottleneck, analyse
from pytest_nvfp4.profile.bottleneck_rules import BY_CLASS, RULES, Class
from pytest_nvfp4.profile.metrics import BY_NAME
from pytest_nvfp4.profile.result import LineSamples, Metric, ProfiledLaunch, Rule
from tests.profile.launches import modelled

BALANCED = {
    "duration": 50.0,
    "sm_throughput": 50.0,
    "memory_throughput": 50.0,
    "dram_throughput": 40.0,
    "tensor_pipe": 50.0,
    "issue_active": 20.0,
    "waves": 1.0,
    "grid_size": 148.0,
    "stall.barrier": 0.1,
    "stall.membar": 0.0,
    "stall.not_selected": 0.1,
}
"""A launch that no class but latency limits."""


def launch(quantities: Mapping[str, float | None], **fields: object) -> ProfiledLaunch:
    """A launch with metrics and stalls."""
    metrics = {key: Metric.of(value) for key, value in quantities.items() if not key.startswith("stall.")}
    stalls = {key[6:]: Metric.of(value) for key, value in quantities.items() if key.startswith("stall.")}
    return ProfiledLaunch.model_validate({"name": "k", "metrics": metrics, "stalls": stalls, **fields})


def found(changes: Mapping[str, float | None], **fields: object) -> Analysis:
    """The analysis of the balanced launch with other quantities."""
    return analyse(launch(BALANCED | changes, **fields), sms=148)


def state(analysis: Analysis, name: Class) -> Bottleneck:
    """One class."""
    return next(one for one in analysis.bottlenecks if one.rule.name == name)


@pytest.mark.parametrize(
    ("changes", "limits"),
    [
        ({}, {"latency"}),
        ({"memory_throughput": 88.0, "dram_throughput": 88.0, "sm_throughput": 20.0}, {"memory"}),
        ({"tensor_pipe": 75.0, "sm_throughput": 75.0}, {"tensor"}),
        ({"tensor_pipe": 75.0, "sm_throughput": 75.0, "issue_active": 80.0}, {"tensor"}),
        ({"issue_active": 80.0, "sm_throughput": 80.0, "stall.not_selected": 3.0}, {"issue"}),
        ({"stall.barrier": 2.5}, {"latency", "barrier"}),
        ({"waves": 1.2}, {"latency", "tail"}),
        ({"waves": 3.95}, {"latency"}),
        ({"duration": 3.0}, {"latency", "launch"}),
        ({"grid_size": 64.0}, {"latency", "launch"}),
        ({"memory_throughput": 60.0}, {"memory"}),
        ({"memory_throughput": 59.9}, {"latency"}),
    ],
)
def test_each_class_by_its_rule(changes: dict[str, float], limits: set[str]) -> None:
    analysis = found(changes)
    assert {one.rule.name for one in analysis.limits} == limits
    assert not [one for one in analysis.bottlenecks if one.state == "unknown"]


@pytest.mark.parametrize("value", [None, math.nan])
@pytest.mark.parametrize(
    ("metric", "classes"),
    [
        ("memory_throughput", {"memory", "latency"}),
        ("sm_throughput", {"latency"}),
        ("tensor_pipe", {"tensor", "latency"}),
        ("waves", {"tail"}),
        ("duration", {"launch"}),
        ("stall.barrier", {"barrier"}),
    ],
)
def test_a_class_with_a_missing_metric_is_unknown(metric: str, classes: set[str], value: float | None) -> None:
    analysis = found({metric: value})
    unknown = {one.rule.name: one.missing for one in analysis.bottlenecks if one.state == "unknown"}
    assert set(unknown) == classes
    assert all(metric in missing for missing in unknown.values())
    assert not {one.rule.name for one in analysis.limits} & classes
    assert not [hint for hint in analysis.hints if hint.of in classes]


def test_an_empty_report_and_an_unknown_device_carry_no_conclusion() -> None:
    analysis = analyse(ProfiledLaunch(name="k"))
    assert {one.state for one in analysis.bottlenecks} == {"unknown"}
    assert analysis.hints == ()
    known = analyse(launch(BALANCED | {"grid_size": 8.0}))
    assert (state(known, "launch").state, state(known, "launch").missing) == (
        "unknown",
        ("grid_size and the number of SMs",),
    )


QUANTITIES = st.sampled_from(sorted(BALANCED))


@given(st.dictionaries(QUANTITIES, st.floats(0, 100)), st.sets(QUANTITIES))
def test_what_is_not_known_never_turns_a_verdict_around(values: dict[str, float], hidden: set[str]) -> None:
    whole = found(values)
    less = found({**values, **dict.fromkeys(hidden)})
    for before, after in zip(whole.bottlenecks, less.bottlenecks, strict=True):
        assert after.state in (before.state, "unknown")
        assert set(after.contradicted_by) <= set(before.contradicted_by)
        assert bool(after.missing) == (after.state == "unknown")


def test_what_speaks_against_a_class_is_said() -> None:
    barrier = state(found({"stall.barrier": 4.0, "tensor_pipe": 80.0}), "barrier")
    assert "wait by design" in barrier.contradicted_by[0]
    assert "tensor pipe active 80 %, at least 60 %" in barrier.contradicted_by[0]
    cache = state(found({"memory_throughput": 70.0, "dram_throughput": 10.0}), "memory")
    assert any("not DRAM" in said for said in cache.contradicted_by)
    polling = state(found({"issue_active": 80.0, "sm_throughput": 80.0}), "issue")
    assert any("poll a barrier" in said for said in polling.contradicted_by)
    few = state(found({"grid_size": 20.0}), "latency")
    assert any("SMs without a CTA 86.49 %" in said for said in few.contradicted_by)
    both = found({"stall.barrier": 4.0, "tensor_pipe": 80.0, "waves": 1.1})
    assert [one.rule.name for one in both.limits] == ["tensor", "tail", "barrier"]


def test_occupancy_is_no_class() -> None:
    low = found({"achieved_occupancy": 9.0, "theoretical_occupancy": 12.5})
    assert [one.state for one in low.bottlenecks] == [one.state for one in found({}).bottlenecks]
    rule = Rule(name="AchievedOccupancy", section="Occupancy", kind="optimization", text="raise it", speedup_pct=40.0)
    (hint,) = [hint for hint in found({}, rules=(rule,)).hints if hint.of is None]
    assert "by design" in hint.contradicted_by[0]


def test_hints_are_ordered_by_modelled_gain_and_name_the_line() -> None:
    rules = (
        Rule(name="SlowPipe", kind="optimization", text="use it", speedup_pct=25.0, scope="global"),
        Rule(name="Coalescing", kind="optimization", text="do", speedup_pct=50.0, scope="local"),
        Rule(name="Note", kind="message", text="hello"),
    )
    analysis = analyse(
        launch(BALANCED, rules=rules), sms=148, modelled=modelled(stage=-0.05, maps=-0.11, l2=-0.3, occupancy=0.02)
    )
    said = [(hint.of, hint.gain, hint.basis, hint.line) for hint in analysis.hints]
    assert said == [
        ("memory", 0.3, "modelled", "k.py:12"),
        ("latency", 0.11, "modelled", "k.py:14"),
        ("latency", 0.05, "modelled", "k.py:14"),
        ("latency", -0.02, "modelled", "k.py:14"),
        (None, pytest.approx(1 / 3), "tool", ""),
        (None, pytest.approx(0.2), "tool", ""),
    ]
    first, *_, slower, local, _ = analysis.hints
    assert "not limited by L2 or DRAM (memory throughput 50 %, below 60 %)" in first.contradicted_by[0]
    assert "gains -2.0 %" in slower.contradicted_by[0]
    assert "one unit" in local.contradicted_by[0]


def test_a_change_that_does_not_apply_to_the_kernel_is_no_hint() -> None:
    without = {hint.text for hint in found({}).hints}
    asked = analyse(launch(BALANCED), sms=148, modelled=modelled(stage=-0.01))
    texts = {hint.text for hint in asked.hints}
    assert texts < without
    assert not any("tensor maps" in text for text in texts)
    base = modelled(stage=-0.01)
    refused = analyse(launch(BALANCED), sms=148, modelled=replace(base, remarks={"occupancy": "no room for it"}))
    (hint,) = [hint for hint in refused.hints if "second CTA" in hint.text]
    assert hint.contradicted_by == ("no room for it",)


def test_samples_of_the_report_name_the_line_before_the_model_does() -> None:
    lines = (
        LineSamples(file="k.py", line=7, samples=90, stalls={"barrier": 90}),
        LineSamples(file="k.py", line=33, samples=50, stalls={"long_scoreboard": 30, "wait": 20}),
    )
    analysis = analyse(launch(BALANCED, lines=lines), sms=148, modelled=modelled(stage=-0.05))
    assert {hint.line for hint in analysis.hints} == {"k.py:33"}


def test_rules_name_quantities_and_questions_that_exist() -> None:
    own = {"tail_idle", "idle_sms"}
    for rule in RULES:
        contradicting = [one.conditions for one in rule.contradictions]
        for condition in (one for group in (*rule.alternatives, *contradicting) for one in group):
            for name in (condition.quantity, condition.threshold):
                assert not isinstance(name, str) or name in BY_NAME or name in own or name.startswith("stall.")
            assert condition.source
        assert {change.question for change in rule.changes} <= {"", *QUESTIONS}
        assert rule.changes
    assert set(BY_CLASS) == {"memory", "tensor", "issue", "latency", "barrier", "tail", "launch"}
