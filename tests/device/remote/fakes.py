"""A remote of the test's own, and small jobs."""

from __future__ import annotations

import hashlib
import queue
import time
from collections.abc import Callable, Iterator, Sequence

from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec, SourceFile, Timing
from pytest_nvfp4.device.remote.base import (
    Batch,
    BatchResult,
    Cost,
    Place,
    RemoteCall,
    RemoteError,
    RemoteStatus,
)
from pytest_nvfp4.device.result import Result

Reply = Callable[[Batch], BatchResult | RemoteError | None]


def source(text: str = "def custom_kernel(data): ...\n") -> SourceFile:
    return SourceFile(path="kernel.py", text=text, sha256=hashlib.sha256(text.encode()).hexdigest())


def job(number: int = 0, *, action: str = "verify", text: str = "x = 1\n", rounds: int = 50, seed: int = 0) -> Job:
    """A job of problem ``number``; ``seed`` stands for all that is drawn for it."""
    problem = ProblemSpec(name=f"p{number}", sizes=((7, 128, 256, 1),), seed=number)
    return Job(
        id=f"job-{number}",
        action=action,  # type: ignore[arg-type]
        kernel=KernelSpec(files=(source(text),), main="kernel.py", arch="sm_100a"),
        cases=(JobCase(problem=problem, family="gpumode"),),
        timing=Timing(rounds=rounds),
        order_seed=seed,
        row_key=seed + 1000,
    )


def batch(number: int = 0) -> Batch:
    return Batch(jobs=(job(number),))


def passed(batch: Batch) -> BatchResult:
    results = tuple(Result(job=one.id, status="passed") for one in batch.jobs)
    return BatchResult(batch=batch.id, results=results, place=Place(container="c"))


class FakeRemote:
    """Answers as it is told; None for a batch that never ends."""

    name = "fake"

    def __init__(self, reply: Reply = passed, *, containers: int | None = 1, usd_per_hour: float | None = None) -> None:
        self.reply = reply
        self.sent: list[Batch] = []
        self.cancelled: list[str] = []
        self.stopped = 0
        self.seconds = 0.0
        self.most_open = 0
        self._containers = containers
        self._usd = usd_per_hour
        self._ends: queue.Queue[RemoteCall] = queue.Queue()

    def describe(self) -> str:
        return "a fake"

    def submit(self, batches: Sequence[Batch]) -> list[RemoteCall]:
        calls = [RemoteCall(one, one.id) for one in batches]
        for call in calls:
            self.sent.append(call.batch)
            said = self.reply(call.batch)
            if isinstance(said, BatchResult):
                self._ends.put(call.ended(result=said))
            elif said is not None:
                self._ends.put(call.ended(error=said))
        return calls

    def collect(self, calls: Sequence[RemoteCall], *, timeout_s: float) -> Iterator[RemoteCall]:
        self.most_open = max(self.most_open, len(calls))
        until = time.monotonic() + timeout_s
        while True:
            try:
                yield self._ends.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return

    def cancel(self, calls: Sequence[RemoteCall]) -> None:
        self.cancelled += [call.id for call in calls]

    def status(self) -> RemoteStatus:
        return RemoteStatus(True, "as it should", self._containers)

    def warm(self) -> None: ...

    def stop(self) -> None:
        self.stopped += 1

    def cost(self) -> Cost:
        return Cost(self.seconds, self._usd)
