"""How far the work on a remote is, in a line."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_nvfp4.device.remote.base import Cost


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts of batches.

    Attributes:
        building: They wait for the remote to be set up (an image, a connection).
        queued: They wait for a container.
        running: They are with a container, as far as this side can know.
        done: They have an answer.
        kept: They needed no container: their answer is one of an earlier session.
        failed: They ended without an answer.
        cancelled: Nobody needed them any more.
        cost: What it has cost so far.
    """

    building: int = 0
    queued: int = 0
    running: int = 0
    done: int = 0
    kept: int = 0
    failed: int = 0
    cancelled: int = 0
    cost: Cost = field(default_factory=Cost)

    @property
    def open(self) -> int:
        """Batches that have not ended."""
        return self.building + self.queued + self.running

    def __str__(self) -> str:
        counts = [
            (self.queued, "queued"),
            (self.building, "building"),
            (self.running, "running"),
            (self.done, "done"),
            (self.kept, "from earlier sessions"),
            (self.failed, "without an answer"),
            (self.cancelled, "cancelled"),
        ]
        words = [f"{count} {word}" for count, word in counts if count] or ["nothing to do"]
        return f"{', '.join(words)}; {self.cost}"
