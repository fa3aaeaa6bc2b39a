"""A remote as a device: a job is matched with what was sent ahead, or sent now, and its result awaited."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.base import Batch, RemoteError
from pytest_nvfp4.device.remote.far import SOURCE
from pytest_nvfp4.device.remote.kept import draws_of, question
from pytest_nvfp4.device.remote.pieces import pieces
from pytest_nvfp4.device.remote.session import RemoteSession
from pytest_nvfp4.device.remote.ticket import Ticket
from pytest_nvfp4.device.result import DeviceInfo, Result, SimulatedCall
from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.finding import Finding

TROUBLE = "remote"
"""Kind of the finding that says why a remote gave no result."""
_DRAWN = ("verify", "benchmark")
"""Jobs whose outcome depends on what was drawn for them."""
_ARCHS = {"B200": "sm_100a", "H200": "sm_90a", "H100": "sm_90a"}
_CAPABILITIES = {"sm_100a": (10, 0), "sm_90a": (9, 0)}


def arch_of(gpu: str) -> str | None:
    """The architecture of a GPU by its usual name; None for one that is not known here."""
    return _ARCHS.get(gpu.upper().partition(":")[0].removesuffix("!"))


@dataclass(frozen=True, slots=True)
class _Sent:
    """A job within a batch that was sent."""

    ticket: Ticket
    index: int


class RemoteDevice:
    """A device far away.

    Args:
        session: The session on the remote.
        name: Name of the remote.
        gpu: The GPU that was asked for.
        waiting: Is called now and then by a thread that waits for a result.
    """

    def __init__(
        self, session: RemoteSession, *, name: str, gpu: str, waiting: Callable[[], None] | None = None
    ) -> None:
        self.name = name
        self.session = session
        self._gpu = gpu
        self._arch = arch_of(gpu)
        self._waiting = waiting
        self._lock = threading.Lock()
        self._sent: dict[str, _Sent] = {}
        self._used: set[str] = set()
        self._seen: DeviceInfo | None = None

    @property
    def capability(self) -> tuple[int, int] | None:
        """The compute capability that is asserted there."""
        return _CAPABILITIES.get(self._arch or "")

    def describe(self) -> DeviceInfo:
        """What answered last; before that, what was asked for. Contacts nothing."""
        if self._seen is not None:
            return self._seen
        model = for_arch(self._arch or "sm_100a")
        return DeviceInfo(name=f"{self._gpu} ({self.name})", capability=model.capability)

    def unsupported(self, arch: str) -> str | None:
        """Why code for an architecture would not run there, or None. Contacts nothing."""
        if self._arch is None or arch.rstrip("af") == self._arch.rstrip("af"):
            return None
        return f"the kernel is for {arch}, and a {self._gpu} is {self._arch.rstrip('af')}"

    def send_ahead(self, jobs: Sequence[Job], *, blocks: int = 1) -> None:
        """Send jobs whose results will be asked for later. Those that were sent already are left out.

        Those that become final together are one batch (``pieces``); with ``blocks``, benchmarks of the same are.
        """
        with self._lock:
            fresh = [job for job in jobs if _key(job) not in self._sent and _key(job) not in self._used]
            if not fresh:
                return
            batches = pieces(Batch(jobs=tuple(fresh), blocks=blocks, capability=self.capability))
            for batch, ticket in zip(batches, self.session.add(batches), strict=True):
                for index, job in enumerate(batch.jobs):
                    self._sent[_key(job)] = _Sent(ticket, index)

    def ahead(self, job: Job) -> Job:
        """The job that was run in place of this one (it asks the same, with other draws); else this one is sent.

        It waits for the answer: of one that was kept, or that another process asked for, only that tells the draws.
        """
        with self._lock:
            sent = self._sent.get(_key(job)) or self._send(job, exact=False)
        self.session.hurry(sent.ticket)
        with contextlib.suppress(RemoteError):  # whoever runs the job is told
            sent.ticket.wait_kept(on_wait=self._waiting)
        return sent.ticket.batch.jobs[sent.index]

    def run(self, job: Job, *, folder: Path, base: Path | None = None) -> Result:  # noqa: ARG002
        """Run a job there, with the draws that it has; see ``Device``. What was sent ahead is used once.

        An answer that was used is let go: those of a long run, outputs and all, are more than a machine may hold.
        """
        sent = self._claimed(job)
        self.session.hurry(sent.ticket)
        try:
            answer = sent.ticket.wait(on_wait=self._waiting)
        except RemoteError as error:
            status = "timeout" if error.trouble == "timeout" else "unavailable"
            return Result(job=job.id, status=status, findings=(Finding(kind=TROUBLE, message=str(error)),))  # type: ignore[arg-type]
        result = answer.results[sent.index]
        if result.device is not None:
            self._seen = result.device
        with self._lock:
            if self._sent.get(_key(job)) is sent:
                del self._sent[_key(job)]
        return at_home(result.model_copy(update={"job": job.id}), base)

    def _claimed(self, job: Job) -> _Sent:
        """Where the job was sent, with its own draws, or is sent now."""
        with self._lock:
            sent = self._sent.get(_key(job))
            if sent is not None and draws_of(sent.ticket.batch.jobs[sent.index]) == draws_of(job):
                self._used.add(_key(job))
                return sent
            return self._send(job, exact=job.action in _DRAWN)

    def _send(self, job: Job, *, exact: bool) -> _Sent:
        """Send a job by itself; the lock is held."""
        (ticket,) = self.session.add([Batch(jobs=(job,), capability=self.capability, exact=exact)], urgent=True)
        self._used.add(_key(job))
        sent = _Sent(ticket, 0)
        if not exact:  # what was sent ahead stays for who takes any draws
            self._sent[_key(job)] = sent
        return sent


def _key(job: Job) -> str:
    return json.dumps(question(job), sort_keys=True)


def at_home(result: Result, base: Path | None) -> Result:
    """The result with findings that name the user's own files below ``base``."""
    if base is None:
        return result

    def own(finding: Finding) -> Finding:
        if finding.file is None or not Path(finding.file).is_relative_to(SOURCE):
            return finding
        return replace(finding, file=str(base / Path(finding.file).relative_to(SOURCE)))

    def call(one: SimulatedCall) -> SimulatedCall:
        launches = tuple(
            launch.model_copy(update={"findings": tuple(map(own, launch.findings))}) for launch in one.launches
        )
        return one.model_copy(update={"launches": launches})

    return result.model_copy(
        update={
            "findings": tuple(map(own, result.findings)),
            "cases": tuple(
                report.model_copy(update={"findings": tuple(map(own, report.findings))}) for report in result.cases
            ),
            "simulated": tuple(map(call, result.simulated)),
        }
    )
