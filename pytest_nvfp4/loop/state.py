"""The directory of state of a loop. Every file is written whole or not at all.

``state.json`` says what the loop does next; what an interrupted phase has finished lies in the folder of its candidate
and is not done again. Nothing in the directory is written by a worker: workers write into ``work/``, from which files
are copied after a validation.

    loop.toml                  the configuration as it was resolved at the start
    state.json                 `LoopState`
    ledger.json                `Ledger`: what the current iteration has reserved
    control.json               `Control`: requests of other processes to this loop
    heartbeat.json             `Heartbeat`, written every few seconds while the loop runs
    lock/active.lock           `LockOwner`: the process that runs the loop
    run.log                    one line an event; only appended
    baseline/examination.json  the incumbent of the start
    iterations/0001/           review.json, review prompt and output
    candidates/0001/           candidate.json, gates.json, examination.json, verdict.json, prompt.txt, diff.patch,
                               outputs, evidence
    work/0001/tree/            worktree of the worker of candidate 1, while it runs
    work/0001/outbox/          worker_result.json and worker_progress.json of that worker, while it runs
    judge/0001/                worktree of the judge of candidate 1, while it runs
    review/0001/               worktree and outbox of the reviewer of iteration 1, while it runs
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from pytest_nvfp4.isolation.door.fields import Count, Index, Name, Seconds, Sentence
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.isolation.door.models import parsed
from pytest_nvfp4.loop.schemas import GateResult, Model
from pytest_nvfp4.text import json_text
from pytest_nvfp4.writing import write_whole

M = TypeVar("M", bound=Model)
_MOST_BYTES = 64 << 20
JUDGED = ("gates.json", "examination.json", "verdict.json")
"""Records of a candidate that the phase ``JUDGE`` writes."""
Phase = Literal["INIT", "RUN_WORKER", "JUDGE", "RUN_REVIEWER", "APPLY_VERDICT", "STOPPED"]


class Spent(Model):
    """What a loop has spent over all restarts."""

    wall_s: Seconds = 0.0
    gpu_s: Seconds = 0.0
    usd: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    tokens: Count = 0


class Entry(Model):
    """What one activity of the current iteration has spent or reserved.

    Attributes:
        lost: What attempts before this one cost.
        spent: What this one has spent.
        reserved: Worst case of the stage that it is in. It counts as spent if the process is killed in the stage.
    """

    lost: Spent = Spent()
    spent: Spent = Spent()
    reserved: Spent = Spent()


class Ledger(Model):
    """What the current iteration costs, by activity such as ``decide/0003``; worthless in any other iteration."""

    version: Literal[1] = 1
    iteration: Index = 0
    entries: dict[Name, Entry] = Field(default_factory=dict, max_length=10_000)


class Gates(Model):
    """Gates of an examination that have ended, while it runs."""

    version: Literal[1] = 1
    gates: Annotated[tuple[GateResult, ...], Field(max_length=1000)] = ()


class LockOwner(Model):
    """Who runs a loop.

    Attributes:
        version: Version of this schema.
        pid: Process.
        started: Its start in clock ticks since the boot (proc(5)), which tells it from a later one of that number.
        boot: Identity of the boot (``/proc/sys/kernel/random/boot_id``).
        host: Its host.
        created_at: Time when it took the lock (UTC, ISO 8601).
        heartbeat: File of its heartbeat.
    """

    version: Literal[1] = 1
    pid: Index
    started: Count = 0
    boot: Name = ""
    host: Name
    created_at: Name = ""
    heartbeat: Name = ""


class Promotion(Model):
    """A candidate that became the incumbent."""

    candidate: Index
    iteration: Index
    commit: Name
    value: float | None = None
    reverted: bool = False


class LoopState(Model):
    """What a loop does next, and all it has to remember.

    Attributes:
        version: Version of this schema.
        phase: The phase that is begun or continued.
        interrupted: With ``STOPPED``: phase in which the iteration goes on; empty if the iteration is complete.
        iteration: The current iteration, from 1; 0 before the first.
        next_candidate: Number of the first candidate of the iteration; the numbers of its others follow.
        baseline: Commit where the loop began.
        incumbent: Commit of the incumbent.
        incumbent_candidate: Its candidate; 0 for the baseline.
        metric: Name of the target's metric.
        baseline_value: Its value for the baseline.
        best_value: Its value for the incumbent.
        no_progress: Iterations in a row without a promotion.
        infrastructure_failures: Iterations in a row that failed for reasons of the surroundings.
        target_confirmations: Iterations in a row that met the threshold.
        promotions: Accepted candidates, in order.
        hint: What the last reviewer suggests.
        spent: What the iterations before this one have spent, and the wall clock until this was written.
        promotion_seconds: Date of this iteration's promotions, in seconds since 1970.
        started_at: Time of the first start (UTC, ISO 8601).
        restarts: Number of later starts.
        stop_reason: Why the loop has stopped; empty while it has not.
    """

    version: Literal[1] = 1
    phase: Phase = "INIT"
    interrupted: Phase | Literal[""] = ""
    iteration: Index = 0
    next_candidate: Annotated[int, Field(ge=1, lt=1 << 31)] = 1
    baseline: Name = ""
    incumbent: Name = ""
    incumbent_candidate: Index = 0
    metric: Name = ""
    baseline_value: float | None = None
    best_value: float | None = None
    no_progress: Index = 0
    infrastructure_failures: Index = 0
    target_confirmations: Index = 0
    promotions: Annotated[tuple[Promotion, ...], Field(max_length=1_000_000)] = ()
    hint: Sentence = ""
    spent: Spent = Spent()
    promotion_seconds: Annotated[int, Field(ge=0, lt=1 << 40)] = 0
    started_at: Name = ""
    restarts: Index = 0
    stop_reason: Sentence = ""


class Control(Model):
    """Requests of other processes: stop after this iteration, or now."""

    version: Literal[1] = 1
    stop: Literal["", "after-iteration", "now"] = ""
    reason: Sentence = ""


class Heartbeat(Model):
    """Sign of life, for ``nvfp4 loop watch`` and for other processes that want the lock.

    Attributes:
        version: Version of this schema.
        pid: Process of the loop.
        host: Its host.
        updated_at: Time of this sign of life (UTC, ISO 8601).
        phase: Current phase.
        iteration: Current iteration.
        activity: What is done now, in one line.
        candidates: Numbers of the candidates that workers make or that are judged now.
        spent: What was spent so far.
    """

    version: Literal[1] = 1
    pid: Index = 0
    host: Name = ""
    updated_at: Name = ""
    phase: Phase = "INIT"
    iteration: Index = 0
    activity: Sentence = ""
    candidates: Annotated[tuple[Index, ...], Field(max_length=1000)] = ()
    spent: Spent = Spent()


class StateFolder:
    """The directory of state.

    Args:
        root: The directory; it need not exist.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state, self.control = root / "state.json", root / "control.json"
        self.heartbeat, self.lock = root / "heartbeat.json", root / "lock" / "active.lock"
        self.config, self.log = root / "loop.toml", root / "run.log"
        self.ledger = root / "ledger.json"
        self.baseline = root / "baseline"

    def candidate(self, number: int) -> Path:
        """Return the folder of a candidate."""
        return self.root / "candidates" / f"{number:04d}"

    def iteration(self, number: int) -> Path:
        """Return the folder of an iteration."""
        return self.root / "iterations" / f"{number:04d}"

    def work(self, number: int) -> Path:
        """Return the folder that the worker of a candidate may write."""
        return self.root / "work" / f"{number:04d}"

    def tree(self, number: int) -> Path:
        """Return the worktree of the worker of a candidate."""
        return self.work(number) / "tree"

    def result(self, number: int) -> Path:
        """Return the file in which the worker of a candidate leaves its result (``NVFP4_LOOP_RESULT``)."""
        return self.work(number) / "outbox" / "worker_result.json"

    def progress(self, number: int) -> Path:
        """Return the file in which the worker of a candidate reports its progress (``NVFP4_LOOP_PROGRESS``)."""
        return self.work(number) / "outbox" / "worker_progress.json"

    def review(self, iteration: int) -> Path:
        """Return the folder of a review, while it runs."""
        return self.root / "review" / f"{iteration:04d}"

    def judge(self, number: int) -> Path:
        """Return the folder of the worktree in which a candidate is judged; 0 for the baseline."""
        return self.root / "judge" / f"{number:04d}"


def write_model(path: Path, model: Model) -> None:
    """Write a model as JSON, whole or not at all; its folder is made. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, f"{json_text(model.model_dump(mode='json'))}\n")


def read_model(path: Path, model: type[M]) -> M | None:
    """Return the model in a file; None if there is no such file.

    Raises:
        DoorError: The file is no such model.
        OSError: It cannot be read.
    """
    try:
        data = read_file(path, source=str(path), most=_MOST_BYTES)
    except FileNotFoundError:
        return None
    return parsed(model, data, source=str(path))


def remove_records(folder: Path, *names: str) -> None:
    """Remove records that a folder may have. Raises OSError."""
    for name in names:
        (folder / name).unlink(missing_ok=True)
