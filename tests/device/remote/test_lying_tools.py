"""Reports of command-line tools that lie, and their floods of output."""

from __future__ import annotations

import base64
import hashlib
import json
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.device.remote import tool
from pytest_nvfp4.device.remote.base import RemoteError
from pytest_nvfp4.device.remote.popcorn_output import MOST_BYTES, parse
from pytest_nvfp4.device.remote.program import Output, pack_output, unpack_output
from pytest_nvfp4.device.remote.tool import CommandLineTool, ToolOutput
from pytest_nvfp4.device.remote.wafer import _BEGIN, _END, _parse_result
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.fork_server.messages import _is_valid

RUN = {"mode": "test", "passed": True, "runner": "B200", "secret": False, "score": 1e-5}


def submission(**changed: Any) -> str:
    return json.dumps({"runs": [{**RUN, **changed}]})


def test_an_honest_report_is_read() -> None:
    found = parse(submission())
    assert (found.passed, found.scores) == (True, (("public", 1e-5),))


@pytest.mark.parametrize(
    "text",
    [
        submission(passed="false"),
        submission(passed=1),
        submission(score="1e-5"),
        submission(score=True),
        submission(score=-1),
        submission().replace("1e-05", "1e999"),
        submission().replace("1e-05", "NaN"),
        submission().replace('"passed": true', '"passed": true, "passed": false'),
        json.dumps({"runs": [RUN], "done": "no"}),
        '{"runs": ' + "[" * 100_000,
        '{"runs": [' + '{"a":' * 500 + "1" + "}" * 500 + "]}",
        "Geomean score (public) on B200: 1e999 s",
        "Geomean score (public) on B200: 1.2.3 s",
        "x" * (MOST_BYTES + 1),
    ],
    ids=lambda text: text[:60],
)
def test_a_report_that_lies_is_one_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        parse(text)
    assert len(str(caught.value)) < 600


def test_a_report_with_many_lines_is_read_in_linear_time() -> None:
    start = time.monotonic()
    found = parse("✅ m: 1\n" + "> message\n" * 500_000 + "Passed 1/1 tests\n")
    assert len(found.tests[0].message) < 20_000
    assert time.monotonic() - start < 60


@pytest.mark.parametrize(
    "text", ["[]", "7", '{"status": 1e999}', '{"status": "0"  , "x": 1}', '{"status": 4294967296}', '{"stream": "x"}',
             '{"stream": "stdout", "data": "?"}', "[" * 9999, '{"call": []}'],
)  # fmt: skip
def test_output_of_a_program_that_is_none_is_one_error(text: str) -> None:
    for output in (Output(status=3), Output(call="fc-1"), Output("stderr", b"\xff\x00")):
        assert unpack_output(pack_output(output)) == output
    with pytest.raises(RemoteError, match="cannot be read"):
        unpack_output(text)


def framed(data: bytes) -> ToolOutput:
    text = f"{_BEGIN} {hashlib.sha256(data).hexdigest()}\n{base64.b64encode(data).decode()}\n{_END}\n"
    return ToolOutput(0, text, "")


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[" * 9999, b"{}", b'{"nvfp4": 2}', b'{"nvfp4": 2, "result": {}, "blobs": 7}']
)
def test_a_result_of_wafer_that_is_none_is_one_error(data: bytes) -> None:
    with pytest.raises(RemoteError):
        _parse_result(framed(data), "python3")


def test_markers_without_end_take_linear_time() -> None:
    start = time.monotonic()
    with pytest.raises(RemoteError, match="only a part"):
        _parse_result(ToolOutput(0, f"{_BEGIN} {'0' * 64}{' ' * 200_000}{'A' * 200_000}", ""), "python3")
    assert time.monotonic() - start < 60


def test_a_flood_of_output_is_kept_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flood = tmp_path / "flood"
    flood.write_text("#!/bin/sh\nhead -c 300000000 /dev/zero\necho end\necho trouble >&2\nexit 3\n")
    flood.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(tool, "_MAX_OUTPUT_BYTES", 1 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = CommandLineTool(("flood",), install="x").run([], timeout_s=120)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10, "KiB"
    assert (done.status, done.last_line, done.stdout[-5:]) == (3, "trouble", "\0end\n")


@pytest.mark.parametrize(
    ("name", "value", "valid"),
    [
        ("started", 7, True),
        ("started", -1, False),
        ("started", True, False),
        ("ended", -9, True),
        ("ended", 10**9, False),
        ("ended", "0", False),
        ("refused", "why", True),
        ("refused", 1, False),
        ("other", 1, False),
    ],
)
def test_fields_of_a_fork_servers_report(name: str, value: object, valid: bool) -> None:
    assert _is_valid((name, value)) is valid


def test_the_doors_error_is_one_line() -> None:
    assert str(DoorError("it", "is\n\twrong " + "x" * 9999)).startswith("it is wrong x")
    assert len(str(DoorError("it", "x" * 9999))) < 600
