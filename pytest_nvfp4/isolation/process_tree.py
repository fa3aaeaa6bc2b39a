"""Find and kill the processes that a worker has started, wherever they went.

A descendant can leave its worker in three ways, and each has its remedy:

- It stays in the worker's process group: ``kill_group`` reaches it.
- It starts a session of its own: it still carries the token in its environment, for ``kill_by_token``.
- It starts a session and clears its environment (``env -i setsid``): it is reached through ``/proc/PID/stat``, which
  names the parent of each process. When the processes between it and the worker have ended, it is re-parented to
  the nearest subreaper (``prctl.become_subreaper``), which a worker is itself, so the chain never breaks while the
  worker lives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from pytest_nvfp4.isolation.environment import TOKEN_VARIABLE

_PASSES = 50
"""A pass over ``/proc`` is not atomic, and a fork bomb may outrun several."""
_BETWEEN_PASSES_S = 0.005


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
    children: dict[int, list[int]] = {}
    for entry in processes():
        if entry.state not in "ZX":
            children.setdefault(entry.parent, []).append(entry.pid)
    below, parents = [], [pid]
    while parents:
        direct = children.get(parents.pop(), [])
        below += direct
        parents += direct
    return below


def environment_of(pid: int) -> Collection[bytes]:
    """Return the ``NAME=VALUE`` entries with which a process was started; empty if they cannot be read."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ()


def kill(pid: int) -> bool:
    """Kill a process, and return whether it existed and could be killed."""
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def kill_group(pid: int) -> None:
    """Kill a process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_tree(pid: int) -> int:
    """Kill the process group of a process that has not been reaped, and its descendants outside the group.

    Returns:
        The number of descendants outside the group.
    """
    outside = [descendant for descendant in descendants(pid) if _group(descendant) not in (pid, None)]
    kill_group(pid)
    for descendant in outside:
        kill(descendant)
    return len(outside)


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def kill_by_token(token: str) -> int:
    """Kill every process that carries a token in its environment, this process excepted.

    Returns:
        The number of processes killed.
    """
    entry = f"{TOKEN_VARIABLE}={token}".encode()
    return _kill_until_none(lambda: [pid for pid in _pids() if pid != os.getpid() and entry in environment_of(pid)])


def kill_descendants() -> None:
    """Kill every descendant of this process."""
    _kill_until_none(lambda: descendants(os.getpid()))


def _kill_until_none(find: Callable[[], list[int]]) -> int:
    killed: set[int] = set()
    for _ in range(_PASSES):
        pids = find()
        if not pids:
            break
        killed.update(pid for pid in pids if kill(pid))
        time.sleep(_BETWEEN_PASSES_S)
    return len(killed)


def _pids() -> list[int]:
    if sys.platform != "linux":
        return []
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
