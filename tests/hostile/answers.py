"""Answers that no honest worker or machine gives, each with the words by which it is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pytest_nvfp4.device.blob import Blob
from tests.device.worker_events import DEVICE, answer, line

_HASH = "0" * 64
_LARGE = {"sha256": _HASH, "size": 4 << 30, "inline": "eJwDAAAAAAE="}
_CASE = {"event": "case", "call": 1, "case": 0, "inputs_before": _HASH, "inputs_after": _HASH}


@dataclass(frozen=True)
class Answer:
    """What a process sends, and what is said of it."""

    data: bytes
    says: str


def _output(**fields: object) -> bytes:
    blob = Blob.inlined(b"\0" * 768).model_dump(mode="json")
    output = {"call": 1, "case": 0, "group": 0, "rows": 3, "columns": 128, "data": blob, "late_sha256": None}
    return line(event="output", **(output | {"returned": "c"} | fields))


def _file(**fields: object) -> bytes:
    return _output(data={"sha256": _HASH, "size": 768, "inline": None, "file": "0-1-0.bin"} | fields)


ANSWERS = {
    "nothing": Answer(b"", "status|ended|result"),
    "no JSON": Answer(answer(b"\xff\xfe\n"), "UTF-8|JSON"),
    "deep lists": Answer(answer(b'{"event":"status","status":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"), "nested"),
    "deep objects": Answer(answer(b'{"event":' * 50_000 + b"1" + b"}" * 50_000 + b"\n"), "nested"),
    "an endless number": Answer(answer(b'{"event":"stage","name":"x","seconds":1e999}\n'), "finite|range|number|large"),
    "no number": Answer(answer(b'{"event":"stage","name":"x","seconds":NaN}\n'), "NaN|number"),
    "a number of 100,000 digits": Answer(answer(b'{"event":"late","call":' + b"9" * 100_000 + b"}\n"), "digits"),
    "an unknown status": Answer(answer(line(event="status", status="splendid")), "status"),
    "a status that is a list": Answer(answer(line(event="status", status=["passed"])), "status"),
    "an unknown event": Answer(answer(line(event="verdict", passed=True)), "unknown"),
    "an event without a name": Answer(answer(line(passed=True)), "name"),
    "a list in place of an event": Answer(answer(b"[1, 2]\n"), "object"),
    "a repeated key": Answer(answer(b'{"event":"status","status":"passed","status":"failed"}\n'), "key|twice|repeat"),
    "a lone surrogate": Answer(answer(b'{"event":"status","status":"\\ud800"}\n'), "surrogate"),
    "a huge call": Answer(answer(_output(call=10**15)), "call|less|range"),
    "a case that was not asked for": Answer(answer(_output(case=7)), "case"),
    "a group that does not exist": Answer(answer(_output(group=9)), "group"),
    "other rows": Answer(answer(_output(rows=10**9)), "rows"),
    "4 GiB in 30 bytes": Answer(answer(_output(data=_LARGE)), "bytes"),
    "a file above the folder": Answer(answer(_file(file="../../etc/passwd")), "file"),
    "an absolute file": Answer(answer(_file(file="/etc/passwd")), "file"),
    "a file of no name": Answer(answer(_file(file="a\0b")), "file"),
    "two outputs of one group": Answer(answer(_output() + _output()), "repeats"),
    "two devices": Answer(answer(line(**DEVICE), line(**(DEVICE | {"name": "NVIDIA B300"}))), "device"),
    "two reports of one call": Answer(answer(line(**_CASE), line(**_CASE)), "repeats"),
    "times of a job without times": Answer(
        answer(
            line(
                event="measurement", case=0, device_us=[-1.0], host_us=[1.0], call_us=1.0, late_rounds=0, method="m",
                l2="cold", sets=1,
            )
        ),
        "measure|device_us|time",
    ),
    "events after the end": Answer(answer() + line(event="status", status="passed"), "pipe|end|follow"),
    "a wrong hash of the events": Answer(line(event="begin", word="w") + line(event="end", sha256=_HASH), "pipe"),
    "a finding of 30 MB": Answer(answer(line(event="finding", kind="x", message="x" * (30 << 20))), "left out"),
    "20,000 findings": Answer(
        answer(line(event="finding", kind="x", message="x") * 20_000), "more"
    ),
    "an unknown severity": Answer(answer(line(event="finding", kind="x", message="x", severity="none")), "severity"),
    "a field that is unknown": Answer(answer(line(**_CASE, passed=True)), "passed|unknown|extra"),
}  # fmt: skip
"""Answers to a verify job of one case with one group of 3 x 128."""

REMOTE = {
    "another version": json.dumps({"nvfp4": 99, "result": {}, "blobs": {}}),
    "no results": json.dumps({"nvfp4": 2, "result": {"batch": "b", "results": 3}, "blobs": {}}),
    "nothing": "",
    "null": "null",
    "deep": "[" * 100_000,
    "a list": "[]",
    "an error without words": json.dumps({"nvfp4": 2, "result": {"batch": "", "what": ""}, "blobs": {}}),
    "negative seconds": json.dumps({"nvfp4": 2, "result": {"batch": "b", "results": [], "busy_s": -1e9}, "blobs": {}}),
    "no number of seconds": '{"nvfp4": 2, "result": {"batch": "b", "results": [], "busy_s": NaN}, "blobs": {}}',
}
"""Answers of machines to a batch."""
