"""Stand-ins for the product's commands, for git and for the purse: they answer at once what a test tells them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_nvfp4.isolation import Captured, Outcome
from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.judge.judge import ProductJudge
from pytest_nvfp4.loop.schemas import Candidate, Examination, GateResult
from pytest_nvfp4.loop.state import StateFolder, write_model

__all__ = ["COMMIT", "HOST", "Bench", "Purse", "Script", "Trees", "candidate", "check", "ended", "modelled"]

COMMIT = "a" * 40
HOST = """import cutlass.cute as cute
@cute.kernel
def device(x):
    x[0] = 1
def custom_kernel(data):
    device(data)
"""


def check(gate: str, outcome: str = "passed", **more: Any) -> dict[str, Any]:
    """One check of the JSON report."""
    values = {"code_sha256": "1" * 64} if gate == "compile" else {}
    return {"kernel": "k.py", "check": f"{gate}[gpumode-0]", "outcome": outcome, "values": values} | more


def modelled(us: float, **more: Any) -> dict[str, Any]:
    """The modelled time of one problem in the answer of ``nvfp4 model``."""
    path = [{"role": "mma", "source": "k.py:3", "cause": "tcgen05.mma", "us": us}]
    fields = {"table": "1 abc", "model": "m1", "conditions": "cold L2", "kind": "GEMM", "band": {"p90": 0.1}}
    return {
        "problem": "p0", "status": "modelled", "device": "b200", **fields, "modelled_us": us,
        "launches": [{"path": path}], **more,
    }  # fmt: skip


def ended(returncode: int = 0, *, timed_out: bool = False, stderr: str = "", wall_s: float = 1.0) -> Outcome:
    """The end of a command."""
    return Outcome(
        returncode=returncode,
        timed_out=timed_out,
        wall_s=wall_s,
        result=None,
        result_overflow=False,
        stdout=Captured(""),
        stderr=Captured(stderr),
    )


@dataclass
class Script:
    """What the commands answer.

    Attributes:
        checks: Changes of checks by gate: the checks in place of one that passes; no check for an empty list.
        counters: Facts of ``cost`` for problem p0.
        cost: Other fields of that problem.
        times: Answer of ``model``.
        remote: What pytest says about a remote.
        ends: End of a command that leaves no answer, by the gate that begins it.
        code: Exit code of pytest.
        before: Called with each command before it answers, in its worktree.
        commands: The commands that ran.
    """

    checks: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    counters: dict[str, Any] = field(default_factory=lambda: {"tma.load.bytes": 100, "kernel": "gemm"})
    cost: dict[str, Any] = field(default_factory=dict)
    times: list[dict[str, Any]] = field(default_factory=lambda: [modelled(10.0)])
    remote: dict[str, Any] | None = None
    ends: dict[str, Outcome] = field(default_factory=dict)
    code: int = 0
    before: Callable[[Sequence[str], Path], None] | None = None
    commands: list[list[str]] = field(default_factory=list)

    def __call__(self, arguments: Sequence[str], *, cwd: Path, deadline_s: float) -> Outcome:
        """Answer a command as the product does."""
        assert deadline_s > 0
        self.commands.append(list(arguments))
        if self.before is not None:
            self.before(arguments, cwd)
        gates = [each.partition("=")[2] for each in arguments if each.startswith("--nvfp4-check=")]
        first = gates[0] if gates else arguments[1]
        if first in self.ends:
            return self.ends[first]
        if arguments[0] == "pytest":
            report = next(each.partition("=")[2] for each in arguments if each.startswith("--nvfp4-json="))
            checks: list[dict[str, Any]] = []
            for gate in gates:
                checks += self.checks.get(gate, [check(gate)])
                if "-x" in arguments and any(each["outcome"] == "failed" for each in checks):
                    break
            answer: dict[str, Any] = {
                "checks": checks,
                "remote": self.remote if any("remote=" in each for each in arguments) else None,
            }
        else:
            report = next(each.partition("=")[2] for each in arguments if each.startswith("--output="))
            counted = [{"problem": "p0", "status": "passed", "facts": self.counters, **self.cost}]
            answer = {"problems": self.times if first == "model" else counted}
        Path(report).write_text(json.dumps(answer))
        return ended(self.code if arguments[0] == "pytest" else 0)

    @property
    def ran(self) -> list[str]:
        """The first gate of each command, in order."""
        return [
            next((each.partition("=")[2] for each in command if each.startswith("--nvfp4-check=")), command[1])
            for command in self.commands
        ]


@dataclass
class Trees:
    """Commits and their files; each checkout is a new folder that is removed."""

    commits: dict[str, dict[str, str]]
    made: list[Path] = field(default_factory=list)

    @contextlib.contextmanager
    def worktree(self, commit: str, folder: Path) -> Iterator[Path]:
        """Check a commit out."""
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
        for name, text in self.commits[commit].items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        self.made.append(folder)
        yield folder
        shutil.rmtree(folder)


@dataclass
class Purse:
    """A purse that remembers, and refuses above its ceiling."""

    ceiling: float = 1e9
    calls: list[tuple[str, float, float]] = field(default_factory=list)

    def reserve(self, *, gpu_s: float = 0.0, usd: float = 0.0) -> None:
        """Reserve, or refuse."""
        from pytest_nvfp4.loop.protocols import BudgetError

        if usd > self.ceiling:
            raise BudgetError("too much")
        self.calls.append(("reserve", gpu_s, round(usd, 6)))

    def settle(self, *, gpu_s: float = 0.0, usd: float = 0.0) -> None:
        """Settle."""
        self.calls.append(("settle", gpu_s, round(usd, 6)))


def candidate(number: int = 1, commit: str = COMMIT) -> Candidate:
    """A candidate with a commit."""
    return Candidate(number=number, iteration=1, parent="0" * 40, end="proposed", commit=commit, tree=commit)


class Bench:
    """A judge on stand-ins, in a folder."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        self.state = StateFolder(folder / "state")
        self.trees = Trees({COMMIT: {"k.py": HOST}})
        self.script = Script()
        self.purse = Purse()
        self.seen: list[str] = []
        kernel = {"file": "k.py", "problems": ["p0"]}
        self.config = LoopConfig.model_validate({"kernel": kernel, "mode": "manual", **sections})
        self.judge = ProductJudge(self.config, worktrees=self.trees, state=self.state, run=self.script)

    def baseline(self) -> Examination:
        """Examine the baseline, and store it as the state machine does."""
        found = self.examine(None)
        write_model(self.state.baseline / "examination.json", found)
        self.seen.clear()
        self.script.commands.clear()
        return found

    def examine(self, which: Candidate | None, *, known: dict[str, int] | None = None) -> Examination:
        """Examine a candidate, or the baseline."""
        folder = self.state.baseline if which is None else self.state.candidate(which.number)

        def note(gate: GateResult) -> None:
            self.seen.append(f"{gate.gate} {gate.outcome}")

        commit = COMMIT if which is None or which.commit is None else which.commit
        return self.judge.examine(
            which, commit=commit, parent="0" * 40, known=known or {}, folder=folder, on_gate=note, purse=self.purse
        )
