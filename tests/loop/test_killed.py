"""A loop that is killed anywhere comes to the same history as one that is not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.loop.state import LoopState, read_model

from .killed import loop_in
from .stubs import StubLoop, StubReviewer

ROOT = Path(__file__).parents[2]


class Killed(BaseException):
    """The end of a process, as far as one process can show it."""


@pytest.mark.slow
def test_killed_at_sixty_random_file_operations(tmp_path: Path) -> None:
    plain, root = loop_in(tmp_path / "plain"), tmp_path / "killed"
    plain.root.mkdir()
    root.mkdir()
    spent = plain.session().run().state.spent
    done = subprocess.run(
        [sys.executable, "-m", "tests.loop.killed", root, "7", "60", "60"],
        cwd=ROOT, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    killed, status, restarts = done.stdout.split()
    assert (int(killed), status) == (60, "stopped")
    assert int(restarts) > 30
    assert loop_in(root).history() == plain.history()
    state = read_model(loop_in(root).folder.state, LoopState)
    assert state is not None
    assert spent.usd <= state.spent.usd <= spent.usd + 60 * 0.5


@pytest.mark.slow
def test_killed_before_or_after_each_single_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    replace, left = Path.replace, [1 << 30]

    def counted(self: Path, target: Path) -> Path:
        left[0] -= 1
        if left[0] == 1:
            replace(self, target)
        if left[0] <= 1:
            raise Killed
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", counted)

    def loop(name: str) -> StubLoop:
        made = StubLoop(tmp_path / name, {"budget": {"iterations": 2}, "worker": {"candidates": 2}})
        made.root.mkdir(exist_ok=True)
        made.reviewer = StubReviewer(1)
        return made

    plain = loop("plain")
    plain.session().run()
    writes = (1 << 30) - left[0]
    assert writes > 30
    expected = plain.history()
    for number in range(writes):
        # After an even number of writes, before the next one; after an odd number, right after it.
        left[0] = number + 1 + number % 2
        with pytest.raises(Killed):
            loop(f"{number}").session().run()
        left[0] = 1 << 30
        loop(f"{number}").session().run()
        assert loop(f"{number}").history() == expected, f"killed at write {number}"
