"""A machine behind a connection that lies: each lie is one error, in bounded time and memory."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from pytest_nvfp4.device.remote.base import Batch, PythonProgram, RemoteError
from pytest_nvfp4.device.remote.link import client
from pytest_nvfp4.device.remote.link.client import AgentConnection, AgentSettings
from pytest_nvfp4.device.remote.link.frames import FrameError, receive
from tests.device.remote.fakes import job

AGENT = """
import json, os, struct, sys, time
out, inp = sys.stdout.buffer, sys.stdin.buffer
def frame(kind, payload=b"", size=None, **header):
    head = json.dumps({"kind": kind, **header}).encode()
    out.write(struct.pack(">4sIQ", b"nvf4", len(head), len(payload) if size is None else size) + head + payload)
    out.flush()
def ready(**more):
    frame("ready", **{"protocol": 1, "place": {"container": "c"}, "gpu": "", "gpus": 0, "missing": [],
                      "executable": "python", **more})
def request():
    while True:
        magic, head, size = struct.unpack(">4sIQ", inp.read(16))
        header = json.loads(inp.read(head))
        inp.read(size)
        if header["kind"] in ("batch", "execute"):
            return header["id"]
print("NVFP4-REMOTE 3 11", flush=True)
inp.read(int(inp.readline()))
settings = json.loads(inp.readline())
inp.read(settings["size"])
"""


def connection(lie: str, **settings: Any) -> AgentConnection:
    """A connection to a machine that runs ``lie`` after the package has arrived."""
    return AgentConnection(
        [sys.executable, "-c", AGENT + lie],
        environ=dict(os.environ),
        settings=AgentSettings(**{"hello_s": 60.0, "ready_s": 60.0, **settings}),
        explain=lambda status, errors: RemoteError("remote", f"it ended with {status}: {errors}"),
    )


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that does not end is killed soon."""
    monkeypatch.setattr(client, "_END_S", 0.3)


def test_a_lie_is_an_error() -> None:
    assert "lacks place" in error_of(connection('frame("ready", protocol=1)\ninp.read()').open)


def error_of(act: Callable[[], object]) -> str:
    start = time.monotonic()
    with pytest.raises(RemoteError) as caught:
        act()
    assert time.monotonic() - start < 90
    text = str(caught.value)
    assert len(text) < 5000
    assert "\n" not in text.partition("Traceback")[0]
    return f"{caught.value.kind}: {text}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ('frame("ready", protocol=1)', "lacks place"),
        ("ready(protocol=[[]])", "uses protocol"),
        ('ready(gpus=-1)', "gpus"),
        ('ready(gpus="many")', "gpus"),
        ('ready(place={"startup_s": -5})', "startup_s"),
        ('ready(missing=["x"] * 1000)', "missing"),
        ('out.write(b"NVFP4 " + b"[" * 50000 + b"\\n"); out.flush()', "nested deeper"),
        ('out.write(b"NVFP4 {}\\n"); out.flush()', "arrived damaged"),
        ('out.write(b"NVFP4 " + b"x" * 100000); out.flush(); time.sleep(1)', "not JSON|does not start"),
        ('frame("ready", b"", 4 << 30)', "announces 4294967296 bytes"),
        ('out.write(struct.pack(">4sIQ", b"nvf4", 1 << 31, 0)); out.flush()', "does not start a message"),
        ('out.write(struct.pack(">4sIQ", b"nvf4", 5, 0) + b"[[[[["); out.flush()', "header of a message"),
        ('out.write(struct.pack(">4sIQ", b"nvf4", 2, 0) + b"{}"); out.flush()', "no kind"),
    ],
)  # fmt: skip
def test_an_agent_that_starts_with_a_lie(lie: str, words: str) -> None:
    assert re.search(words, error_of(connection(lie + "\ninp.read()").open))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ('frame("result", b"{}", id=asked)', "version None"),
        ('frame("result", b"[" * 99999, id=asked)', "nested deeper"),
        ('frame("result", b"\\xff\\xfe", id=asked)', "UTF-8"),
        ('frame("result", b"", 2 << 30, id=asked)', "announces"),
        ('frame("state", id=asked)', "lacks state"),
        ('frame("state", id=asked, state="what")', "state"),
        ('frame("error", id=asked)', "no reason"),
        ('frame("error", id=asked, error="what", problem="p" * 9000, remedy="")', "remote: .*characters left out"),
        ('frame("error", id=asked, error=[], problem="p")', "error"),
        ('while True: frame("state", id=asked, state="running")', "did not return the batch"),
        ('while True: frame("state", id="another", state="running")', "did not return the batch"),
    ],
)  # fmt: skip
def test_an_agent_that_answers_a_batch_with_a_lie(lie: str, words: str) -> None:
    with connection(f"ready()\nasked = request()\n{lie}\ninp.read()") as line:
        batch = Batch(jobs=(job(),))
        found = error_of(lambda: line.execute_batch(batch, timeout_s=2, on_state=lambda _: None))
    assert re.search(words, found), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ('frame("exit", id=asked)', "lacks status"),
        ('frame("exit", id=asked, status=1 << 40, timed_out=False)', "status"),
        ('frame("exit", id=asked, status=0, timed_out="x")', "timed_out"),
        ('frame("output", b"x", id=asked)', "lacks stream"),
        ('frame("output", b"x", id=asked, stream="other")', "stream"),
        ('while True: frame("state", id=asked, state="waiting")', "did not provide a free GPU"),
    ],
)  # fmt: skip
def test_an_agent_that_lies_about_a_program(lie: str, words: str) -> None:
    program = PythonProgram("pass", deadline_s=1.0)
    with connection(f"ready()\nasked = request()\n{lie}\ninp.read()") as line:
        found = error_of(lambda: line.execute(program, on_output=lambda *_: None, on_state=lambda _: None, wait_s=3.0))
    assert words in found


def test_an_announced_size_takes_no_memory() -> None:
    head = json.dumps({"kind": "x"}).encode()
    data = struct.pack(">4sIQ", b"nvf4", len(head), 2 << 30) + head + b"some"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert receive(io.BytesIO(data)) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10, "KiB"
    with pytest.raises(FrameError, match="at most 3 are expected"):
        receive(io.BytesIO(data), most=lambda: 3)
