"""Linux process attributes that Python has no function for (prctl(2)); without effect on other systems."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent process ends.

    Args:
        parent: The expected parent process; this process ends at once if it has another one.
    """
    set_death_signal(signal.SIGKILL)
    # The signal is sent only for a death after the call: a parent that died before it has been replaced by init or
    # a subreaper, which shows in the parent's number.
    if os.getppid() != parent:
        os._exit(1)


def set_death_signal(number: int) -> None:
    """Have the kernel send this process a signal when the thread ends that forked it."""
    _prctl(_PR_SET_PDEATHSIG, number)


def become_subreaper() -> None:
    """Become the parent, instead of init, of every orphaned process among the descendants of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_dumpable(dumpable: bool) -> None:
    """Allow or forbid other processes of this user to trace this one and read its ``/proc`` entries (root may always).

    ``/proc/PID/environ`` requires ``PTRACE_MODE_READ``, which a process that is not dumpable denies (ptrace(2)).
    """
    _prctl(_PR_SET_DUMPABLE, int(dumpable))
