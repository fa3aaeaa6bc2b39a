"""The result of a profile: unknown metrics, attempts, and what its JSON refuses."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from pytest_nvfp4.device.profiling.record import ToolRun
from pytest_nvfp4.profile.metrics import BY_LABEL, BY_NAME, METRICS
from pytest_nvfp4.profile.result import Metric, Profile, ProfiledLaunch


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_a_value_that_is_absent_or_not_finite_is_unknown(value):
    metric = Metric.of(value, "%")
    assert metric.value is None
    assert metric.because
    assert str(metric) == "unknown"


def test_a_metric_has_a_value_or_a_reason():
    assert Metric.of(0.0, "%").value == 0
    for wrong in ({}, {"value": 1.0, "because": "it is not there"}, {"value": math.nan}):
        with pytest.raises(ValidationError):
            Metric(**wrong)


def test_an_absent_metric_is_unknown_and_not_zero():
    launch = ProfiledLaunch(name="k", metrics={"duration": Metric.of(2.5, "us")})
    assert launch.value("duration") == 2.5
    assert launch.value("l2_hit_rate") is None
    assert launch.counter("dram__bytes_read.sum").because


def test_the_tool_of_a_profile_is_the_last_that_ran():
    failed = ToolRun(tool="nsys", state="unavailable", because="nsys is not installed")
    assert Profile(attempts=(failed,)).tool is None
    ran = ToolRun(tool="torch", version="2.11")
    assert Profile(attempts=(failed, ran)).tool == ran
    with pytest.raises(ValidationError):
        ToolRun(tool="ncu", state="unavailable")


def test_json_holds_a_whole_profile():
    launch = ProfiledLaunch(name="k", counters={"dram__bytes_read.sum": Metric.of(math.nan, "byte")}, grid=(4, 1, 1))
    profile = Profile(launches=(launch, ProfiledLaunch(name="other")))
    assert Profile.model_validate_json(profile.model_dump_json()) == profile
    assert [kept.name for kept in profile.named("oth").launches] == ["other"]


def test_names_of_metrics_are_unique():
    assert len(BY_NAME) == len(METRICS)
    assert len(BY_LABEL) == sum(len(metric.labels) for metric in METRICS)
