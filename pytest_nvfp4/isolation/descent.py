"""The processes that descend from one, as ``/proc`` tells, orphans among them where they are adopted."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def adopt() -> None:
    """Become the parent, instead of init, of every orphan among the descendants of this process (prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(of: int) -> list[int]:
    """The processes below one, those that have ended but were not waited for left out; none where there is no /proc."""
    if sys.platform != "linux":
        return []
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.name))
    found, todo = [], [of]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found
