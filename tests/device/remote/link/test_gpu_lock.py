"""One session at a time on a GPU."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_nvfp4.device.remote.link.gpu_lock import exclusive_gpu
from tests.waiting import LONGEST_S

HOLDS = """
import sys
from pathlib import Path
from pytest_nvfp4.device.remote.link.gpu_lock import exclusive_gpu
with exclusive_gpu("0", waiting=lambda: None, folder=Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_waits_and_gets_it_when_the_first_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        said, got = threading.Event(), threading.Event()

        def want() -> None:
            with exclusive_gpu("0", waiting=said.set, folder=tmp_path):
                got.set()

        thread = threading.Thread(target=want)
        thread.start()
        assert said.wait(LONGEST_S), "that it waits is said"
        assert not got.is_set()
        with exclusive_gpu("1", waiting=lambda: pytest.fail("another GPU is free"), folder=tmp_path):
            pass
    finally:
        holder.kill()
        holder.communicate()
    assert got.wait(LONGEST_S)
    thread.join()


def test_a_file_that_somebody_planted_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    (tmp_path / "pytest-nvfp4-gpu-0.lock").symlink_to(target)
    with exclusive_gpu("0", waiting=lambda: None, folder=tmp_path):
        assert not target.exists()


def test_no_gpu_needs_no_lock(tmp_path: Path) -> None:
    with exclusive_gpu("", waiting=lambda: None, folder=tmp_path):
        assert list(tmp_path.iterdir()) == []
