"""Progress of a remote session in one line."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_nvfp4.device.remote.base import Cost


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts of batches, and the cost.

    Attributes:
        building: Batches that wait for the remote to be set up (an image, a connection).
        queued: Batches that wait for a container.
        running: Batches in a container, as far as the local side can determine.
        done: Batches with a result.
        cached: Batches whose results come from an earlier session.
        failed: Batches that ended without a result.
        cancelled: Cancelled batches.
        cost: Cost so far.
        activity: What is going on there, as far as the remote says it.
    """

    building: int = 0
    queued: int = 0
    running: int = 0
    done: int = 0
    cached: int = 0
    failed: int = 0
    cancelled: int = 0
    cost: Cost = field(default_factory=Cost)
    activity: str = ""

    @property
    def open(self) -> int:
        """Number of batches that have not ended."""
        return self.building + self.queued + self.running

    def __str__(self) -> str:
        counts = [
            (self.queued, "queued"),
            (self.building, "building"),
            (self.running, "running"),
            (self.done, "done"),
            (self.cached, "from earlier sessions"),
            (self.failed, "without a result"),
            (self.cancelled, "cancelled"),
        ]
        parts = [f"{count} {name}" for count, name in counts if count] or ["nothing to do"]
        activity = f" ({self.activity})" if self.activity and self.open else ""
        return f"{', '.join(parts)}{activity}; {self.cost}"
