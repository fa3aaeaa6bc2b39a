"""A process that cleared its environment is found as an orphan, whether its worker ended, crashed or hung."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.waiting import alive, far_enough, gone

from .conftest import Workers
from .supervised import supervised

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are no fork servers elsewhere")

HIDES = """
import os, subprocess, sys, time
if __name__ == "__main__":
    os.environ.pop("NVFP4_RESULT_FD")
    away = subprocess.Popen(
        ["env", "-i", "setsid", "--fork", "sh", "-c", "sleep 600 >/dev/null & echo $!"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )
    print(int(away.stdout.readline()), flush=True)
    away.wait()
    {end}
"""
ENDS = {"ends": "pass", "crashes": "os.abort()", "hangs": "time.sleep(600)"}


@pytest.mark.parametrize("end", ENDS)
def test_it_is_killed(workers: Workers, end: str) -> None:
    source = HIDES.replace("{end}", ENDS[end])
    if end == "hangs":
        outcome = far_enough(
            lambda deadline_s: workers.run(source, forked=True, deadline_s=deadline_s), lambda it: it.stdout.text
        )
        assert outcome.timed_out
    else:
        outcome = workers.run(source, forked=True)
    (pid,) = map(int, outcome.stdout.text.split())
    assert gone(pid)


def test_a_plain_worker_has_a_supervisor_for_it(workers: Workers) -> None:
    outcome = workers.run(supervised() + HIDES.replace("{end}", "pass"), forked=False)
    (pid,) = map(int, outcome.stdout.text.split())
    assert gone(pid)


def test_without_both_it_is_lost(workers: Workers) -> None:
    outcome = workers.run(HIDES.replace("{end}", "pass"), forked=False)
    (pid,) = map(int, outcome.stdout.text.split())
    assert alive(pid)
    subprocess.run(["kill", "-9", str(pid)], check=True)
