"""Of several processes one makes an entry; neither a killed nor a stopped one blocks the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_nvfp4.toolchain.entry_lock import entry_lock
from tests.waiting import LONGEST_S

HOLDER = """
import sys, time
from pathlib import Path
from pytest_nvfp4.toolchain.entry_lock import entry_lock
with entry_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "a.lock")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_it_is_waited_for_until_its_holder_is_killed_or_stopped(
    tmp_path: Path, holder: subprocess.Popen[str], end: signal.Signals
) -> None:
    entered = threading.Event()

    def enter() -> None:
        with entry_lock(tmp_path / "a.lock"):
            entered.set()

    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    assert not entered.wait(1.5), "the lock is held"
    os.kill(holder.pid, end)
    assert entered.wait(LONGEST_S)
    thread.join()


def test_it_is_free_afterwards(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="failed"), entry_lock(tmp_path / "deep" / "a.lock"):
            raise ValueError("failed")
