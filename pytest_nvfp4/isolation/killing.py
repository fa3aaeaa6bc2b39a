"""End a process and everything it started, wherever that went."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from pytest_nvfp4.isolation.descent import descendants
from pytest_nvfp4.isolation.environment import TOKEN_VARIABLE

_LOOKS = 20
_BETWEEN_LOOKS_S = 0.005


def kill_group(pid: int) -> None:
    """Kill a process group; it may be gone already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_family(pid: int) -> int:
    """Kill the group of a process that was not waited for, and what left the group but descends from it.

    A worker is the parent of all orphans among its descendants (``descent.adopt``), so that while it lives
    they are found, whatever they did to hide.

    Returns:
        How many had left the group.
    """
    away = [one for one in descendants(pid) if _left(one, group=pid)]
    kill_group(pid)
    for one in away:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one, signal.SIGKILL)
    return len(away)


def _left(pid: int, *, group: int) -> bool:
    try:
        return os.getpgid(pid) != group
    except (ProcessLookupError, PermissionError):
        return False


def kill_marked(token: str, own: int) -> int:
    """Kill what is left and carries the token, until a look finds nothing more (a fork bomb may outrun one look).

    Args:
        token: What its environment was marked with.
        own: The caller's process, which is spared.

    Returns:
        How many were killed.
    """
    killed: set[int] = set()
    for _ in range(_LOOKS):
        left = [pid for pid in _marked(token) if pid != own]
        if not left:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(_BETWEEN_LOOKS_S)
    return len(killed)


def _marked(token: str) -> list[int]:
    """Processes that carry our token in their environment: children that left the process group included."""
    needle = f"{TOKEN_VARIABLE}={token}".encode()
    found = []
    for entry in Path("/proc").iterdir() if sys.platform == "linux" else ():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
