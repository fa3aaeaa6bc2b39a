"""How tests wait: for conditions, as long as the slowest machine may need, and never for a time to pass."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

LONGEST_S = 180.0
"""Only what would never come true is waited for so long; processes of tests that are to be ended sleep longer."""


def until(true: Callable[[], object], *, within_s: float = LONGEST_S) -> bool:
    """Whether something comes true."""
    end = time.monotonic() + within_s
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # it ended before it was opened, or before it was read
        return False


def locked(file: Path) -> bool:
    """Whether a process holds a lock on a file (flock(2)), as one behind a wall may on what it can only read."""
    with file.open("rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def gone(pid: int) -> bool:
    """Whether a process ends; one that was killed may need a while to."""
    return until(lambda: not alive(pid))


def noted(note: Path) -> int:
    """The number on the one line that a process writes into a file when it has come so far."""
    assert until(lambda: note.is_file() and note.read_text().endswith("\n")), f"{note.name} was not written"
    return int(note.read_text())


def far_enough(act: Callable[[float], T], reached: Callable[[T], object], *, first_s: float = 1.0) -> T:
    """What ``act`` gives with a deadline that passes only after something else has been reached.

    A process that is to be ended at its deadline has to start first, and how long that takes is the machine's affair:
    with a deadline that proves too short it is done once more with a longer one.

    Args:
        act: Takes the deadline in seconds.
        reached: Whether it was reached.
        first_s: The first deadline; enough on an idle machine.
    """
    deadline_s = first_s
    while True:
        given = act(deadline_s)
        if reached(given) or deadline_s > LONGEST_S:
            return given
        deadline_s *= 3
