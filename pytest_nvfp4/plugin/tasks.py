"""Worker threads that do each task once, after the tasks it depends on, and first the tasks that are waited for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_nvfp4.cores import cores

_JOB_BYTES = 4 << 30
"""Free memory for each task. A compile or simulation of the shipped kernels takes up to 1.4 GB (measured)."""
_MOST = 8
_POLL_S = 0.2


def default_workers() -> int:
    """Return the number of compiles or simulations that fit the free cores and memory; at least one."""
    return max(1, min(cores(), _free_bytes() // _JOB_BYTES, _MOST))


def _free_bytes() -> int:
    """Return the free memory in bytes, of the machine and of this process's control group (cgroup v2) if it has one."""
    free = [_MOST * _JOB_BYTES]
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free += [int(line.split()[1]) << 10 for line in lines if line.split()[0] == "MemAvailable:"]
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / f"memory.{name}").read_text(encoding="ascii") for name in ("max", "current"))
        free.append(int(limit) - int(used))
    return min(free)


@dataclass(eq=False)
class Task:
    """A task.

    Attributes:
        name: Description for people.
        work: Does the task and stores the result where the checks look it up. Its exceptions are dropped, because the
            check that needs the result meets the same exception and reports it.
        after: Tasks that must be over before this one begins.
        local: Whether it occupies a core of this machine.
        over: Set when the task is done, or was dropped.
    """

    name: str
    work: Callable[[], object]
    after: Sequence[Task] = ()
    local: bool = True
    over: threading.Event = field(default_factory=threading.Event)


class Workers:
    """Threads that do tasks.

    Args:
        tasks: The tasks in their order; each comes after the tasks it depends on.
        threads: Number of threads.
        local: Number of local tasks at once; as many as there are threads by default.
    """

    def __init__(self, tasks: Sequence[Task], *, threads: int, local: int | None = None) -> None:
        self._cores = threads if local is None else local
        self._waiting = list(tasks)
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, name=f"nvfp4-worker-{index}", daemon=True)
            for index in range(min(threads, len(tasks)))
        ]

    @property
    def queued(self) -> int:
        """Number of tasks that have not begun."""
        return len(self._waiting)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def wait(self, task: Task) -> None:
        """Wait until a task is over; it and its dependencies overtake all tasks that have not begun."""
        needed = set(_closure(task))
        with self._changed:
            self._waiting.sort(key=lambda waiting: waiting not in needed)
            self._changed.notify_all()
        while not task.over.wait(_POLL_S):
            pass  # poll, so that an interrupt is handled soon

    def stop(self) -> None:
        """Drop the tasks that have not begun, end the processes of the others, and wait for the threads."""
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
                    if (self._cores or not task.local) and all(needed.over.is_set() for needed in task.after):
                        self._waiting.remove(task)
                        self._cores -= task.local
                        return task
                self._changed.wait(_POLL_S)
            return None

    def _run(self) -> None:
        from pytest_nvfp4.isolation import stopped_by  # here, because runs without kernels do not need it

        with stopped_by(self._stop):
            while (task := self._next()) is not None:
                try:
                    with contextlib.suppress(BaseException):  # pytest.skip raises no subclass of Exception
                        task.work()
                finally:
                    task.over.set()
                    with self._changed:
                        self._cores += task.local
                        self._changed.notify_all()


def _closure(task: Task) -> list[Task]:
    return [task, *(needed for dependency in task.after for needed in _closure(dependency))]
