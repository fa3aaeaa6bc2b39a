"""A profiler's hole in the wall: its own ports and abstract sockets, and no others."""

from __future__ import annotations

import json
import socket
import sys
import uuid
from pathlib import Path

import pytest

from pytest_nvfp4.isolation.wall import Wall
from pytest_nvfp4.isolation.wall.description import PROFILER_PORTS
from pytest_nvfp4.isolation.wall.landlock import SIGNALS_ABI, abi

from .behind import behind

pytestmark = pytest.mark.skipif(sys.platform != "linux" or abi() < SIGNALS_ABI, reason="needs Landlock 6")

TRIES = """
import errno, json, socket, sys
def tried(family, address):
    try:
        with socket.socket(family, socket.SOCK_STREAM) as one:
            one.connect(address)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "reached"
own, other, abstract = int(sys.argv[1]), int(sys.argv[2]), "\\0" + sys.argv[3]
with open("answer.json", "w") as file:
    json.dump({
        "own": tried(socket.AF_INET, ("127.0.0.1", own)),
        "other": tried(socket.AF_INET, ("127.0.0.1", other)),
        "abstract": tried(socket.AF_UNIX, abstract),
        "six": tried(socket.AF_INET6, ("::1", own)),
    }, file)
"""


@pytest.fixture
def own() -> socket.socket:
    """A listener on a free port of a profiler."""
    for port in PROFILER_PORTS:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            continue  # another process has it
    pytest.skip("all ports of profilers are in use")


@pytest.mark.parametrize("profiler", [True, False])
def test_a_profiler_is_reached_and_nothing_else(tmp_path: Path, own: socket.socket, *, profiler: bool) -> None:
    name = f"nvfp4-{uuid.uuid4()}"
    with own, socket.create_server(("127.0.0.1", 0)) as other, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{name}")
        abstract.listen()
        wall = Wall(folder=str(tmp_path), gpu=True, profiler=profiler)
        done = behind(wall, TRIES, own.getsockname()[1], other.getsockname()[1], name)
    assert done.returncode == 0, done.stderr.text
    answer = json.loads((tmp_path / "answer.json").read_text())
    refused = {"own": "EPERM", "other": "EPERM", "abstract": "EPERM", "six": "EPERM"}
    assert answer == ({**refused, "own": "reached", "other": "EACCES", "abstract": "reached"} if profiler else refused)
