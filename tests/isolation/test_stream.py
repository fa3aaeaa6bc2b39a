"""Output that is passed on as it comes: it ends as what is kept does."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from pytest_nvfp4.isolation import ProcessEnd, StoppedError, forward_output, stopped_by, streamed
from tests.isolation.supervised import supervised
from tests.waiting import LONGEST_S, far_enough, gone

AWAY = (
    supervised()
    + """
import subprocess, sys, time
away = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(away.pid, flush=True)
"""
)
CLOSES = "import os; os.closerange(0, 3); os.close(int(os.environ['NVFP4_RESULT_FD']))\n"

Said = dict[str, bytes]


def execute(tmp_path: Path, source: str, *, deadline_s: float = LONGEST_S) -> tuple[ProcessEnd, Said]:
    said = {"stdout": b"", "stderr": b""}

    def take(stream: str, data: bytes) -> None:
        said[stream] += data

    chunks = streamed([sys.executable, "-c", source], cwd=tmp_path, deadline_s=deadline_s)
    return forward_output(chunks, take), said


def test_all_that_is_said_is_passed_on_and_what_is_returned_is_not(tmp_path: Path) -> None:
    source = """
import os, sys
os.write(int(os.environ["NVFP4_RESULT_FD"]), b"returned")
sys.stdout.write("o" * 300_000); sys.stderr.write("e" * 300_000)
sys.exit(3)
"""
    ended, said = execute(tmp_path, source)
    assert said == {"stdout": b"o" * 300_000, "stderr": b"e" * 300_000}
    assert (ended.returncode, ended.timed_out, ended.exit_status) == (3, False, 3)


def test_a_piece_comes_before_the_end_and_closing_ends_the_command(tmp_path: Path) -> None:
    source = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    pieces = streamed([sys.executable, "-c", source], cwd=tmp_path, deadline_s=LONGEST_S)
    stream, data = next(pieces)
    assert stream == "stdout"
    pieces.close()
    assert gone(int(data))


@pytest.mark.parametrize("closes", ["", CLOSES], ids=["hangs", "closes its pipes"])
def test_a_hang_ends_at_the_deadline_with_what_left_its_group(tmp_path: Path, closes: str) -> None:
    source = f"{AWAY}{closes}time.sleep(600)"
    ended, said = far_enough(
        lambda deadline_s: execute(tmp_path, source, deadline_s=deadline_s), lambda got: got[1]["stdout"], first_s=0.5
    )
    assert (ended.timed_out, ended.exit_status) == (True, 124)
    assert gone(int(said["stdout"]))


def test_what_is_left_behind_holds_the_pipes_and_not_the_end(tmp_path: Path) -> None:
    ended, said = execute(tmp_path, AWAY)
    assert (ended.returncode, ended.timed_out) == (0, False)
    assert gone(int(said["stdout"]))


def test_a_thread_that_is_to_stop_ends_its_command(tmp_path: Path) -> None:
    stop, said = threading.Event(), bytearray()

    def take(_: str, data: bytes) -> None:
        said.extend(data)
        stop.set()

    source = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with stopped_by(stop), pytest.raises(StoppedError):
        forward_output(streamed([sys.executable, "-c", source], cwd=tmp_path, deadline_s=LONGEST_S), take)
    assert int(said) != os.getpid()
    assert gone(int(said))
