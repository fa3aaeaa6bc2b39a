"""Find and end the processes that a worker has started, wherever they went.

A descendant can leave its worker's process group and session, clear its environment, and lose the processes between it
and the worker. Then it is re-parented to the nearest subreaper (``prctl.become_subreaper``). Every worker that runs a
kernel's code has one above it (``wall.supervisor``), so that the chain of parents in ``/proc/PID/stat`` never breaks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_BETWEEN_LOOKS_S = 0.002
_PASSES_S = 10.0
"""Seconds for which new processes are looked for; each pass stops those that it finds, so few passes are needed."""


class ProcessEntry(NamedTuple):
    """One process of ``/proc``: its number, its state (proc(5): ``Z`` for a zombie), and its parent's number."""

    pid: int
    state: str
    parent: int


def processes() -> Iterator[ProcessEntry]:
    """Yield the processes of this machine; none where there is no ``/proc``."""
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError):
            # The second field is the program's name in parentheses, which may itself hold parentheses and spaces.
            state, parent, *_ = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            yield ProcessEntry(pid, state, int(parent))


def descendants(pid: int) -> list[int]:
    """Return the running processes below a process."""
    children: dict[int, list[ProcessEntry]] = {}
    for entry in processes():
        children.setdefault(entry.parent, []).append(entry)
    below, parents = [], [pid]
    while parents:
        direct = children.get(parents.pop(), [])
        below += [entry.pid for entry in direct if entry.state not in "ZX"]
        parents += [entry.pid for entry in direct]  # a process whose first thread has ended looks like a zombie
    return below


def ancestors(pid: int) -> list[int]:
    """Return the processes above a process, the nearest first."""
    parents = {entry.pid: entry.parent for entry in processes()}
    above: list[int] = []
    while (pid := parents.get(pid, 0)) and pid not in above:
        above.append(pid)
    return above


def kill(pid: int) -> bool:
    """Kill a process, and return whether it existed and could be killed."""
    return _send(pid, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Kill a process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """Kill a process that has not been reaped, its group, and everything below it.

    It is stopped first, and so adopts what loses its parent meanwhile (if it is a subreaper) and neither ends nor
    reaps.
    """
    _send(pid, signal.SIGSTOP)
    kill_descendants(pid)
    kill_group(pid)
    kill(pid)


def kill_descendants(pid: int) -> None:
    """Kill everything below a process, however fast it forks, and wait until it has ended.

    What is found is stopped first, because a stopped process does not fork, and killed when nothing new is found. A
    fork that has begun goes on in spite of the stop, and its child appears later: it is looked for once the others have
    ended, so that its parent is the process given (if that is a subreaper).
    """
    until = time.monotonic() + _PASSES_S
    while killed := [descendant for descendant in _stop_descendants(pid, until) if kill(descendant)]:
        while any(map(_runs, killed)) and time.monotonic() < until:
            time.sleep(_BETWEEN_LOOKS_S)
        if time.monotonic() >= until:
            return


def _stop_descendants(pid: int, until: float) -> set[int]:
    stopped: set[int] = set()
    while (found := set(descendants(pid)) - stopped) and time.monotonic() < until:
        for descendant in found:
            _send(descendant, signal.SIGSTOP)
        stopped |= found
    return stopped


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _pids() -> list[int]:
    if sys.platform != "linux":
        return []
    try:
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:  # it is not mounted
        return []
