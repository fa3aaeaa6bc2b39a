"""What the state machine asks of a repository, a worker, a judge and a reviewer.

The state machine contains nothing of kernels, git commands or agents: tests give it stand-ins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_nvfp4.loop.configuration.config import Event
from pytest_nvfp4.loop.schemas import Candidate, Examination, GateResult, ReviewerVerdict, Verdict
from pytest_nvfp4.loop.state import LoopState


class InfrastructureError(Exception):
    """The surroundings failed (a full disk, a lost remote, a missing program); nothing is said about a candidate."""


class BudgetError(Exception):
    """The worst case of what would be begun next does not fit what the budget leaves."""


class Purse(Protocol):
    """What one examination or decision may still spend. Its calls are safe in several threads."""

    def reserve(self, *, gpu_s: float = 0.0, usd: float = 0.0) -> None:
        """Reserve the worst case of a stage, before it is begun.

        What is reserved counts as spent until `settle`, also if the process is killed in between.

        Raises:
            BudgetError: It does not fit; the stage must not begin, and the error is passed on to the caller.
        """
        ...

    def settle(self, *, gpu_s: float = 0.0, usd: float = 0.0) -> None:
        """Replace all that is reserved by what was really spent. Called after each stage, also after a failed one."""
        ...


@dataclass(frozen=True, slots=True)
class Task:
    """One run of a worker.

    Attributes:
        number: Number of the candidate that it will make.
        iteration: Iteration.
        slot: Position among the candidates of the iteration, from 0.
        parent: Commit of the incumbent.
        folder: Folder of the candidate in the directory of state; the worker may not write there.
        prompt: Text for the worker.
        timeout_s: Seconds until it is ended.
    """

    number: int
    iteration: int
    slot: int
    parent: str
    folder: Path
    prompt: str
    timeout_s: float


class Worker(Protocol):
    """Makes candidates."""

    def run(self, task: Task) -> Candidate:
        """Run a worker to its end, and return what it left. May run in several threads at once.

        A second call with the same task removes what an interrupted one left, and begins anew.

        Raises:
            InfrastructureError, OSError: The worker could not be started; a full disk (ENOSPC) ends the loop.
            StoppedError: The loop is stopped (`isolation.cancellation`); the worker's processes have ended.
        """
        ...


class Judge(Protocol):
    """Judges candidates."""

    def examine(
        self,
        candidate: Candidate | None,
        *,
        commit: str,
        parent: str,
        known: Mapping[str, int],
        folder: Path,
        on_gate: Callable[[GateResult], None],
        purse: Purse,
    ) -> Examination:
        """Return what can be found about a commit without a GPU. May run in several threads at once, in any order.

        Args:
            candidate: The candidate; None for the baseline.
            commit: Commit to examine.
            parent: Commit of the incumbent that it is compared with.
            known: `Examination.ptx_sha256` of the candidates of earlier iterations, with their numbers.
            folder: Folder for evidence.
            on_gate: Called with the result of each gate as it ends.
            purse: What a remote may cost.

        Raises:
            BudgetError: As the purse.
            StoppedError: The loop is stopped; all processes of the examination have ended.
        """
        ...

    def decide(
        self,
        candidate: Candidate,
        examination: Examination,
        *,
        against: str,
        incumbent: Examination,
        folder: Path,
        purse: Purse,
    ) -> Verdict:
        """Return the verdict about an examined candidate, one with a red gate included, against the incumbent.

        Called one candidate after the other, in the order of their numbers. It measures, if a device is configured,
        and confirms a win in a second, fresh comparison. The state machine itself judges candidates without a commit,
        duplicates, and examinations that failed for reasons of the surroundings.

        Raises:
            BudgetError: As the purse.
            InfrastructureError: The device or the remote failed; the state machine tries it once more.
            StoppedError: The loop is stopped.
        """
        ...

    def value(self, examination: Examination) -> float | None:
        """Return the target's metric of an examined commit; None if that needs a measurement."""
        ...


class Reviewer(Protocol):
    """Reviews iterations."""

    def review(
        self, iteration: int, candidates: Sequence[tuple[Candidate, Verdict]], *, folder: Path, timeout_s: float
    ) -> ReviewerVerdict:
        """Return the reviewer's verdict.

        Raises:
            InfrastructureError: There is none after all attempts.
            StoppedError: The loop is stopped.
        """
        ...


class Memory(Protocol):
    """What earlier iterations tried, from the records in the directory of state."""

    def same_source(self, candidate: Candidate) -> int | None:
        """Return the number of the candidate of an earlier iteration that has the same tree or source; None if new.

        0 is the baseline. Candidates whose verdict says nothing final (``infrastructure``, a measurement that noise
        left open) do not count.
        """
        ...

    def known_ptx(self, iteration: int) -> Mapping[str, int]:
        """Return the candidates of iterations before this one by `Examination.ptx_sha256`, with the same exception."""
        ...


class PromptWriter(Protocol):
    """Writes the prompts of workers."""

    def worker_prompt(self, state: LoopState, *, number: int, slot: int) -> str:
        """Return the prompt for a candidate of the current iteration. The same history gives the same text."""
        ...


class Notifier(Protocol):
    """Notifies the user of an event."""

    def __call__(self, event: Event, *, title: str, text: str) -> None:
        """Run the user's command, if one is configured for the event; a failure of it has no effect on the loop."""
        ...


class Repository(Protocol):
    """The git repository, which owns the incumbent."""

    def incumbent(self) -> str:
        """Return the commit of the incumbent: the loop's branch, which is made at the baseline if it is missing."""
        ...

    def promote(self, candidate: Candidate, verdict: Verdict, *, expected: str, seconds: int) -> str:
        """Make a candidate the incumbent in one commit with the evidence, and return the commit.

        A second call with the same arguments has no further effect and returns the same commit.

        Args:
            candidate: The candidate.
            verdict: The evidence.
            expected: Commit of the incumbent that it replaces.
            seconds: Date of the commit, in seconds since 1970.

        Raises:
            InfrastructureError: The branch is at another commit.
        """
        ...

    def diff(self, old: str, new: str) -> str:
        """Return the unified diff between two commits, of bounded length."""
        ...

    def clean(self) -> None:
        """Remove the worktrees of workers and judges that no process uses."""
        ...
