"""A process whose descendants hide, and those that outlive it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from tests.waiting import alive

HIDES = """
import os, subprocess, sys, time
from pytest_nvfp4.isolation.prctl import become_subreaper
from pytest_nvfp4.isolation.process_tree import descendants, kill_descendants
if sys.argv[1] == "adopts":
    become_subreaper()
away = subprocess.Popen(
    ["env", "-i", "setsid", "--fork", "sh", "-c", "sleep 60 >/dev/null & echo $!"],
    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
)
hidden = int(away.stdout.readline())
away.wait()
plain = subprocess.Popen(["sleep", "60"]).pid
if sys.argv[1] == "adopts":
    assert {plain, hidden} <= set(descendants(os.getpid()))
kill_descendants(os.getpid())
print(plain, hidden, flush=True)
"""


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
