from __future__ import annotations

import hashlib
import json

import pytest

from pytest_nvfp4.device.assemble import assemble
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.result import Blob, Result
from pytest_nvfp4.isolation import Outcome
from pytest_nvfp4.isolation.outcome import Captured

JOB = Job(id="j", action="probe")
DEVICE = {"event": "device", "name": "NVIDIA B200", "capability": [10, 0]}


def line(**event: object) -> bytes:
    return json.dumps(event).encode() + b"\n"


def answer(*said: bytes, then: bytes = b"") -> bytes:
    whole = line(event="begin", word="w") + b"".join(said)
    return whole + then + line(event="end", sha256=hashlib.sha256(whole).hexdigest())


def result(data: bytes | None, *, returncode: int = 0, overflow: bool = False) -> Result:
    nothing = Captured("")
    outcome = Outcome(
        returncode=returncode,
        timed_out=False,
        result=data,
        result_overflow=overflow,
        stdout=nothing,
        stderr=nothing,
        wall_s=1.0,
        stragglers=0,
    )
    return assemble(JOB, outcome)


def test_an_answer_that_is_whole_passes() -> None:
    found = result(answer(line(**DEVICE)))
    assert found.status == "passed"
    assert found.device is not None
    assert found.device.name == "NVIDIA B200"


def test_calls_of_two_cases_with_one_number_are_two() -> None:
    """A benchmark numbers the calls of each case from 0, and which of them come back whole is drawn."""
    empty = Blob.inlined(b"")
    about = {"call": 4, "group": 0, "rows": 1, "columns": 1, "returned": "c", "data": empty.model_dump()}
    said = [line(event="output", case=case, **about) for case in (0, 1)]
    late = line(event="late", call=4, case=1, group=0, sha256="later")
    outputs = result(answer(*said, late)).outputs
    assert [(one.case, one.late_sha256) for one in outputs] == [(0, None), (1, "later")]


@pytest.mark.parametrize(
    "data",
    [
        answer(line(**DEVICE), then=line(**{**DEVICE, "name": "NVIDIA B300"})),
        answer(then=line(event="stage", name="x")),
        answer() + line(event="stage", name="x"),
        line(event="end", sha256="0" * 64) + answer(),
        line(event="end") + answer(),
        answer() + answer(),
        answer().replace(b'"w"', b'"v"'),
    ],
    ids=["device", "stage", "after the end", "end before", "bare end", "twice", "another word"],
)
def test_what_the_worker_did_not_say_is_a_cheat(data: bytes) -> None:
    found = result(data)
    assert found.status == "cheated"
    assert "wrote to its pipe" in found.reason


@pytest.mark.parametrize("data", [None, line(event="begin", word="w"), answer()[:-5], b"\xff\xfe", b"[]\n", b"7\n"])
def test_an_answer_that_is_not_whole_is_no_pass(data: bytes | None) -> None:
    assert result(data).status in ("crashed", "error")


def test_an_answer_that_is_too_long_says_so() -> None:
    found = result(None, overflow=True)
    assert found.status == "crashed"
    assert "exceeds the size limit" in found.reason
