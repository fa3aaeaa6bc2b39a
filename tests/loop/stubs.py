"""Stand-ins for what the state machine drives: deterministic, and with all their state in files."""

# ruff: noqa: ARG002 - stand-ins take what the protocols name

from __future__ import annotations

import hashlib
import json
import math
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_nvfp4.loop.clock import Clock
from pytest_nvfp4.loop.configuration.config import Event, LoopConfig
from pytest_nvfp4.loop.machine.context import Parts
from pytest_nvfp4.loop.machine.session import Session
from pytest_nvfp4.loop.protocols import InfrastructureError, Purse, Task
from pytest_nvfp4.loop.schemas import (
    Candidate,
    Examination,
    GateResult,
    ProblemTime,
    ReviewerVerdict,
    Verdict,
    WorkerResult,
)
from pytest_nvfp4.loop.state import LoopState, StateFolder, read_model
from pytest_nvfp4.writing import write_whole


def sha(*parts: object) -> str:
    """The name of a commit that consists of some parts."""
    return hashlib.sha1(repr(parts).encode(), usedforsecurity=False).hexdigest()


def sha256(*parts: object) -> str:
    """A hash of some parts."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


class FixedClock(Clock):
    """The machine's clocks, except that dates of commits are always the same."""

    def now(self) -> float:
        return 1_800_000_000.0


class StubRepository:
    """A branch in a file: the commits in order."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def commits(self) -> list[str]:
        if not self.file.exists():
            write_whole(self.file, json.dumps([sha("baseline")]))
        commits: list[str] = json.loads(self.file.read_text())
        return commits

    def incumbent(self) -> str:
        return self.commits()[-1]

    def promote(self, candidate: Candidate, verdict: Verdict, *, expected: str, seconds: int) -> str:
        commit = sha("promoted", candidate.tree, verdict.model_dump_json(), expected, seconds)
        commits = self.commits()
        if commits[-1] == commit:
            return commit
        if commits[-1] != expected:
            raise InfrastructureError(f"the branch is at {commits[-1]}, not at {expected}")
        write_whole(self.file, json.dumps([*commits, commit]))
        return commit

    def diff(self, old: str, new: str) -> str:
        return f"{old}..{new}"

    def clean(self) -> None:
        pass


class StubWorker:
    """Proposes one of 12 sources, or ends without one; the number of the candidate decides."""

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.runs = seed, list[int]()

    def run(self, task: Task) -> Candidate:
        self.runs.append(task.number)
        rng = random.Random(f"{self.seed}-{task.number}")
        result = WorkerResult(iteration=task.iteration, kernel_path="k.py", decision="KEEP", tokens=100, usd=0.5)
        kind = rng.choice(["proposed"] * 8 + ["unchanged", "withdrawn", "violation", "failed"])
        fields: dict[str, Any] = {"slot": task.slot, "parent": task.parent, "end": kind, "result": result}
        if kind == "proposed":
            source = rng.randrange(12)
            fields |= {"commit": sha(task.parent, source), "tree": sha(source), "source_sha256": sha256(source // 2)}
        return Candidate(number=task.number, iteration=task.iteration, **fields)


class StubJudge:
    """Finds a time that follows from the tree; some trees fail a gate, or compile to the same."""

    def __init__(self, *, wait: Callable[[int], None] | None = None, usd: float = 0.0) -> None:
        self.wait, self.usd = wait, usd
        self.examined: list[int] = []
        self.decided: list[int] = []
        self._lock = threading.Lock()

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
        number = 0 if candidate is None else candidate.number
        with self._lock:
            self.examined.append(number)
        if self.wait is not None:
            self.wait(number)
        if self.usd:
            purse.reserve(usd=self.usd)
            purse.settle(usd=self.usd)
        rng = random.Random(commit if candidate is None else candidate.tree)
        gates = [GateResult(gate="compile", outcome="passed")]
        on_gate(gates[0])
        ptx = sha256("ptx", rng.randrange(20) if candidate is not None else "baseline")
        if ptx in known:
            known_as = known[ptx]
            return Examination(
                candidate=number, gates=tuple(gates), ptx_sha256=ptx, duplicate_of=known_as, usd=self.usd
            )
        if candidate is not None and rng.random() < 0.1:
            return Examination(candidate=number, infrastructure="the remote is lost", usd=self.usd)
        passed = candidate is None or rng.random() < 0.8
        gates.append(GateResult(gate="verify", outcome="passed" if passed else "failed", message="one element"))
        on_gate(gates[1])
        us = 100.0 if candidate is None else rng.uniform(50, 110)
        times = (ProblemTime(problem="p", us=us),) if passed else ()
        return Examination(
            candidate=number, gates=tuple(gates), passed=passed, ptx_sha256=ptx, modelled=times, usd=self.usd
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
        self.decided.append(candidate.number)
        value, old = self.value(examination), self.value(incumbent)
        fields: dict[str, Any] = {"outcome": "rejected", "reason": "verify: one element"}
        if examination.passed:
            assert value is not None
            assert old is not None
            faster, slower = value < 0.97 * old, value > 1.03 * old
            fields = {"outcome": "faster" if faster else "slower" if slower else "undecided", "reason": f"{value}"}
            if self.usd:
                purse.reserve(usd=self.usd, gpu_s=1)
                purse.settle(usd=self.usd / 2, gpu_s=0.5)
                fields |= {"usd": self.usd / 2, "gpu_s": 0.5}
        return Verdict(
            candidate=candidate.number,
            iteration=candidate.iteration,
            against=against,
            metric="modelled",
            value=value,
            incumbent_value=old,
            **fields,
        )

    def value(self, examination: Examination) -> float | None:
        times = [time.us for time in examination.modelled]
        return math.prod(times) if times else None


class SteadyJudge(StubJudge):
    """Finds that each candidate is right, and faster than the one before."""

    def examine(self, candidate: Candidate | None, **others: Any) -> Examination:
        number, tree = (0, "") if candidate is None else (candidate.number, candidate.tree)
        times = (ProblemTime(problem="p", us=100 * 0.9**number),)
        return Examination(candidate=number, passed=True, ptx_sha256=sha256("ptx", tree), modelled=times)


class StubReviewer:
    """Vetoes some iterations."""

    def __init__(self, *vetoes: int) -> None:
        self.vetoes, self.reviewed = vetoes, list[int]()

    def review(
        self, iteration: int, candidates: Sequence[tuple[Candidate, Verdict]], *, folder: Path, timeout_s: float
    ) -> ReviewerVerdict:
        self.reviewed.append(iteration)
        return ReviewerVerdict(
            iteration=iteration,
            verdict="CONTINUE",
            confidence="low",
            reason="so it is",
            next_change_hint=f"after {len(candidates)}",
            requires_revert=iteration in self.vetoes,
            tokens=7,
        )


class StubMemory:
    """Reads the records of earlier iterations."""

    def __init__(self, folder: StateFolder) -> None:
        self.folder = folder

    def _earlier(self, iteration: int) -> list[tuple[Candidate, Verdict]]:
        found = []
        for place in sorted((self.folder.root / "candidates").glob("*")):
            candidate = read_model(place / "candidate.json", Candidate)
            verdict = read_model(place / "verdict.json", Verdict)
            if candidate and verdict and candidate.iteration < iteration and verdict.outcome != "infrastructure":
                found.append((candidate, verdict))
        return found

    def same_source(self, candidate: Candidate) -> int | None:
        for earlier, _ in self._earlier(candidate.iteration):
            if earlier.tree is not None and candidate.tree == earlier.tree:
                return earlier.number
        return None

    def known_ptx(self, iteration: int) -> Mapping[str, int]:
        known: dict[str, int] = {}
        for earlier, _ in self._earlier(iteration):
            examination = read_model(self.folder.candidate(earlier.number) / "examination.json", Examination)
            if examination is not None and examination.ptx_sha256 is not None:
                known.setdefault(examination.ptx_sha256, earlier.number)
        return known


class StubPrompts:
    """Writes prompts that say what they depend on."""

    def worker_prompt(self, state: LoopState, *, number: int, slot: int) -> str:
        return f"{state.iteration} {state.incumbent} {state.hint} {number} {slot}"


class Notes:
    """Keeps notifications."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def __call__(self, event: Event, *, title: str, text: str) -> None:
        self.events.append((event, text))


class StubLoop:
    """A loop of stand-ins in a folder; a new object is what a new process has."""

    def __init__(self, root: Path, settings: Mapping[str, Mapping[str, object]] | None = None) -> None:
        self.root, self.folder = root, StateFolder(root / "state")
        values = {"kernel": {"file": "k.py"}, "worker": {"command": ["w"]}, **(settings or {})}
        values["worker"] = {"command": ["w"], **values["worker"]}
        self.config = LoopConfig.model_validate(values)
        self.repository, self.worker = StubRepository(root / "branch.json"), StubWorker()
        self.judge, self.memory, self.notes = StubJudge(), StubMemory(self.folder), Notes()
        self.reviewer: StubReviewer | None = None
        self.lines: list[str] = []

    def session(self, **settings: Any) -> Session:
        """One run of it."""
        fixed = {"clock": FixedClock(), "pulse_s": 1000.0}
        return Session(self.config, self.folder, self.parts, **{**fixed, **settings})

    def parts(self) -> Parts:
        return Parts(
            repository=self.repository,
            worker=self.worker,
            judge=self.judge,
            reviewer=self.reviewer,
            memory=self.memory,
            prompts=StubPrompts(),
            notify=self.notes,
            show=self.lines.append,
        )

    def history(self) -> dict[str, object]:
        """What must be the same however often the loop was killed, and however many examinations ran at once."""
        records: dict[str, object] = {
            str(path.relative_to(self.folder.root)): json.loads(path.read_text())
            for name in ("candidate", "examination", "verdict", "review", "gates")
            for path in sorted(self.folder.root.glob(f"*/*/{name}.json"))
        }
        for path in sorted(self.folder.root.glob("*/*/prompt.txt")):
            records[str(path.relative_to(self.folder.root))] = path.read_text()
        state = read_model(self.folder.state, LoopState)
        assert state is not None
        dumped = state.model_dump(mode="json")
        # What is done again costs again.
        del dumped["restarts"], dumped["started_at"]
        dumped["spent"] = dumped["spent"]["tokens"]
        return {**records, "state": dumped, "branch": self.repository.commits()}
