"""Limits that an isolated process sets on itself before it runs untrusted code."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

PARENT_VARIABLE: Final = "NVFP4_PARENT_PID"
DEADLINE_VARIABLE: Final = "NVFP4_DEADLINE"
"""Name of the variable with the time on the monotonic clock before which a process is not ended, in seconds."""
_AGAIN_S: Final = 0.1
"""Seconds between two calls of the function that is called in time."""
_SHARE_OF_MACHINE: Final = 0.9
"""Largest share of the memory of this machine, or container, for one process."""
_CGROUPS: Final = (("", "memory.max"), ("memory", "memory.limit_in_bytes"))
"""Controllers below ``/sys/fs/cgroup`` and their limit: cgroup v2, and v1."""


def write_stack_in_time(file: IO[str]) -> None:
    """Let ``faulthandler`` write the stack of this process to an open file shortly before its deadline, which ends it.

    There is no deadline in a process that ``isolation.monitor`` has not started.
    """
    if (left := _left_s()) is not None:
        faulthandler.dump_traceback_later(left, file=file)


@contextlib.contextmanager
def called_in_time(act: Callable[[], None]) -> Iterator[None]:
    """Call a function in the main thread shortly before the deadline of this process, and repeatedly from then on."""
    if (left := _left_s()) is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda *_: act())
    signal.siginterrupt(signal.SIGALRM, False)
    signal.setitimer(signal.ITIMER_REAL, left, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _left_s() -> float | None:
    """Return the seconds from now to shortly before the deadline, and forget it; None if there is none."""
    try:
        left = float(os.environ.pop(DEADLINE_VARIABLE)) - time.monotonic()
    except (KeyError, ValueError):
        return None
    return max(0.05, left - min(3.0, 0.1 * left))


def machine_bytes() -> int | None:
    """Return the memory of this machine, or of the container in which this process runs; None if unknown."""
    return min(_memory_limits(), default=None)


def _memory_limits() -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller, file in _CGROUPS:
            if controller == controllers:
                base = Path("/sys/fs/cgroup", controller)
                group = base / path.lstrip("/")
                # A container may mount its own part of the hierarchy at the base, where the path does not exist.
                for folder in (base, *(place for place in (group, *group.parents) if place.is_relative_to(base))):
                    with contextlib.suppress(OSError, ValueError):  # "max"
                        yield int((folder / file).read_text(encoding="utf-8"))


def apply(
    *, memory_bytes: int | None, file_bytes: int | None, processes: int | None = None, descriptors: int | None = None
) -> None:
    """Limit this process and all that it starts.

    Memory is bounded by ``RLIMIT_DATA`` (private writable memory), not ``RLIMIT_AS``, because CUDA libraries reserve
    far more address space than they use; it is never more than this machine or container has, so that a kernel ends
    before the system has to choose what to end. Core files are disabled. A user's number of processes is counted with
    those that the user has now, unless they are in another user namespace. It does not bind root.
    """
    machine = machine_bytes()
    if memory_bytes is not None and machine is not None:
        memory_bytes = min(memory_bytes, int(machine * _SHARE_OF_MACHINE))
    forbid_core_files()
    if processes is not None:
        _lower(resource.RLIMIT_NPROC, _tasks_of_user() + processes)
    for kind, value in (
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, descriptors),
    ):
        if value is not None:
            _lower(kind, value)
    prefer_as_victim()


def forbid_core_files() -> None:
    """Write no memory image if this process crashes."""
    _lower(resource.RLIMIT_CORE, 0)


def prefer_as_victim() -> None:
    """Have the system, when it is out of memory, end this process and what it starts before any other."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")


def _lower(kind: int, value: int) -> None:
    """Lower both limits of a kind: a process could raise the soft one again."""
    soft, hard = resource.getrlimit(kind)
    limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (limit if soft == resource.RLIM_INFINITY else min(limit, soft), limit))


def _tasks_of_user() -> int:
    """Return the number of threads that this user has now, as far as ``/proc`` shows them."""
    count, user = 0, os.geteuid()
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if entry.stat().st_uid == user:
                        count += len(os.listdir(f"{entry.path}/task"))  # noqa: PTH208 - faster, and there are many
    return count
