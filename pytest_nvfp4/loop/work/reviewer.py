"""Reviewers: a user's command or a person, who read what an iteration has brought and may stop or steer the loop."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from pytest_nvfp4.isolation import cancellation
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.loop.configuration.config import ReviewerSection
from pytest_nvfp4.loop.protocols import InfrastructureError
from pytest_nvfp4.loop.repository.checkout import check_out, remove
from pytest_nvfp4.loop.repository.repository import GitRepository
from pytest_nvfp4.loop.schemas import Candidate, ReviewerVerdict, Verdict
from pytest_nvfp4.loop.state import StateFolder, write_model
from pytest_nvfp4.loop.work.confined import ConfinedCommand, Run
from pytest_nvfp4.loop.work.outbox import Outbox
from pytest_nvfp4.loop.work.usage import FullError, UsageLimit
from pytest_nvfp4.writing import write_whole

KEYS: Final = ("iteration", "attempt", "iter_dir", "worktree", "prompt", "verdict")
"""Keys of the command line."""
_FILE: Final = "reviewer_verdict.json"
_MOST_BYTES: Final = 1 << 30
_LOOK_S: Final = 0.5

Reviewed = Sequence[tuple[Candidate, Verdict]]


class Prompt(Protocol):
    """Writes the prompt of a reviewer (`prompts.Prompts.reviewer_prompt`)."""

    def __call__(self, iteration: int, candidates: Reviewed, *, answer: Path) -> str:
        """Return the prompt for an iteration; ``answer`` is the file for the verdict."""
        ...


class _Desk:
    """Where one review is made: a checkout to read, and an outbox for the verdict."""

    def __init__(self, place: Path, iteration: int) -> None:
        self.tree, self.outbox, self.box = place / "tree", place / "outbox", place / "box"
        self.prompt = place / "prompt.txt"
        self.iteration = iteration
        self.reports = Outbox(self.outbox)

    def verdict(self) -> ReviewerVerdict | None:
        """Return the verdict; None if there is none. Raises DoorError."""
        verdict = self.reports.read(_FILE, ReviewerVerdict)
        if verdict is not None and verdict.iteration != self.iteration:
            raise DoorError(_FILE, f"belongs to iteration {verdict.iteration}, not {self.iteration}")
        return verdict


class _Reviewer:
    """What both reviewers share.

    Args:
        repository: The loop's repository.
        state: The directory of state.
        prompt: Returns the prompt.
    """

    def __init__(self, repository: GitRepository, state: StateFolder, *, prompt: Prompt) -> None:
        self._repository = repository
        self._state = state
        self._prompt = prompt

    @contextlib.contextmanager
    def _desk(self, iteration: int, candidates: Reviewed, folder: Path) -> Iterator[_Desk]:
        """Make a checkout of what the candidates were compared with, and an outbox, for a ``with`` block."""
        place = self._state.review(iteration)
        desk = None
        try:
            remove(place)
            place.mkdir(parents=True)
            folder.mkdir(parents=True, exist_ok=True)
            desk = _Desk(place, iteration)
            commit = candidates[0][1].against if candidates else self._repository.incumbent()
            check_out(self._repository.git, commit, desk.tree)
            text = self._prompt(iteration, candidates, answer=desk.outbox / _FILE)
            write_whole(desk.prompt, text)
            write_whole(folder / "review_prompt.txt", text)
            yield desk
        finally:
            if desk is not None:
                desk.reports.close()
            remove(place)


class CommandReviewer(_Reviewer):
    """Starts the command of ``[reviewer]`` in a sandbox in which it can write nothing but its verdict.

    Args:
        section: The table.
        repository: The loop's repository.
        state: The directory of state.
        prompt: Returns the prompt.

    Raises:
        ConfigError: The command cannot be used.
    """

    def __init__(
        self, section: ReviewerSection, repository: GitRepository, state: StateFolder, *, prompt: Prompt
    ) -> None:
        super().__init__(repository, state, prompt=prompt)
        self._section = section
        top = repository.git.top
        self.command = ConfinedCommand(
            section, option="reviewer", keys=KEYS, root=top, closed=[top, repository.git.common, state.root]
        )

    def review(self, iteration: int, candidates: Reviewed, *, folder: Path, timeout_s: float) -> ReviewerVerdict:
        """Return the reviewer's verdict, also of one that fails after it has written it; see `protocols.Reviewer`.

        Raises:
            InfrastructureError: There is none after all attempts.
            OSError: The command could not be started, or a file not be written.
            StoppedError: The loop is stopped.
        """
        why: list[str] = []
        until = time.monotonic() + timeout_s
        for attempt in range(1, self._section.attempts + 1):
            left = until - time.monotonic()
            if left <= 0:
                break
            with self._desk(iteration, candidates, folder) as desk:
                failure = self._attempt(desk, attempt, folder, left)
                try:
                    if (verdict := desk.verdict()) is not None:
                        write_model(folder / _FILE, verdict)
                        return verdict
                    why.append(f"attempt {attempt}: {failure or 'the reviewer ended'} without a {_FILE}")
                except DoorError as error:
                    why.append(f"attempt {attempt}: {error}")
        raise InfrastructureError(f"there is no verdict of the reviewer for iteration {iteration}: {'; '.join(why)}")

    def _attempt(self, desk: _Desk, attempt: int, folder: Path, timeout_s: float) -> str | None:
        values = {
            "iteration": str(desk.iteration),
            "attempt": str(attempt),
            "iter_dir": str(desk.outbox),
            "worktree": str(desk.tree),
            "prompt": str(desk.prompt),
            "verdict": str(desk.outbox / _FILE),
        }
        limit = UsageLimit([desk.outbox, desk.box], most_bytes=_MOST_BYTES)
        logs = [folder / f"reviewer_attempt_{attempt}.{stream}.log" for stream in ("stdout", "stderr")]
        asked = Run(
            values=values,
            cwd=desk.tree,
            box=desk.box,
            readable=[desk.tree, desk.prompt, *self._repository.git.lenders()],
            writable=[desk.outbox],
            environ={"NVFP4_LOOP_VERDICT": values["verdict"], "NVFP4_LOOP_ITERATION": values["iteration"]},
            stdin=desk.prompt if self._section.prompt == "stdin" else None,
            logs=(logs[0], logs[1]),
            timeout_s=timeout_s,
            meanwhile=limit.check,
        )
        try:
            end = self.command.run(asked)
        except FullError as error:
            return f"the reviewer was ended: {error}"
        return self.command.failure("reviewer", end)


class ManualReviewer(_Reviewer):
    """Waits until somebody has written a verdict into the outbox.

    Args:
        repository: The loop's repository.
        state: The directory of state.
        prompt: Returns the prompt.
        look_s: Seconds between two looks.
    """

    def __init__(
        self, repository: GitRepository, state: StateFolder, *, prompt: Prompt, look_s: float = _LOOK_S
    ) -> None:
        super().__init__(repository, state, prompt=prompt)
        self._look_s = look_s

    def review(self, iteration: int, candidates: Reviewed, *, folder: Path, timeout_s: float) -> ReviewerVerdict:
        """Wait for a verdict; see `protocols.Reviewer`. Raises InfrastructureError: there is none in time."""
        until = time.monotonic() + timeout_s
        nap = threading.Event()
        with self._desk(iteration, candidates, folder) as desk:
            why = "there is none"
            while time.monotonic() < until:
                cancellation.check()
                try:
                    if (verdict := desk.verdict()) is not None:
                        write_model(folder / _FILE, verdict)
                        return verdict
                except DoorError as error:  # it may be half written
                    why = str(error)
                nap.wait(self._look_s)
            raise InfrastructureError(f"no {desk.outbox / _FILE} within {timeout_s:.0f} s: {why}")
