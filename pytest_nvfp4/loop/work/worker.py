"""The worker of the mode ``command``: a user's command line, started once for each candidate, in a sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pytest_nvfp4.loop.configuration.config import WorkerSection
from pytest_nvfp4.loop.protocols import Task
from pytest_nvfp4.loop.schemas import Candidate
from pytest_nvfp4.loop.work.confined import ConfinedCommand, Run
from pytest_nvfp4.loop.work.usage import FullError, UsageLimit
from pytest_nvfp4.loop.work.workplace import Workplace, Workplaces

KEYS: Final = (
    "iteration",
    "candidate",
    "slot",
    "attempt",
    "iter_dir",
    "worktree",
    "kernel",
    "prompt",
    "result",
    "progress",
)
"""Keys of the command line."""


class CommandWorker:
    """Starts the command of ``[worker]``.

    Args:
        section: The table.
        places: Makes workplaces and candidates.
        root: Top of the user's checkout, which relative paths of the configuration refer to.
        most_bytes: Bytes by which a worker's files may grow.

    Raises:
        ConfigError: The command cannot be used.
    """

    def __init__(self, section: WorkerSection, *, places: Workplaces, root: Path, most_bytes: int) -> None:
        self._section = section
        self._places = places
        self._most_bytes = most_bytes
        self.command = ConfinedCommand(section, option="worker", keys=KEYS, root=root, closed=places.closed())

    def run(self, task: Task) -> Candidate:
        """Run the worker until it leaves something usable, at most as often as configured; see `protocols.Worker`.

        Each attempt begins with a new checkout. A change of the kernel counts however the worker ended.

        Raises:
            InfrastructureError, OSError: It cannot be started, or its candidate cannot be stored.
            StoppedError: The loop is stopped.
        """
        problems: tuple[str, ...] = ()
        wall_s = 0.0
        for attempt in range(1, self._section.attempts + 1):
            with self._places.opened(task) as place:
                failure, seconds = self._attempt(place, attempt, max(1.0, task.timeout_s - wall_s))
                wall_s += seconds
                candidate = self._places.candidate(
                    place,
                    by=self.command.name,
                    failure=failure,
                    attempts=attempt,
                    wall_s=wall_s,
                    problems=problems,
                )
            if candidate.end != "failed" or wall_s >= task.timeout_s:
                break
            problems = candidate.problems
        return candidate

    def _attempt(self, place: Workplace, attempt: int, timeout_s: float) -> tuple[str | None, float]:
        """Start the command once, and return how it failed (None if it did not) and how long it ran."""
        task = place.task
        values = {
            "iteration": str(task.iteration),
            "candidate": str(task.number),
            "slot": str(task.slot),
            "attempt": str(attempt),
            "iter_dir": str(place.outbox),
            "worktree": str(place.tree),
            "kernel": self._places.policy.kernel,
            "prompt": str(place.prompt),
            "result": str(place.outbox / "worker_result.json"),
            "progress": str(place.outbox / "worker_progress.json"),
        }
        limit = UsageLimit([place.tree, place.outbox, place.box], most_bytes=self._most_bytes)

        def meanwhile() -> None:
            place.mirror_progress()
            limit.check()

        logs = [task.folder / f"worker_attempt_{attempt}.{stream}.log" for stream in ("stdout", "stderr")]
        asked = Run(
            values=values,
            cwd=place.tree,
            box=place.box,
            readable=[place.prompt, *self._places.repository.git.lenders()],
            writable=[place.tree, place.outbox],
            environ={
                "NVFP4_LOOP_RESULT": values["result"],
                "NVFP4_LOOP_PROGRESS": values["progress"],
                "NVFP4_LOOP_ITERATION": values["iteration"],
                "NVFP4_LOOP_CANDIDATE": values["candidate"],
            },
            stdin=place.prompt if self._section.prompt == "stdin" else None,
            logs=(logs[0], logs[1]),
            timeout_s=timeout_s,
            meanwhile=meanwhile,
        )
        try:
            end = self.command.run(asked)
        except FullError as error:
            return f"the worker was ended: {error}", limit.seconds()
        return self.command.failure("worker", end), end.wall_s
