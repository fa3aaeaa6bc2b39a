"""What a remote is: it takes batches of jobs, gives their results as they arrive, and says what that costs.

A remote is a plain, blocking object that one thread drives; ``device.remote.device.RemoteDevice`` makes a device of it
(matching of results to checks, deadlines, the cost limit, keeping of results). Other packages add remotes by an entry
point of the group ``pytest_nvfp4.remotes``: a callable that takes ``RemoteOptions`` and returns a ``Remote``. It must
contact nothing before ``submit``, ``warm`` or ``status`` is called.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from pytest_nvfp4.device.base import DeviceUnavailableError
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.options import RemoteOptions as RemoteOptions  # noqa: PLC0414 - part of this API
from pytest_nvfp4.device.result import Result

ENTRY_POINTS = "pytest_nvfp4.remotes"
"""Entry point group by which others add remotes."""

Trouble = Literal[
    "setup", "login", "network", "version", "image", "capacity", "timeout", "lost", "memory", "cost", "cancelled", "far"
]
"""
setup      something is missing or wrong on this machine (a package, an option, a file)
login      no token, or one that is refused
network    the remote cannot be reached, or went away in the middle
version    the two sides do not understand each other
image      the environment of the kernel could not be built
capacity   nothing free was found within the deadline
timeout    a job was started and did not end within its deadline
lost       it was started, and what came of it is not known (preempted, killed)
memory     it ran out of memory there
cost       the limit on the cost was reached
cancelled  nobody needed it any more
far        the far side failed in a way that is not known here
"""


class RemoteError(DeviceUnavailableError):
    """A remote could not do what it was asked.

    Attributes:
        trouble: What kind of trouble it is.
        what: What happened, in words.
        do: What to do next.
    """

    def __init__(self, trouble: Trouble, what: str, do: str = "") -> None:
        super().__init__(f"{what}; {do}" if do else what)
        self.trouble: Trouble = trouble
        self.what = what
        self.do = do


class Batch(BaseModel):
    """Jobs that run one after the other in one container, as JSON.

    Attributes:
        id: Its name; the answer carries it.
        jobs: The jobs.
        blocks: For benchmarks that are to be compared: each job is cut into this many blocks, which run in turn
            (A B, B A, A B, ...), so that a clock or temperature that drifts meets all of them alike. The times of a
            job's blocks come back as one measurement.
        capability: Compute capability that the device must have; None where the jobs say all that matters.
        exact: What was drawn for its jobs (``Job.order_seed``, ``Job.row_key``) is part of the question: an answer that
            was made with other draws is none to it.
        backend: What the far side's device is: ``cuda``, or what takes a GPU's place there; see ``far.worker``. The
            near side takes no answer of another kind than it asked for.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    jobs: tuple[Job, ...] = Field(min_length=1)
    blocks: int = Field(default=1, ge=1, le=64)
    capability: tuple[int, int] | None = None
    exact: bool = False
    backend: str = "cuda"

    @property
    def deadline_s(self) -> float:
        """Seconds that all jobs together may run."""
        return sum(job.deadline_s for job in self.jobs)


class Place(BaseModel):
    """Where a batch ran.

    Attributes:
        container: Identity of the container or machine, to see what shared one.
        image: What its environment was made from.
        driver: Version of the GPU's driver.
        clocks_mhz: SM clock now and at most, where they could be read.
        versions: Versions of what matters there, by distribution.
        startup_s: Seconds from the container's first line to its readiness; 0 for a batch that found it ready.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    container: str = ""
    image: str = ""
    driver: str | None = None
    clocks_mhz: tuple[int, int] | None = None
    versions: dict[str, str] = {}
    startup_s: float = 0.0

    def __str__(self) -> str:
        words = [self.container or "a container"]
        words += [f"image {self.image}"] if self.image else []
        words += [f"driver {self.driver}"] if self.driver else []
        words += [f"SM clock {self.clocks_mhz[0]} of {self.clocks_mhz[1]} MHz"] if self.clocks_mhz else []
        return ", ".join(words)


class Answer(BaseModel):
    """What came of a batch, as JSON.

    Attributes:
        batch: Id of the batch.
        results: One a job, in the jobs' order; blobs are inline.
        place: Where it ran.
        busy_s: Seconds that the container was occupied by it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    batch: str
    results: tuple[Result, ...]
    place: Place = Place()
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Handle:
    """A batch that was submitted; ``call`` is what the remote calls it."""

    batch: Batch
    call: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """An end of a batch: its answer, or why there is none."""

    handle: Handle
    answer: Answer | None = None
    error: RemoteError | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a session has cost so far, as far as this side can know.

    Attributes:
        seconds: Seconds that containers were held.
        usd_per_hour: Price of one container; None where it is not known.
        note: What the number leaves out, or where the price is from.
    """

    seconds: float = 0.0
    usd_per_hour: float | None = None
    note: str = ""

    @property
    def usd(self) -> float | None:
        """US dollars; None where the price is not known."""
        return None if self.usd_per_hour is None else self.seconds * self.usd_per_hour / 3600

    def __str__(self) -> str:
        money = "" if self.usd is None else f", about ${self.usd:.2f}"
        return f"{self.seconds:.0f} s{money}"


def dollars(usd: float) -> str:
    """US dollars in words; small amounts to three digits, so that a limit and what reached it can be told apart."""
    return f"${usd:.2f}" if usd >= 1 else f"${usd:.3g}"


@dataclass(frozen=True, slots=True)
class RemoteStatus:
    """How a remote stands.

    Attributes:
        reachable: It answered.
        words: What it is and what runs there, in a line.
        containers: Containers that are up; None where that is not known.
        details: More, by name.
    """

    reachable: bool
    words: str
    containers: int | None = None
    details: Mapping[str, str] = field(default_factory=dict)


class Remote(Protocol):
    """A place to which jobs are sent. Every method ends within a bounded time, and raises nothing but RemoteError.

    ``name`` is what ``--nvfp4-remote`` calls it. Where its answers depend on more than target and GPU, an attribute
    ``kept_as`` (a text) says on what, so that kept ones are used for the same only.
    """

    name: str

    def describe(self) -> str:
        """What it is, in a line. Contacts nothing."""

    def submit(self, batches: Sequence[Batch]) -> list[Handle]:
        """Hand batches over, in order; returns once they are accepted, not once they are done."""

    def collect(self, handles: Sequence[Handle], *, timeout_s: float) -> Iterator[Arrival]:
        """The ends of submitted batches as they arrive, in any order; stops when ``timeout_s`` has passed.

        A batch that failed is an arrival with an error; one that has not ended is none, and may be asked for again. An
        end that was not taken from the iterator is given the next time.
        """

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Stop batches that nobody needs; those that are done are passed over. Does not raise."""

    def status(self) -> RemoteStatus:
        """How it stands now."""

    def warm(self) -> None:
        """Make a container ready, and wait until it is."""

    def stop(self) -> None:
        """Give everything back that costs anything. May be called more than once; does not raise.

        May be called by another thread while ``submit`` or ``warm`` waits, which then ends soon, with a RemoteError.
        """

    def cost(self) -> Cost:
        """What this object has cost so far. Contacts nothing."""


@dataclass(frozen=True, slots=True)
class Execution:
    """A Python program to run where jobs run.

    Attributes:
        source: The program.
        arguments: Its arguments (``sys.argv[1:]``).
        files: Files to put into its working directory, by relative path.
        environ: Variables of its environment, on top of the scrubbed one.
        stdin: Its standard input.
        deadline_s: Seconds after which it is stopped.
    """

    source: str
    arguments: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    deadline_s: float = 600.0


@runtime_checkable
class Executes(Protocol):
    """A remote that can run a program too."""

    def execute(self, program: Execution, *, on_output: Callable[[Literal["stdout", "stderr"], bytes], None]) -> int:
        """Run it, pass its output on as it comes, and return its exit status. Raises RemoteError."""
