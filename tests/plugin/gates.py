"""Tasks that record their order, and one that a test holds open."""

from __future__ import annotations

import threading

from pytest_nvfp4.plugin.tasks import Task
from tests.waiting import LONGEST_S


class Gate:
    """A task that runs until it is let through, and notes that it began."""

    def __init__(self, name: str, order: list[str], *after: Task) -> None:
        self.began, self._open = threading.Event(), threading.Event()
        self._order = order
        self.task = Task(name, self._work, after)

    def _work(self) -> None:
        self._order.append(self.task.name)
        self.began.set()
        assert self._open.wait(LONGEST_S)

    def open(self) -> None:
        self._open.set()
        assert self.task.over.wait(LONGEST_S)


def noting(order: list[str], name: str, *after: Task) -> Task:
    return Task(name, lambda: order.append(name), after)
