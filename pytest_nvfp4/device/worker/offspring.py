"""Leave no process behind that a kernel started, however it hid it.

The parent kills a worker's process group, and whatever carries the token of its environment. A process that left the
group and threw its environment away is neither. But with ``PR_SET_CHILD_SUBREAPER`` (prctl(2)) an orphan becomes the
child of the worker instead of init's, so that the worker can find it by descent as long as it lives itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from pytest_nvfp4.isolation.descent import descendants

_LOOKS = 50


def end_all() -> None:
    """Kill every descendant of this process, until there is none: what is killed may just have started another."""
    for _ in range(_LOOKS):
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
