"""Device of a remote session: matches a job to one that was sent ahead, or sends it, and waits for its result."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.base import Batch, RemoteError, RemoteOptions
from pytest_nvfp4.device.remote.cache import cache_fields, draws_of
from pytest_nvfp4.device.remote.executor import SOURCE
from pytest_nvfp4.device.remote.gpus import capability_of
from pytest_nvfp4.device.remote.request import BatchRequest
from pytest_nvfp4.device.remote.schedule import split_batch
from pytest_nvfp4.device.remote.session import RemoteSession
from pytest_nvfp4.device.result import DeviceInfo, Result, SimulatedCall
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.finding import Finding

REMOTE_ERROR = "remote"
"""Kind of the finding that reports why a remote returned no result."""
_DRAWN = ("verify", "benchmark")
"""Actions whose outcome depends on the draws of the job."""


@dataclass(frozen=True, slots=True)
class _SentJob:
    """A job of a requested batch."""

    request: BatchRequest
    index: int

    @property
    def job(self) -> Job:
        """The job; once there is a result, with the draws that it ran with."""
        return self.request.batch.jobs[self.index]


class RemoteDevice:
    """Device of a remote session: a GPU, or the simulator.

    Args:
        session: The session.
        name: Name of the remote.
        gpu: The requested GPU.
        capability: Compute capability that the remote side must have; by default that of the GPU.
        simulates: Whether the remote side simulates, so that no GPU is requested.
        waiting: Called at intervals by a thread that waits for a result.

    Attributes:
        name: Name of the remote; ``sim`` if it simulates.
        capability: Compute capability that the remote side must have; None if it simulates.
    """

    def __init__(
        self,
        session: RemoteSession,
        *,
        name: str,
        gpu: str,
        capability: tuple[int, int] | None = None,
        simulates: bool = False,
        waiting: Callable[[], None] | None = None,
    ) -> None:
        self.name = SimDevice.name if simulates else name
        self.session = session
        self.capability = None if simulates else capability or capability_of(RemoteOptions(gpu=gpu))
        self._remote = name
        self._gpu = gpu
        self._waiting = waiting
        self._lock = threading.Lock()
        self._sent: dict[str, _SentJob] = {}
        self._used: set[str] = set()
        self._last_device: DeviceInfo | None = None

    def describe(self) -> DeviceInfo:
        """Return the device of the last result; before the first one, the requested GPU. Contacts nothing."""
        if self._last_device is not None:
            return self._last_device
        if self.capability is None:
            return SimDevice().describe()
        return DeviceInfo(name=f"{self._gpu} ({self._remote})", capability=self.capability)

    def unsupported(self, arch: str) -> str | None:
        """Return why code for an architecture would not run, or None. Contacts nothing."""
        if self.capability is None:
            return SimDevice().unsupported(arch)
        has = f"sm_{self.capability[0]}{self.capability[1]}"
        return None if arch.rstrip("af") == has else f"the kernel is for {arch}, and a {self._gpu} is {has}"

    def send_ahead(self, jobs: Sequence[Job], *, blocks: int = 1) -> None:
        """Send jobs whose results will be required later, except those that were sent already.

        Jobs whose results become final together share a batch (see `split_batch`), with ``blocks`` above 1 also
        benchmarks of the same cases.
        """
        with self._lock:
            new = [job for job in jobs if _key(job) not in self._sent and _key(job) not in self._used]
            if not new:
                return
            batches = split_batch(Batch(jobs=tuple(new), blocks=blocks, capability=self.capability))
            for batch, request in zip(batches, self.session.add(batches), strict=True):
                for index, job in enumerate(batch.jobs):
                    self._sent[_key(job)] = _SentJob(request, index)

    def job_as_run(self, job: Job) -> Job:
        """Return the equivalent job that ran, possibly with other draws; send this job if none was sent.

        Waits for the result: for a cached one, or one that another process requested, only the result has the draws.
        """
        with self._lock:
            sent = self._sent.get(_key(job)) or self._send(job, exact=False)
        self.session.prioritize(sent.request)
        with contextlib.suppress(RemoteError):  # `run` reports it
            sent.request.wait_or_released(on_wait=self._waiting)
        return sent.job

    def run(self, job: Job, *, folder: Path, base: Path | None = None) -> Result:  # noqa: ARG002
        """Run a job with its own draws; see ``Device``. A job that was sent ahead is used once.

        A used result is released: the outputs of a long run may exceed the memory of this machine.
        """
        sent = self._claim(job)
        self.session.prioritize(sent.request)
        try:
            result = sent.request.wait(on_wait=self._waiting).results[sent.index]
        except RemoteError as error:
            status = "timeout" if error.kind == "timeout" else "unavailable"
            return Result(job=job.id, status=status, findings=(Finding(kind=REMOTE_ERROR, message=str(error)),))  # type: ignore[arg-type]
        if result.device is not None:
            if self.capability is None and not result.device.simulated:
                message = f"the remote has {result.device}, and the simulator was requested: its result is rejected"
                finding = Finding(kind="device", message=message)
                return Result(job=job.id, status="unsupported", device=result.device, findings=(finding,))
            self._last_device = result.device
        with self._lock:
            if self._sent.get(_key(job)) is sent:
                del self._sent[_key(job)]
        return _with_local_paths(result.model_copy(update={"job": job.id}), base)

    def _claim(self, job: Job) -> _SentJob:
        """Return the sent job with the same draws, or send the job."""
        with self._lock:
            sent = self._sent.get(_key(job))
            if sent is not None and draws_of(sent.job) == draws_of(job):
                self._used.add(_key(job))
                return sent
            return self._send(job, exact=job.action in _DRAWN)

    def _send(self, job: Job, *, exact: bool) -> _SentJob:
        """Send a single job. The caller holds the lock."""
        (request,) = self.session.add([Batch(jobs=(job,), capability=self.capability, exact=exact)], urgent=True)
        self._used.add(_key(job))
        sent = _SentJob(request, 0)
        if not exact:  # an exact job does not replace one that was sent ahead and serves any draws
            self._sent[_key(job)] = sent
        return sent


def _key(job: Job) -> str:
    return json.dumps(cache_fields(job), sort_keys=True)


def _with_local_paths(result: Result, base: Path | None) -> Result:
    """Return the result with findings that name the user's own files below ``base``."""
    if base is None:
        return result

    def local(findings: Sequence[Finding]) -> tuple[Finding, ...]:
        return tuple(
            replace(finding, file=str(base / Path(finding.file).relative_to(SOURCE)))
            if finding.file is not None and Path(finding.file).is_relative_to(SOURCE)
            else finding
            for finding in findings
        )

    def local_call(call: SimulatedCall) -> SimulatedCall:
        launches = tuple(launch.model_copy(update={"findings": local(launch.findings)}) for launch in call.launches)
        return call.model_copy(update={"launches": launches})

    return result.model_copy(
        update={
            "findings": local(result.findings),
            "cases": tuple(case.model_copy(update={"findings": local(case.findings)}) for case in result.cases),
            "simulated": tuple(map(local_call, result.simulated)),
        }
    )
