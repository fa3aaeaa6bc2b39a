"""The worker without an agent: it makes the candidate whose number it is given.

    python worker.py NUMBER WORKTREE RESULT OUTBOX

WORKTREE is its copy of the repository, RESULT where its result file is expected, and OUTBOX its folder, three below the
directory of state of the loop, which it attacks. Its prompt, on standard input, is not read.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from candidates import KERNEL, STEPS  # type: ignore[import-not-found]  # beside this program


@dataclass(frozen=True)
class Worker:
    """One run.

    Attributes:
        number: Number of the candidate.
        kernel: File of the kernel.
        result: Where the result file is expected.
        state: Directory of state of the loop.
    """

    number: int
    kernel: Path
    result: Path
    state: Path

    def propose(self) -> None:
        """Say what was done."""
        self._say(decision="KEEP")

    def withdraw(self) -> None:
        """Take the change back, in words only."""
        self._say(decision="REVERT")

    def lie(self) -> None:
        """Claim a time and tests that nobody saw."""
        self._say(decision="KEEP", metric_name="modelled", metric_value=0.001, tests_passed=True, benchmark_passed=True)

    def babble(self) -> None:
        """Leave a result file that cannot be read."""
        self.result.write_text("[" * 100_000)

    def write_bytes(self) -> None:
        """Replace the kernel by what is no text."""
        self.kernel.write_bytes(bytes(range(256)) * 16)
        self.propose()

    def remove(self) -> None:
        """Remove the kernel."""
        self.kernel.unlink()
        self.propose()

    def link(self) -> None:
        """Replace the kernel by a link to a file with the right content."""
        other = self.kernel.with_name("elsewhere.py")
        self.kernel.rename(other)
        self.kernel.symlink_to(other.name)
        self.propose()

    def crash(self) -> None:
        """End by an exception."""
        raise RuntimeError("a worker that is not well")

    def flood(self) -> None:
        """Print more than anyone keeps, and never end."""
        for _ in range(64):
            print("progress " * (1 << 16), flush=True)  # noqa: T201
        while True:
            time.sleep(1)

    def change_tests(self) -> None:
        """Make the repository's own test pass whatever the kernel is."""
        (self.kernel.parent / "test_own.py").write_text("def test_own(): pass\n")
        self.propose()

    def change_snapshots(self) -> None:
        """Make the snapshots fit."""
        for file in (self.kernel.parent / "snapshots").rglob("*"):
            if file.is_file():
                file.write_text("")
        self.propose()

    def change_settings(self) -> None:
        """Ask for less verification."""
        with (self.kernel.parent / "pyproject.toml").open("a") as file:
            file.write("\n[tool.pytest.ini_options.extra]\n")
        self.propose()

    def add_conftest(self) -> None:
        """Make every test pass."""
        (self.kernel.parent / "conftest.py").write_text("def pytest_pyfunc_call(pyfuncitem): return True\n")
        self.propose()

    def attack_state(self) -> None:
        """Ask the loop to end, promote this candidate, and move the branch, without the loop."""
        folder = f"candidates/{self.number:04d}"
        for name in ("control.json", "state.json", f"{folder}/verdict.json", f"{folder}/examination.json", "hook"):
            for place in (self.state / name, self.state.parent / name):
                with contextlib.suppress(OSError):
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_text('{"version": 1, "stop": "now", "reason": "the worker has won"}')
        with contextlib.suppress(OSError):
            for branch in (self.state.parents[1] / ".git" / "refs" / "heads").rglob("*"):
                with contextlib.suppress(OSError):
                    branch.write_text("0" * 40 + "\n")
        with contextlib.suppress(OSError):
            os.kill(os.getppid(), 9)
        self.propose()

    def _say(self, **words: object) -> None:
        step = STEPS[self.number - 1]
        result = {"iteration": self.number, "kernel_path": KERNEL, "summary": step.name, **words}
        self.result.write_text(json.dumps(result))


def main(number: str, worktree: str, result: str, outbox: str) -> None:
    """Make a candidate."""
    worker = Worker(int(number), Path(worktree) / KERNEL, Path(result), Path(outbox).parents[2])
    step = STEPS[worker.number - 1]
    if step.edit is not None:
        worker.kernel.write_text(step.edit(worker.kernel.read_text()))
    if step.act:
        getattr(worker, step.act)()


if __name__ == "__main__":
    main(*sys.argv[1:])
