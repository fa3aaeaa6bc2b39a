"""Work that threads do while the checks run: each task once, after those it needs, what is waited for first."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_nvfp4.cores import cores
from pytest_nvfp4.isolation import stopped_by

_JOB_BYTES = 4 << 30
"""Memory to have for each task: a compile or a simulation of the kernels here takes up to 1.4 GB (measured)."""
_MOST = 8
_TURN_S = 0.2


def fitting() -> int:
    """How many compiles or simulations this machine has the cores and the memory for; at least one."""
    return max(1, min(cores(), _free_bytes() // _JOB_BYTES, _MOST))


def _free_bytes() -> int:
    """Memory that is free: of the machine, and of the control group (cgroup v2) this process may be bound to."""
    free = [_MOST * _JOB_BYTES]
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / f"memory.{name}").read_text(encoding="ascii") for name in ("max", "current"))
        free.append(int(limit) - int(used))
    return min(free)


@dataclass(eq=False)
class Task:
    """A piece of work.

    Attributes:
        name: What it is, for people.
        work: Does it, and leaves what it found where the checks look. What it raises is dropped: the check that needs
            it meets the same, and says it.
        after: Tasks that have to be over before.
        over: Set when it was done, or never will be.
    """

    name: str
    work: Callable[[], object]
    after: Sequence[Task] = ()
    over: threading.Event = field(default_factory=threading.Event)


class Workers:
    """Threads that do tasks.

    Args:
        tasks: The tasks, in the order to do them in; each comes after those it needs.
        threads: How many at once.
    """

    def __init__(self, tasks: Sequence[Task], *, threads: int) -> None:
        self._waiting = list(tasks)
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, name=f"nvfp4-worker-{index}", daemon=True)
            for index in range(min(threads, len(tasks)))
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def wait(self, task: Task) -> None:
        """Wait until a task is over; it and what it needs come before everything that was not begun."""
        needed = set(_closure(task))
        with self._changed:
            self._waiting.sort(key=lambda one: one not in needed)
            self._changed.notify_all()
        while not task.over.wait(_TURN_S):
            pass  # in short turns, so that an interrupt ends it

    def stop(self) -> None:
        """Begin nothing more, end the processes of what was begun, and wait for the threads."""
        with self._changed:
            self._stop.set()
            dropped, self._waiting = self._waiting, []
            for task in dropped:
                task.over.set()
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _next(self) -> Task | None:
        with self._changed:
            while self._waiting:
                for task in self._waiting:
                    if all(one.over.is_set() for one in task.after):
                        self._waiting.remove(task)
                        return task
                self._changed.wait(_TURN_S)
            return None

    def _run(self) -> None:
        with stopped_by(self._stop):
            while (task := self._next()) is not None:
                try:
                    with contextlib.suppress(BaseException):  # pytest.skip is one of those that are no Exception
                        task.work()
                finally:
                    task.over.set()
                    with self._changed:
                        self._changed.notify_all()


def _closure(task: Task) -> list[Task]:
    found = [task]
    for one in task.after:
        found += _closure(one)
    return found
