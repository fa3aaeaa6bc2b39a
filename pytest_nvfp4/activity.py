"""What this process waits for: the jobs of its workers, with the stage of each and the time since it began.

A job is registered by whoever starts a worker (`Activities.doing`), and its stage is read from the events that the
worker sends anyway (``isolation.event_sender``). Whatever shows progress takes a `Activities.snapshot`.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from pytest_nvfp4.text import clip, printed

_STAGE: Final = b'{"event": "stage", '
_MOST_LINE: Final = 4096
_MOST_CHARACTERS: Final = 120


@dataclass(slots=True, eq=False)
class Activity:
    """A job that runs.

    Attributes:
        name: What it is, for people.
        began: When it began, in seconds of the monotonic clock.
        stage: What it does now; empty until its worker has reported a stage.
    """

    name: str
    began: float = field(default_factory=time.monotonic)
    stage: str = ""

    def __str__(self) -> str:
        seconds = f"{time.monotonic() - self.began:.0f} s"
        return f"{self.name}: {self.stage}, {seconds}" if self.stage else f"{self.name}: {seconds}"


class Activities:
    """The jobs that run, in the order in which they began; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[Activity] = []
        self._own: ContextVar[Activity | None] = ContextVar("nvfp4_activity", default=None)

    @contextlib.contextmanager
    def doing(self, name: str) -> Iterator[None]:
        """Register a job of this thread while the block runs. Within another one, it is a part of that."""
        if self._own.get() is not None:
            yield
            return
        activity = Activity(printed(clip(name, _MOST_CHARACTERS)))
        with self._lock:
            self._running.append(activity)
        token = self._own.set(activity)
        try:
            yield
        finally:
            self._own.reset(token)
            with self._lock:
                self._running.remove(activity)

    def result(self, chunk: bytes) -> None:
        """Read the stage of this thread's job from a part of its worker's result, if it holds a new one.

        The line is not checked as the result will be: a kernel may have written it, so it is only shown.
        """
        activity = self._own.get()
        start = chunk.rfind(_STAGE) if activity is not None else -1
        end = chunk.find(b"\n", start, start + _MOST_LINE) if start >= 0 else -1
        if activity is None or end < 0:
            return
        with contextlib.suppress(ValueError, RecursionError):
            name = json.loads(chunk[start:end]).get("name")
            if isinstance(name, str):
                activity.stage = printed(clip(name, _MOST_CHARACTERS))

    def snapshot(self) -> list[Activity]:
        """Return the jobs that run."""
        with self._lock:
            return list(self._running)


ACTIVITIES: Final = Activities()
"""The jobs of this process."""
