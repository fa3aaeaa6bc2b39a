"""A thread's process is ended from another thread, with everything it started."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from pytest_nvfp4.isolation import Outcome, StoppedError, run, stopped_by
from tests.waiting import LONGEST_S, gone, noted

HANGS = "import os, sys, time\nopen(sys.argv[1], 'w').write(f'{os.getpid()}\\n')\ntime.sleep(600)\n"
CLOSES = HANGS.replace("time.sleep", "os.closerange(0, 3); os.close(int(os.environ['NVFP4_RESULT_FD']))\ntime.sleep")


def execute(source: str, note: Path) -> Outcome:
    return run([sys.executable, "-c", source, str(note)], cwd=note.parent, deadline_s=600)


@pytest.mark.parametrize("source", [HANGS, CLOSES], ids=["hangs", "closes its pipes"])
def test_a_thread_is_stopped_and_its_process_is_gone(tmp_path: Path, source: str) -> None:
    stop, raised, note = threading.Event(), [], tmp_path / "note"

    def work() -> None:
        with stopped_by(stop):
            try:
                execute(source, note)
            except StoppedError as error:
                raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    pid = noted(note)
    stop.set()
    thread.join(LONGEST_S)
    assert not thread.is_alive()
    assert len(raised) == 1
    assert gone(pid)
    assert pid != os.getpid()


def test_other_threads_and_what_comes_after_are_not_stopped(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    done = []
    with stopped_by(stop):
        with pytest.raises(StoppedError):
            execute(HANGS, tmp_path / "note")
        thread = threading.Thread(target=lambda: done.append(execute("pass", tmp_path / "note")))
        thread.start()
        thread.join(LONGEST_S)
    assert [outcome.returncode for outcome in done] == [0]
    assert execute("pass", tmp_path / "note").returncode == 0
