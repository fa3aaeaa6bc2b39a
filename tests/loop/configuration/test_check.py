"""A check finds every fault, accepts what is valid, and tells both from what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.loop.configuration.check import MODELS, Kind, check_file
from pytest_nvfp4.loop.schemas import ReviewerVerdict, WorkerResult
from tests.loop.records import candidate, verdict

WORKER = WorkerResult(iteration=1, kernel_path="k.py", decision="KEEP", metric_name="gmean_us", metric_value=1.5)
REVIEWER = ReviewerVerdict(
    iteration=1, verdict="CONTINUE", confidence="low", reason="r", next_change_hint="h", requires_revert=False
)
VALID = {
    "worker": WORKER,
    "reviewer": REVIEWER,
    "candidate": candidate(1),
    "verdict": verdict(candidate(1), "slower"),
}


def check(folder: Path, kind: Kind, values: object) -> list[str]:
    path = folder / "file.json"
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return check_file(path, kind, root=folder)


@pytest.mark.parametrize("kind", MODELS)
def test_what_is_valid_has_no_problems(tmp_path: Path, kind: Kind) -> None:
    assert check(tmp_path, kind, VALID[kind].model_dump(mode="json")) == []


@pytest.mark.parametrize("kind", MODELS)
def test_nothing_at_all_lacks_everything_that_is_required(tmp_path: Path, kind: Kind) -> None:
    required = {name for name, field in MODELS[kind].model_fields.items() if field.is_required()}
    assert set(check(tmp_path, kind, {})) == {f"lacks {name}" for name in required}
    assert required


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    [
        ("worker", {"iteration": 0}, "iteration = 0"),
        ("worker", {"iteration": "1"}, "iteration = '1'"),
        ("worker", {"iteration": True}, "iteration = True"),
        ("worker", {"kernel_path": ""}, "kernel_path = ''"),
        ("worker", {"decision": "keep"}, "decision = 'keep'"),
        ("worker", {"metric_value": True}, "metric_value = True"),
        ("worker", {"metric_name": ""}, "metric_name = ''"),
        ("worker", {"tests_passed": "yes"}, "tests_passed = 'yes'"),
        ("worker", {"benchmark_passed": 1}, "benchmark_passed = 1"),
        ("worker", {"errors": "none"}, "errors = 'none'"),
        ("worker", {"tokens": -1}, "tokens = -1"),
        ("worker", {"version": 2}, "has version 2 of its format"),
        ("worker", {"promote": True}, "unknown field promote"),
        ("reviewer", {"verdict": "PROMOTE"}, "verdict = 'PROMOTE'"),
        ("reviewer", {"confidence": 0.5}, "confidence = 0.5"),
        ("reviewer", {"reason": ""}, "reason = ''"),
        ("reviewer", {"next_change_hint": ""}, "next_change_hint = ''"),
        ("reviewer", {"requires_revert": "false"}, "requires_revert = 'false'"),
        ("candidate", {"commit": "HEAD"}, "commit = 'HEAD'"),
        ("verdict", {"outcome": "won"}, "outcome = 'won'"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, kind: Kind, changes: dict[str, object], expected: str) -> None:
    (problem,) = check(tmp_path, kind, {**VALID[kind].model_dump(mode="json"), **changes})
    assert expected in problem


@pytest.mark.parametrize("changes", [{"metric_value": 3}, {"usd": 1}, {"tests_passed": None}, {"artifacts": ["a"]}])
def test_a_whole_number_is_a_number(tmp_path: Path, changes: dict[str, object]) -> None:
    assert check(tmp_path, "worker", {**WORKER.model_dump(mode="json"), **changes}) == []


def test_each_problem_is_named(tmp_path: Path) -> None:
    values = {**WORKER.model_dump(mode="json"), "iteration": 0, "decision": "x", "more": 1}
    assert len(check(tmp_path, "worker", values)) == 3


def test_problems_are_bounded(tmp_path: Path) -> None:
    assert len(check(tmp_path, "worker", {**WORKER.model_dump(mode="json"), "errors": [1] * 1000})) == 100


@pytest.mark.parametrize("text", ["", "{", "not json", '{"a": NaN}', '{"iteration": 1e999}', "[" * 100_000])
def test_what_is_no_json_cannot_be_read(tmp_path: Path, text: str) -> None:
    with pytest.raises(DoorError):
        check(tmp_path, "worker", text)


def test_what_is_no_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DoorError):
        check_file(tmp_path, "worker", root=tmp_path)
    with pytest.raises(FileNotFoundError):
        check_file(tmp_path / "none", "worker", root=tmp_path)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(DoorError, match="at most"):
        check_file(tmp_path / "large", "worker", root=tmp_path)


def test_a_configuration_is_checked_with_its_lines(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text("")
    text = '[kernel]\nfile = "k.py"\n[worker]\ncommand = ["a"]\n'
    assert check(tmp_path, "config", text) == []
    (problem,) = check(tmp_path, "config", text + "attempts = 0\n")
    assert ":5: has worker.attempts = 0" in problem
    (problem,) = check(tmp_path, "config", "a = ")
    assert "is not TOML" in problem
