"""Interface of a remote: it takes batches of jobs, returns their results as they arrive, and reports the cost.

A remote is a blocking object that one thread drives. `device.remote.device.RemoteDevice` makes a device of it: it
matches results to checks and enforces timeouts and the cost limit. Other packages add remotes with an entry point of
the group ``pytest_nvfp4.remotes``: a callable that takes `RemoteOptions` and returns a `Remote`. It must contact
nothing before `submit`, `warm` or `status` is called.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Protocol, get_args, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from pytest_nvfp4.device.base import DeviceUnavailableError
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.options import RemoteOptions as RemoteOptions  # noqa: PLC0414 - part of this API
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.isolation import OnOutput
from pytest_nvfp4.isolation.door.fields import MOST_EVENTS, Index, Name, Seconds
from pytest_nvfp4.text import clip

ENTRY_POINTS = "pytest_nvfp4.remotes"
"""Entry point group of the remotes of other packages."""

_MOST_REPORTED = 2000
"""Characters of an error text of the other side that are shown."""
ErrorKind = Literal[
    "setup", "login", "network", "version", "image", "capacity", "timeout", "lost", "memory", "cost", "cancelled",
    "remote",
]  # fmt: skip
"""
setup      a package, option or file of this machine is missing or wrong
login      the token is missing or refused
network    the remote cannot be reached, or the connection broke
version    the two sides use incompatible versions
image      the environment of the kernel could not be built
capacity   no free machine was available before the timeout
timeout    a job started and did not end before its deadline
lost       a job started and its outcome is unknown (preempted, killed)
memory     the job ran out of memory on the remote
cost       the cost limit was reached
cancelled  the batch was cancelled
remote     any other failure on the remote side
"""


class RemoteError(DeviceUnavailableError):
    """Failure of a remote.

    Attributes:
        kind: Kind of the failure.
        problem: Description of the failure.
        remedy: What the user can do about it; empty for nothing known.
    """

    def __init__(self, kind: ErrorKind, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.kind: ErrorKind = kind
        self.problem = problem
        self.remedy = remedy


def reported_error(kind: object, problem: object, remedy: object = "", *, where: str = "") -> RemoteError:
    """Return the error that the other side reports; one of an unknown kind is of kind ``remote``."""
    kinds: tuple[ErrorKind, ...] = get_args(ErrorKind)
    known: ErrorKind = next((name for name in kinds if name == kind), "remote")
    text = clip(str(problem) or "no reason was given", _MOST_REPORTED)
    return RemoteError(known, f"{where}: {text}" if where else text, clip(str(remedy or ""), _MOST_REPORTED))


class Batch(BaseModel):
    """Jobs that run one after the other in one container.

    Attributes:
        id: Identifier; the result carries the same one.
        jobs: The jobs.
        blocks: Number of blocks that each benchmark is cut into. The blocks of compared benchmarks alternate
            (A B, B A, A B, ...), so that drift of clocks and temperature affects all of them alike. The times of a
            job's blocks are merged into one measurement.
        capability: Compute capability that the device must have; None for any.
        exact: Whether the random draws of the jobs (``Job.order_seed``, ``Job.row_key``) are part of the request, so
            that a result made with other draws does not answer it.
        code: Hash of the code that the machine must have (see `parts`), for one that was deployed earlier; else empty.
        backend: Device of the remote side: ``cuda``, or a substitute for tests (see `executor.job_runner`). The local
            side rejects results of another backend.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    jobs: tuple[Job, ...] = Field(min_length=1)
    blocks: int = Field(default=1, ge=1, le=64)
    capability: tuple[int, int] | None = None
    exact: bool = False
    code: str = ""
    backend: str = "cuda"

    @property
    def deadline_s(self) -> float:
        """Sum of the deadlines of the jobs in seconds."""
        return sum(job.deadline_s for job in self.jobs)


class Place(BaseModel):
    """Machine or container that ran a batch.

    Attributes:
        container: Identifier of the container or machine.
        image: Image of its environment.
        driver: Version of the GPU driver.
        clocks_mhz: Current and maximum SM clock, if they could be read.
        versions: Versions of the relevant distributions, by name.
        startup_s: Seconds that the container took to start; 0 for a batch that found it running.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    container: Name = ""
    image: Name = ""
    driver: Name | None = None
    clocks_mhz: tuple[Index, Index] | None = None
    versions: Annotated[dict[Name, Name], Field(max_length=1000)] = {}
    startup_s: Seconds = 0.0

    def __str__(self) -> str:
        parts = [self.container or "a container"]
        parts += [f"image {self.image}"] if self.image else []
        parts += [f"driver {self.driver}"] if self.driver else []
        parts += [f"SM clock {self.clocks_mhz[0]} of {self.clocks_mhz[1]} MHz"] if self.clocks_mhz else []
        return ", ".join(parts)


class BatchResult(BaseModel):
    """Results of a batch.

    Attributes:
        batch: Identifier of the batch.
        results: One result per job, in the order of the jobs; blobs are inline.
        place: Where it ran.
        busy_s: Seconds that it occupied the container.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    batch: Name
    results: Annotated[tuple[Result, ...], Field(max_length=MOST_EVENTS)]
    place: Place = Place()
    busy_s: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class RemoteCall:
    """A submitted batch and, once it has ended, its result or the error that ended it.

    Attributes:
        batch: The batch.
        id: The remote's identifier of the call.
    """

    batch: Batch
    id: str
    result: BatchResult | None = None
    error: RemoteError | None = None

    def ended(self, result: BatchResult | None = None, error: RemoteError | None = None) -> RemoteCall:
        """Return the call with its end."""
        return replace(self, result=result, error=error)


@dataclass(frozen=True, slots=True)
class Cost:
    """Estimated cost of a session.

    Attributes:
        seconds: Seconds that containers were held.
        usd_per_hour: Price of one container; None if it is unknown.
        note: Source of the price, and what the estimate omits.
        idle_s: Seconds that a container stays up after a session, which cost money too.
    """

    seconds: float = 0.0
    usd_per_hour: float | None = None
    note: str = ""
    idle_s: float = 0.0

    @property
    def usd(self) -> float | None:
        """US dollars; None if the price is unknown."""
        return None if self.usd_per_hour is None else self.seconds * self.usd_per_hour / 3600

    def __str__(self) -> str:
        money = "" if self.usd is None else f", about {dollars(self.usd)}"
        return f"{self.seconds:.0f} s{money}"


def dollars(usd: float) -> str:
    """Format US dollars; amounts below one to three digits, so that a small limit and the cost above it differ."""
    return f"${usd:.2f}" if usd >= 1 else f"${usd:.3g}"


@dataclass(frozen=True, slots=True)
class RemoteStatus:
    """Status of a remote.

    Attributes:
        reachable: Whether it responded.
        summary: One line about the remote and what runs there.
        containers: Number of running containers; None if unknown.
        details: Further facts by name.
    """

    reachable: bool
    summary: str
    containers: int | None = None
    details: Mapping[str, str] = field(default_factory=dict)


class Remote(Protocol):
    """A place that runs batches of jobs. Every method returns within a bounded time and raises only RemoteError.

    ``name`` is its name in ``--nvfp4-remote``. A remote whose results depend on more than target and GPU has an
    attribute ``cache_scope`` (text) with those dependencies, so that cached results are reused for the same only.

    Further members are optional. ``check()`` raises RemoteError if this machine cannot use the remote, such as without
    a token; it contacts nothing. ``left()`` returns what may still run after `stop` and the command that ends it, empty
    if nothing can; it must not block. ``end_all()`` ends what runs there of this tool, of other sessions too, and
    returns a description of each; it raises RemoteError if something still runs. ``where`` (text) names what the
    session uses there, such as an app and its page, and ``activity`` (text) what is going on there.
    """

    name: str

    def describe(self) -> str:
        """Return a description of one line. Contacts nothing."""

    def submit(self, batches: Sequence[Batch]) -> list[RemoteCall]:
        """Submit batches in order; return when they are accepted, not when they are done."""

    def collect(self, calls: Sequence[RemoteCall], *, timeout_s: float) -> Iterator[RemoteCall]:
        """Yield the ends of submitted batches in the order of arrival, until ``timeout_s`` has passed.

        A failed batch ends with an error. A batch that still runs yields nothing and may be collected
        again. Ends that the caller does not take from the iterator are yielded by the next call.
        """

    def cancel(self, calls: Sequence[RemoteCall]) -> None:
        """Stop batches; ignores those that have ended. Does not raise."""

    def status(self) -> RemoteStatus:
        """Return the current status."""

    def warm(self) -> None:
        """Start a container and wait until it is ready."""

    def stop(self) -> None:
        """Release everything that costs money. May be called more than once; does not raise.

        May be called by another thread during `submit` or `warm`, which then soon raises RemoteError.
        """

    def cost(self) -> Cost:
        """Return the cost of this object so far. Contacts nothing."""


@runtime_checkable
class ResumableRemote(Protocol):
    """A remote whose calls a later session can wait for again.

    It calls ``on_call``, which the session sets, with a batch and the call's identifier as soon as the call is made,
    from any thread.
    """

    on_call: Callable[[Batch, str], None] | None

    @property
    def where(self) -> str:
        """What the session uses there, such as an app."""

    def attach(self, batch: Batch, call: str, where: str) -> RemoteCall:
        """Wait again for a call, by its identifier and the text of ``where`` when it was made; return it like `submit`.

        A call that is gone ends with an error.
        """


def left_on(remote: Remote) -> str:
    """Return what may still run on a remote after `Remote.stop`; empty if nothing can, or if nothing is known."""
    left = getattr(remote, "left", None)
    return str(left()) if callable(left) else ""


@dataclass(frozen=True, slots=True)
class PythonProgram:
    """A Python program to run where jobs run.

    Attributes:
        source: Source code.
        arguments: Arguments (``sys.argv[1:]``).
        files: Files of its working directory, by relative path.
        environ: Environment variables, in addition to the scrubbed environment.
        stdin: Standard input.
        deadline_s: Seconds after which it is stopped.
        name: Name of its file, ``*.py``; remotes use ``program.py``.
    """

    source: str
    arguments: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    deadline_s: float = 600.0
    name: str = "program.py"


@runtime_checkable
class ProgramRemote(Protocol):
    """A remote that also runs programs."""

    def execute(self, program: PythonProgram, *, on_output: OnOutput) -> int:
        """Run a program, forward its output as it is written, and return its exit status. Raises RemoteError."""
