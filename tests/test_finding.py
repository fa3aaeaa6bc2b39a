"""Findings as fields of pydantic models and as events of workers."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel, ValidationError

from pytest_nvfp4.finding import Finding, Location, Where
from pytest_nvfp4.toolchain.trace import FINDING, ReportedFinding


class Model(BaseModel):
    """A model with one finding."""

    finding: ReportedFinding


def test_json_leaves_out_what_is_not_set() -> None:
    finding = Finding("run", "it failed", file="k.py", line=3, text="f(x)")
    place = {"file": "k.py", "line": 3, "text": "f(x)"}
    event = {"kind": "run", "message": "it failed", "severity": "error", "detail": "", **place}
    assert finding.to_dict() == event
    assert json.loads(Model(finding=finding).model_dump_json()) == {"finding": event}
    assert FINDING.validate_python(event) == finding
    assert str(finding) == "k.py:3: it failed\n    f(x)"


def test_findings_of_one_defect_have_one_identity() -> None:
    one = Finding("race", "call 3: 12 of 96", file="k.py", line=7)
    assert one.identity == Finding("deadlock", "else", file="k.py", line=7).identity
    assert one.identity != Finding("race", "call 3: 12 of 96", file="k.py", line=8).identity
    bare = Finding("crash", "call 3: 12 of 96 at 0x1F0\nmore")
    assert bare.identity == Finding("crash", "call 22: 1 of 6.5 at 0xff\nelse").identity
    assert bare.identity != Finding("timeout", "call 3: 12 of 96 at 0x1F0").identity
    assert bare.identity != Finding("crash", "call 3: 12 of 96 at 0x1F0 again").identity


def test_a_place_survives_json() -> None:
    where = Where("k", cta=(1, 0, 0), lanes=(3,), source=Location("k.py", 3, inlined_at=Location("m.py", 7)))
    model = Model(finding=Finding("race", "two writes", hint="a barrier", notes=("a", "b"), where=where))
    assert Model.model_validate_json(model.model_dump_json()) == model


@pytest.mark.parametrize("event", [{"other": 1}, {"severity": "fatal"}, {"line": "x"}, {"where": {"kernel": 1}}])
def test_a_damaged_event_is_refused(event: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        FINDING.validate_python({"kind": "run", "message": "m", **event})
