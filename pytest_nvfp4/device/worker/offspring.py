"""Leave no process behind that a kernel started, however it hid it.

The parent kills a worker's process group, and whatever carries the token of its environment. A process that left the
group and threw its environment away is neither. But with ``PR_SET_CHILD_SUBREAPER`` (prctl(2)) an orphan becomes the
child of the worker instead of init's, so that the worker can find it by descent as long as it lives itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

from pytest_nvfp4.isolation.descent import descendants

_PR_SET_CHILD_SUBREAPER = 36
_LOOKS = 50


def adopt() -> None:
    """Become the parent of every orphan among this process's descendants."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_all() -> None:
    """Kill every descendant of this process, until there is none: what is killed may just have started another."""
    for _ in range(_LOOKS if sys.platform == "linux" else 0):
        left = descendants(os.getpid())
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.002)
