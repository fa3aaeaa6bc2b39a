"""What the state machine asks of a repository, a worker, a judge and a reviewer.

The state machine knows no kernel, no git command and no agent: tests give it stand-ins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_nvfp4.loop.schemas import Candidate, Examination, GateResult, ReviewerVerdict, Verdict


class InfrastructureError(Exception):
    """The surroundings failed (a full disk, a lost remote, a missing program); nothing is said about a candidate."""


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
            InfrastructureError: The worker could not be started.
            KeyboardInterrupt: The loop is stopped; the worker's process group has ended.
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
    ) -> Examination:
        """Return what can be found about a commit without a GPU. May run in several threads at once, in any order.

        Args:
            candidate: The candidate; None for the baseline.
            commit: Commit to examine.
            parent: Commit of the incumbent that it is compared with.
            known: `Examination.ptx_sha256` of the candidates of earlier iterations, with their numbers.
            folder: Folder for evidence.
            on_gate: Called with the result of each gate as it ends.
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
    ) -> Verdict:
        """Return the verdict about an examined candidate against the incumbent of this moment.

        Called one candidate after the other, in the order of their numbers. It measures, if a device is configured,
        and confirms a win in a second, fresh comparison.
        """
        ...


class Reviewer(Protocol):
    """Reviews iterations."""

    def review(
        self, iteration: int, candidates: Sequence[tuple[Candidate, Verdict]], *, folder: Path, timeout_s: float
    ) -> ReviewerVerdict:
        """Return the reviewer's verdict. Raises InfrastructureError if there is none after all attempts."""
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
