"""Workers for tests of the loop: programs that a command worker starts in its sandbox."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from pytest_nvfp4.loop.configuration.config import WorkerSection
from pytest_nvfp4.loop.protocols import Task
from pytest_nvfp4.loop.repository.repository import GitRepository
from pytest_nvfp4.loop.schemas import Candidate
from pytest_nvfp4.loop.state import StateFolder
from pytest_nvfp4.loop.work.policy import Policy
from pytest_nvfp4.loop.work.worker import CommandWorker
from pytest_nvfp4.loop.work.workplace import Workplaces

from .repositories import KERNEL, make_repository, opened

PRELUDE = '''
import json, os, pathlib, signal, subprocess, sys, time
KERNEL = pathlib.Path("kernels/k.py")
RESULT = pathlib.Path(os.environ["NVFP4_LOOP_RESULT"])

def change(text="STAGES = 2\\n"):
    KERNEL.write_text(text)

def result(**fields):
    values = {"iteration": 1, "kernel_path": str(KERNEL), "decision": "KEEP", "summary": "two stages"}
    RESULT.write_text(json.dumps(values | fields))

def attempt(act):
    """Print whether a hostile act succeeded."""
    try:
        print("BREACH", act())
    except Exception as error:
        print("refused", type(error).__name__)
    sys.stdout.flush()
'''
"""What the programs share."""


@dataclass
class Bench:
    """A repository, and what is needed to let a worker work in it."""

    top: Path
    repository: GitRepository = field(init=False)
    state: StateFolder = field(init=False)

    def __post_init__(self) -> None:
        make_repository(self.top)
        self.open()

    def open(self) -> None:
        """Open the repository, which exists."""
        self.state = StateFolder(self.top / ".nvfp4" / "loop")
        self.repository = opened(self.top)

    def places(self, *may_change: str) -> Workplaces:
        """Return workplaces with a policy."""
        files = self.repository.files(self.repository.incumbent())
        return Workplaces(self.repository, Policy(KERNEL, may_change, files=files), self.state)

    def task(self, number: int = 1, *, timeout_s: float = 60.0) -> Task:
        """Return a task of iteration 1."""
        return Task(
            number=number,
            iteration=1,
            slot=number - 1,
            parent=self.repository.incumbent(),
            folder=self.state.candidate(number),
            prompt="make it faster\n",
            timeout_s=timeout_s,
        )

    def worker(
        self,
        program: str,
        *arguments: str,
        may_change: tuple[str, ...] = (),
        most_bytes: int = 1 << 30,
        **section: object,
    ) -> CommandWorker:
        """Return a worker that runs a program after the prelude."""
        script = self.top.parent / "program.py"
        script.write_text(PRELUDE + textwrap.dedent(program))
        values = {"attempts": 1, "readable": (str(script),), **section}
        made = WorkerSection.model_validate({"command": (sys.executable, str(script), *arguments), **values})
        return CommandWorker(made, places=self.places(*may_change), root=self.top, most_bytes=most_bytes)

    def run(
        self, program: str, *arguments: str, timeout_s: float = 60.0, number: int = 1, **options: object
    ) -> Candidate:
        """Let a program work on candidate 1."""
        task = self.task(number, timeout_s=timeout_s)
        task.folder.mkdir(parents=True, exist_ok=True)
        return self.worker(program, *arguments, **options).run(task)  # type: ignore[arg-type]

    def log(self, stream: str = "stdout", *, number: int = 1, attempt: int = 1) -> str:
        """Return what the worker printed."""
        return (self.state.candidate(number) / f"worker_attempt_{attempt}.{stream}.log").read_text()

    def kernel(self, candidate: Candidate) -> str:
        """Return the kernel of a candidate."""
        assert candidate.commit is not None, candidate
        return self.repository.read(candidate.commit, KERNEL).decode()
