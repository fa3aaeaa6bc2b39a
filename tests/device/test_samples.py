"""What is looked at of every timed round: on a clock that is made up, and torch's stand-in device."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_nvfp4.bench.launches import launch_findings
from pytest_nvfp4.device.result import Result, RoundSample
from pytest_nvfp4.device.verdict import CaseVerdict, Judge

from .sampled_rounds import CASE, changed, job, sample, timed, whole

Judged = Callable[..., CaseVerdict]


@pytest.fixture
def judged(tmp_path: Path) -> Judged:
    asked = job(tmp_path)
    result = Result(job=asked.id, status="passed", outputs=whole())

    def judge(*samples: RoundSample) -> CaseVerdict:
        (verdict,) = Judge().judge(asked, result.model_copy(update={"samples": samples}), folder=tmp_path)
        return verdict

    return judge


def test_rounds_of_an_honest_kernel_are_right(judged: Judged) -> None:
    rounds = [sample(call, visit=call) for call in range(4)]
    assert len(rounds[0].parts) == 2
    assert judged(*rounds).status == "passed"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"bits": "5afe" * 64}, "64 of 64 outputs are wrong .64 not written."),
        ({"bits": ""}, "not have the shape"),
        ({"bits": "xyz"}, "cannot be read"),
        ({"column": 250}, "not have the shape"),
        ({"column": -1}, "not have the shape"),
        ({"row": 4000}, "not those that changed"),
    ],
)
def test_a_round_that_is_wrong_is_found(judged: Judged, what: dict[str, object], words: str) -> None:
    verdict = judged(sample(0, visit=0), changed(sample(1, visit=1), **what))
    assert verdict.status == "failed"
    (finding,) = verdict.findings
    assert finding.message.startswith("call 1, while it was timed: ")
    assert re.search(words, finding.message), finding.message


def test_the_answer_of_the_round_before_is_wrong(judged: Judged) -> None:
    kept = sample(1, visit=0).model_copy(update={"inputs": (0, 1)})
    assert judged(kept).status == "failed"
    assert judged(changed(sample(1, visit=1), bits=sample(1, visit=0).parts[0].bits)).status == "failed"


def test_a_group_that_is_left_out_is_missed(judged: Judged) -> None:
    one = sample(0, visit=0)
    assert judged(one.model_copy(update={"parts": one.parts[:1]})).status == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "returns", ["", "\n_one = custom_kernel\ndef custom_kernel(d):\n    return [c.clone() for c in _one(d)]\n"]
)
def test_every_round_sends_its_part(tmp_path: Path, returns: str) -> None:
    pytest.importorskip("torch")
    result, verdict = timed(tmp_path, returns)
    assert (result.status, verdict.status) == ("passed", "passed"), (result.findings, verdict.findings)
    assert len(result.samples) == 12 + 4, "rounds, and calls whose launches are counted"
    assert {len(one.parts) for one in result.samples} == {2}
    assert len({output.call for output in result.outputs}) == 2 + 2
    assert found_launches(result) == []
    launches = result.measurements[0].launches
    assert launches is not None
    assert sorted(call.way for call in launches.calls) == ["plain", "plain", "timed", "timed"]
    assert {tuple(kernel.name for kernel in call.kernels) for call in launches.calls} == {("mm", "mm")}
    assert json.loads(result.model_dump_json())["samples"]


def found_launches(result: Result) -> list[str]:
    (measurement,) = result.measurements
    made = launch_findings(measurement, measurement, CASE.problem.problem())
    return [finding.message for finding in made if finding.severity == "error"]


KEEPS = """
KEPT = {}
honest = custom_kernel


def custom_kernel(data):
    key = KEY
    if key not in KEPT:
        KEPT[key] = [c.clone() for c in honest(data)]
    for (_, _, c), answer in zip(data[0], KEPT[key], strict=True):
        c.copy_(answer)
    return [c for _, _, c in data[0]]
"""


@pytest.mark.slow
def test_a_kernel_that_remembers_its_inputs_launches_less(tmp_path: Path) -> None:
    """Its outputs are right, and only its launches show it."""
    pytest.importorskip("torch")
    every_a = "tuple(tuple(a.view(torch.uint8).flatten().tolist()) for a, _, _ in data[0])"
    result, verdict = timed(tmp_path, KEEPS.replace("KEY", every_a))
    assert verdict.status == "passed", verdict.findings
    (message,) = found_launches(result)
    assert "launched no kernel" in message


@pytest.mark.slow
def test_a_kernel_that_keeps_the_answer_of_a_set_is_found(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    some_b = "tuple(b.view(torch.uint8).flatten()[:64].sum().item() for _, b, _ in data[0])"
    _, verdict = timed(tmp_path, KEEPS.replace("KEY", some_b))
    assert verdict.status == "failed"
    assert any("while it was timed" in finding.message for finding in verdict.findings), verdict.findings
