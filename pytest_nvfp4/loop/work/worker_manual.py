"""The worker of the mode ``manual``: people, or programs that somebody else starts."""

from __future__ import annotations

import threading
import time
from typing import Final

from pytest_nvfp4.isolation import cancellation
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.loop.protocols import Task
from pytest_nvfp4.loop.schemas import Candidate
from pytest_nvfp4.loop.work.workplace import Workplace, Workplaces

_LOOK_S: Final = 0.5


class ManualWorker:
    """Makes a worktree and a prompt, and waits until ``worker_result.json`` lies in the outbox.

    A loop that is interrupted while it waits leaves the worktree, and goes on with it.

    Args:
        places: Makes workplaces and candidates.
        look_s: Seconds between two looks.
    """

    def __init__(self, places: Workplaces, *, look_s: float = _LOOK_S) -> None:
        self._places = places
        self._look_s = look_s

    def run(self, task: Task) -> Candidate:
        """Wait for a result, and return what lies in the worktree then; see `protocols.Worker`.

        Without a result in time the candidate has failed, and the worktree is removed.

        Raises:
            InfrastructureError, OSError: The worktree cannot be made.
            StoppedError: The loop is stopped.
        """
        start = time.monotonic()
        with self._places.opened(task, keep=True) as place:
            failure = self._wait(place, until=start + task.timeout_s)
            wall_s = time.monotonic() - start
            return self._places.candidate(place, by="manual", failure=failure, attempts=1, wall_s=wall_s)

    def _wait(self, place: Workplace, *, until: float) -> str | None:
        """Wait until there is a result that can be read, and return None; else why there is none."""
        nap = threading.Event()
        why = "there is none"
        while time.monotonic() < until:
            cancellation.check()
            place.mirror_progress()
            try:
                if place.result() is not None:
                    return None
                why = "there is none"
            except DoorError as error:  # it may be half written
                why = str(error)
            nap.wait(self._look_s)
        return f"no {place.outbox / 'worker_result.json'} within {place.task.timeout_s:.0f} s: {why}"
