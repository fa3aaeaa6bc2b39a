"""The mode ``dry-run``: made-up candidates and verdicts, to try a configuration. No process is started."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_nvfp4.isolation.door.files import read_text
from pytest_nvfp4.loop.protocols import InfrastructureError, Purse, Task
from pytest_nvfp4.loop.schemas import (
    Candidate,
    Examination,
    GateResult,
    ProblemTime,
    ReviewerVerdict,
    Verdict,
    WorkerEnd,
    WorkerResult,
)
from pytest_nvfp4.loop.state import StateFolder
from pytest_nvfp4.writing import write_whole

_START_US = 100.0
_ENDS: tuple[WorkerEnd, ...] = ("proposed", "proposed", "proposed", "unchanged", "proposed", "violation")
"""How made-up workers end, by the number of the candidate."""


class DryRunRepository:
    """A branch of made-up commits, in a file of the directory of state."""

    def __init__(self, folder: StateFolder) -> None:
        self._file = folder.root / "branch.json"

    def incumbent(self) -> str:
        """Return the last commit."""
        try:
            commits: list[str] = json.loads(read_text(self._file, source=str(self._file), most=1 << 24))
        except FileNotFoundError:
            commits = [_commit("start")]
            write_whole(self._file, json.dumps(commits))
        return commits[-1]

    def promote(self, candidate: Candidate, verdict: Verdict, *, expected: str, seconds: int) -> str:
        """Append a commit."""
        commit = _commit("promoted", candidate.commit, verdict.reason, expected, seconds)
        if (last := self.incumbent()) == commit:
            return commit
        if last != expected:
            raise InfrastructureError(f"{self._file} is at {last}, and not at {expected}")
        commits = json.loads(read_text(self._file, source=str(self._file), most=1 << 24))
        write_whole(self._file, json.dumps([*commits, commit]))
        return commit

    def diff(self, old: str, new: str) -> str:
        """Return a text in place of a diff."""
        return f"made up: {old[:12]} -> {new[:12]}\n"

    def clean(self) -> None:
        """Return; there are no worktrees."""


class DryRunWorker:
    """Makes a candidate up."""

    def run(self, task: Task) -> Candidate:
        """Return a candidate that follows from its number."""
        end = _ENDS[task.number % len(_ENDS)]
        usable = end == "proposed"
        return Candidate(
            number=task.number,
            iteration=task.iteration,
            slot=task.slot,
            parent=task.parent,
            end=end,
            commit=_commit("candidate", task.number) if usable else None,
            tree=_commit("tree", task.number) if usable else None,
            violations=("made up: tests/test_kernel.py is changed",) if end == "violation" else (),
            result=WorkerResult(
                iteration=task.iteration, kernel_path="made-up.py", decision="KEEP", summary="made up", tokens=1000
            ),
        )


class DryRunJudge:
    """Makes findings and times up."""

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
        """Return an examination that follows from the number of the candidate."""
        del commit, parent, known, folder, purse
        number = 0 if candidate is None else candidate.number
        red = number % 7 == 4
        gates = (
            GateResult(gate="compile", outcome="passed"),
            GateResult(gate="verify", outcome="failed" if red else "passed", message="made up" if red else ""),
        )
        for gate in gates:
            on_gate(gate)
        us = _START_US * (0.97 if number % 2 else 1.02) ** number
        return Examination(
            candidate=number,
            gates=gates,
            passed=not red,
            ptx_sha256=hashlib.sha256(str(number).encode()).hexdigest(),
            modelled=() if red else (ProblemTime(problem="made-up", us=us),),
            table="made up",
        )

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
        """Return the verdict of comparing the made-up times."""
        del folder, purse
        new, old = self.value(examination), self.value(incumbent)
        if new is None or old is None:
            outcome, reason = "rejected", f"made up: {examination.gates[-1].gate} is red"
        else:
            outcome, reason = ("faster" if new < old else "slower"), f"made up: {old:.4g} us -> {new:.4g} us"
        return Verdict.model_validate(
            {
                "candidate": candidate.number,
                "iteration": candidate.iteration,
                "against": against,
                "outcome": outcome,
                "reason": reason,
                "metric": "made-up",
                "value": new,
                "incumbent_value": old,
            }
        )

    def value(self, examination: Examination) -> float | None:
        """Return the made-up time."""
        return examination.modelled[0].us if examination.modelled else None


class DryRunReviewer:
    """Makes reviews up."""

    def review(
        self, iteration: int, candidates: Sequence[tuple[Candidate, Verdict]], *, folder: Path, timeout_s: float
    ) -> ReviewerVerdict:
        """Return a review that lets the loop go on."""
        del folder, timeout_s
        return ReviewerVerdict(
            iteration=iteration,
            verdict="CONTINUE",
            confidence="low",
            reason=f"made up, about {len(candidates)} candidates",
            next_change_hint="made up",
            requires_revert=False,
        )


def _commit(*parts: object) -> str:
    return hashlib.sha1(repr(parts).encode(), usedforsecurity=False).hexdigest()
