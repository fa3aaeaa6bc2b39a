"""What threw its mark away is found by descent, whether its worker ended, crashed or hung."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .conftest import Workers
from .test_run import alive, gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are no nurseries elsewhere")

HIDES = """
import os, subprocess, sys, time
if __name__ == "__main__":
    os.environ.pop("NVFP4_RESULT_FD")
    away = subprocess.Popen(
        ["env", "-i", "setsid", "--fork", "sh", "-c", "sleep 60 >/dev/null & echo $!"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )
    print(int(away.stdout.readline()), flush=True)
    away.wait()
    {end}
"""
ENDS = {"ends": "pass", "crashes": "os.abort()", "hangs": "time.sleep(60)"}


@pytest.mark.parametrize("end", ENDS)
def test_it_is_ended(workers: Workers, end: str) -> None:
    outcome = workers.run(HIDES.replace("{end}", ENDS[end]), nursery=True, deadline_s=3.0 if end == "hangs" else 30.0)
    (pid,) = map(int, outcome.stdout.text.split())
    assert gone(pid)


def test_without_a_nursery_it_would_be_lost(workers: Workers) -> None:
    outcome = workers.run(HIDES.replace("{end}", "pass"), nursery=False)
    (pid,) = map(int, outcome.stdout.text.split())
    assert alive(pid)
    subprocess.run(["kill", "-9", str(pid)], check=True)
