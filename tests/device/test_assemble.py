from __future__ import annotations

import pytest

from pytest_nvfp4.device.result import Blob

from .worker_events import BENCHMARK, DEVICE, answer, line, result


def test_an_answer_that_is_whole_passes() -> None:
    found = result(answer(line(**DEVICE)))
    assert found.status == "passed"
    assert found.device is not None
    assert found.device.name == "NVIDIA B200"


def test_calls_of_two_cases_with_one_number_are_two() -> None:
    """A benchmark numbers the calls of each case from 0, and which of them come back whole is drawn."""
    data = Blob.inlined(bytes(2 * 256 * (8 + 5 + 128)))
    about = {"call": 4, "group": 0, "rows": 141, "columns": 256, "returned": "c", "data": data.model_dump()}
    about["inputs"] = [0, 3]
    said = [line(event="output", case=case, **about) for case in (0, 1)]
    late = line(event="late", call=4, case=1, group=0, sha256="1" * 64)
    outputs = result(answer(*said, late), job=BENCHMARK).outputs
    assert [(one.case, one.late_sha256) for one in outputs] == [(0, None), (1, "1" * 64)]


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
