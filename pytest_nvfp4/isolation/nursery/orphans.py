"""End what the children of a nursery left behind without the mark by which it would be found.

A process that left its group and threw its environment away (``env -i setsid``) is found neither by the one nor by the
other. But with ``PR_SET_CHILD_SUBREAPER`` (prctl(2)) it becomes a child of the nursery, instead of init's, when the
process that started it ends. What still carries a mark is left to whoever looks for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path

from pytest_nvfp4.isolation.environment import TOKEN_VARIABLE

_LOOKS = 50


def end(*, known: Collection[int]) -> None:
    """Kill the unmarked orphans among this process's children, and those that they leave in turn.

    Args:
        known: Its own children.
    """
    for _ in range(_LOOKS):
        orphans = [pid for pid in _children() if pid not in known]
        unmarked = [pid for pid in orphans if not _marked(pid)]
        for pid in unmarked:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in orphans:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0 if pid in unmarked else os.WNOHANG)
        if not unmarked:
            return


def _children() -> list[int]:
    own = os.getpid()
    try:
        return list(map(int, Path(f"/proc/{own}/task/{own}/children").read_text(encoding="ascii").split()))
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return []


def _marked(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return any(
            variable.startswith(f"{TOKEN_VARIABLE}=".encode())
            for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        )
    return False
