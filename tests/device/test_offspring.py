from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descent is read from /proc")

HIDES = """
import os, subprocess, sys, time
from pytest_nvfp4.device.worker import offspring
from pytest_nvfp4.isolation import descent
if sys.argv[1] == "adopts":
    descent.adopt()
away = subprocess.Popen(
    ["env", "-i", "setsid", "--fork", "sh", "-c", "sleep 60 >/dev/null & echo $!"],
    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
)
hidden = int(away.stdout.readline())
away.wait()
plain = subprocess.Popen(["sleep", "60"]).pid
if sys.argv[1] == "adopts":
    assert {plain, hidden} <= set(descent.descendants(os.getpid()))
offspring.end_all()
print(plain, hidden, flush=True)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # it ended before it was opened, or before it was read
        return False


def left(how: str) -> list[bool]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(HIDES), how], capture_output=True, text=True, timeout=900, check=True
    )
    pids = list(map(int, done.stdout.split()))
    found = [alive(pid) for pid in pids]
    for pid in pids:
        if alive(pid):
            subprocess.run(["kill", "-9", str(pid)], check=True)
    return found


def test_what_left_the_group_and_its_environment_is_found_by_descent() -> None:
    assert left("adopts") == [False, False]


def test_without_adopting_it_would_be_lost() -> None:
    assert left("does not") == [False, True]
