"""A device memory that records driver calls."""

from __future__ import annotations


class RecordingMemory:
    """Takes the place of the driver: notes what it is asked, and does nothing."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def driver_call(self, name: str, *_: object) -> None:
        self.asked.append(name)

    def driver_status(self, name: str, *_: object) -> int:
        self.asked.append(name)
        return 801  # CUDA_ERROR_NOT_SUPPORTED

    def synchronize(self) -> None:
        self.asked.append("synchronize")
