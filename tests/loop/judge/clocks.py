"""A device whose clock is made up: right answers, and times that a kernel's text states (``TAKES_US = 20.0``)."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.base import Batch, BatchResult
from pytest_nvfp4.device.remote.executor import describe_place, execute_batch
from pytest_nvfp4.device.result import Result
from tests.device.remote.loopback.devices import clocked

__all__ = ["ClockedPlace", "kernel"]


def kernel(us: float, *, more: str = "") -> str:
    """The text of a kernel that takes so many microseconds; a line ``WRONG = True`` makes its answers wrong."""
    return f"TAKES_US = {us!r}\n{more}\ndef custom_kernel(data):\n    return data[2]\n"


@dataclass
class ClockedPlace:
    """A place that runs batches here and now.

    Attributes:
        noise: Share by which rounds differ.
        drift: Factor by which each process is slower than the one before.
        status: Status of every job instead of a result.
        quiet: Number of batches with times as stated; later ones have all kernels alike.
        hourly_usd: Price.
        batches: The batches that ran.
        order: Time of each process, in order.
        processes: Number of processes of each kernel.
        closed: Whether it was released.
        held_s: Seconds that it is paid for.
    """

    noise: float = 0.002
    drift: float = 1.0
    status: str = ""
    quiet: int = 1000
    hourly_usd: float = 0.0
    idle_s: float = 0.0
    capability: tuple[int, int] = (10, 0)
    batches: list[Batch] = field(default_factory=list)
    order: list[float] = field(default_factory=list)
    processes: Counter[str] = field(default_factory=Counter)
    closed: bool = False
    held_s: float = 0.0

    def run(self, batch: Batch, *, limit_s: float) -> BatchResult:
        """Run a batch."""
        assert limit_s > 0
        self.batches.append(batch)
        self.held_s += 100.0
        done = execute_batch(batch, run=self._job, place=describe_place(container="here"))
        return done.model_copy(update={"busy_s": 100.0})

    def usd(self) -> float:
        """What it has cost."""
        held = self.held_s + (self.idle_s if self.closed else 0.0)
        return self.hourly_usd * held / 3600

    @contextmanager
    def opened(self, *_: object, **__: object) -> Iterator[ClockedPlace]:
        """Open it, in place of `place.open_place`."""
        try:
            yield self
        finally:
            self.closed = True

    def _job(self, job: Job, folder: Path) -> Result:
        if self.status:
            return Result(job=job.id, status=self.status)  # type: ignore[arg-type]
        assert job.kernel is not None
        text = next(file.text for file in job.kernel.files if file.path == job.kernel.main)
        stated: dict[str, Any] = {name: float(us) for name, us in re.findall(r"^(\w+_US) = (.*)$", text, re.MULTILINE)}
        takes = stated["TAKES_US"] if len(self.batches) <= self.quiet else 20.0
        draw = random.Random(job.order_seed)
        takes *= self.drift ** len(self.order)
        self.processes[text] += 1
        if "ODD_US" in stated and self.processes[text] % 2 == 0:
            takes = stated["ODD_US"]
        self.order.append(takes)
        answer = clocked.run(job, folder)
        times = []
        for one in answer.measurements:
            rounds = tuple(takes * (1 + self.noise * draw.gauss(0, 1)) for _ in one.device_us)
            times.append(one.model_copy(update={"device_us": rounds, "host_us": (takes + 30.0,) * len(one.host_us)}))
        return answer.model_copy(update={"measurements": tuple(times)})
