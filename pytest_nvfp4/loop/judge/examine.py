"""Examination of one commit without a GPU: a fresh worktree, the gates, and whether its result counts.

What a kernel does wrong, a hang and a crash included, is a red gate. What its surroundings do wrong, a full disk or a
lost remote, is `Examination.infrastructure`.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

from pytest_nvfp4.cores import cores
from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.judge.answers import ReportAnswer, read_answer
from pytest_nvfp4.loop.judge.findings import Found
from pytest_nvfp4.loop.judge.gate_run import GateRun
from pytest_nvfp4.loop.judge.processes import Run
from pytest_nvfp4.loop.judge.product import Product
from pytest_nvfp4.loop.judge.snapshots import keep_new, lay_out, stamps
from pytest_nvfp4.loop.protocols import InfrastructureError, Purse
from pytest_nvfp4.loop.schemas import Candidate, Examination, GateResult
from pytest_nvfp4.loop.state import StateFolder, read_model
from pytest_nvfp4.toolchain.request import installed_dsl_version

_LEAST_FREE: Final = 64 << 20
"""Bytes that a file system needs for an examination; with fewer, no result says anything about a candidate."""
_SNAPSHOTS: Final = ("layouts", "launch", "codegen")
"""Gates that compare with snapshots."""


class Worktrees(Protocol):
    """Checks commits out."""

    def worktree(self, commit: str, folder: Path) -> AbstractContextManager[Path]:
        """Check a commit out into a folder of its own for the length of a ``with`` block."""
        ...


class Examiner:
    """Examines commits. Its calls are safe in several threads.

    Args:
        config: The configuration.
        worktrees: Where commits are checked out from.
        state: The directory of state.
        run: Runs the product's commands.
        hourly_usd: Price of one container of the remote; 0 if it costs nothing.
    """

    def __init__(
        self, config: LoopConfig, *, worktrees: Worktrees, state: StateFolder, run: Run, hourly_usd: float = 0.0
    ) -> None:
        self.config = config
        self._worktrees = worktrees
        self._state = state
        self._run = run
        self._hourly_usd = hourly_usd

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates of the configuration, and those without which the target says nothing.

        ``cost`` verifies its call on the problems of the target: a kernel could leave out its work on these alone.
        """
        metric, gates = self.config.target.metric, self.config.judge.gates
        needed = {"modelled": ("cost", "model"), "measured": ()}.get(metric, ("cost",))
        return (*gates, *(gate for gate in needed if gate not in gates))

    def examine(
        self,
        candidate: Candidate | None,
        *,
        commit: str,
        known: Mapping[str, int],
        folder: Path,
        on_gate: Callable[[GateResult], None],
        purse: Purse,
        gates: Sequence[str] | None = None,
    ) -> Examination:
        """Examine a commit; see `protocols.Judge.examine`. ``gates`` are `gates` by default."""
        start, number = time.monotonic(), 0 if candidate is None else candidate.number
        until, wanted = start + self.config.judge.timeout_s, self.gates if gates is None else tuple(gates)
        place, found = self._state.judge(number), Found()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._require_surroundings(folder)
            baseline = None if candidate is None else self._baseline()
            if candidate is None and gates is None:
                self._keep_snapshots(commit, place, folder, until=until)
            with self._worktrees.worktree(commit, place) as root:
                lay_out(root, self._state.baseline)
                run = GateRun(
                    product=self._product(root),
                    run=self._run,
                    folder=folder,
                    found=found,
                    baseline=baseline,
                    purse=purse,
                    hourly_usd=self._hourly_usd,
                    until=until,
                )
                run.pass_gates(wanted, known, on_gate)
        except (InfrastructureError, OSError) as error:
            found.infrastructure = str(error)
        if found.red and not found.infrastructure:
            found.infrastructure = _full(folder)
        return found.examination(number, wanted, wall_s=time.monotonic() - start)

    def _product(self, root: Path) -> Product:
        product = Product(self.config, root, jobs=max(1, cores() // self.config.judge.jobs))
        product.prepare()
        return product

    def _keep_snapshots(self, commit: str, place: Path, folder: Path, *, until: float) -> None:
        """Keep the baseline's layouts and facts if the repository has no snapshots of them."""
        wanted = tuple(gate for gate in self.gates if gate in _SNAPSHOTS)
        report = folder / "snapshots.json"
        for update in (False, True) if wanted else ():
            report.unlink(missing_ok=True)
            left = max(1.0, until - time.monotonic())
            with self._worktrees.worktree(commit, place) as root:
                product = self._product(root)
                before = stamps(root)
                command = product.pytest(wanted, report, deadline_s=left, update=update)
                self._run(command, cwd=root, deadline_s=left)
                if update:
                    keep_new(root, before, self._state.baseline)
            answer = read_answer(report, ReportAnswer)
            if answer is None or not any(check.outcome == "failed" for check in answer.checks):
                break

    def _baseline(self) -> Examination | None:
        return read_model(self._state.baseline / "examination.json", Examination)

    def _require_surroundings(self, folder: Path) -> None:
        """Raise InfrastructureError if no examination would say anything."""
        if installed_dsl_version() is None:
            raise InfrastructureError("nvidia-cutlass-dsl is not installed for this Python, so no kernel compiles")
        if full := _full(folder):
            raise InfrastructureError(full)


def _full(folder: Path) -> str:
    """Return which file system is full; empty if none is."""
    for place in (folder, Path(tempfile.gettempdir())):
        if (free := shutil.disk_usage(place).free) < _LEAST_FREE:
            return f"the file system of {place} is full: {free >> 20} MB are free, and {_LEAST_FREE >> 20} are needed"
    return ""
