"""What the directory of state shows of a loop, as one immutable value; nothing is written.

A loop that runs replaces the files at any time, and one that was killed leaves some of them out: whatever cannot be
read is missing from the view, and is named in `LoopView.problems`.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from pytest_nvfp4.isolation.door.error import DoorError
from pytest_nvfp4.loop.clock import Clock, seconds_of
from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.machine.lock import is_running
from pytest_nvfp4.loop.machine.resume import read_config
from pytest_nvfp4.loop.schemas import (
    Candidate,
    Examination,
    GateResult,
    Model,
    ReviewerVerdict,
    Verdict,
    WorkerProgress,
)
from pytest_nvfp4.loop.state import Control, Gates, Heartbeat, LockOwner, LoopState, Spent, StateFolder, read_model

M = TypeVar("M", bound=Model)
Life = Literal["absent", "running", "stopped", "dead"]
"""No loop yet; a process runs it; it has stopped; its process ended without stopping it."""
_NUMBER = re.compile(r"[0-9]{4,9}")
_MOST_TAIL = 64 << 10
_MOST_DIFF = 256 << 10


@dataclass(frozen=True, slots=True)
class CandidateView:
    """A candidate as far as it has come.

    Attributes:
        number: Number of the candidate.
        candidate: What its worker left; None while it runs.
        gates: Gates that have ended.
        examination: None until all gates have ended.
        verdict: None until the judge has decided.
        progress: Times that its worker claims; only shown.
    """

    number: int
    candidate: Candidate | None = None
    gates: tuple[GateResult, ...] = ()
    examination: Examination | None = None
    verdict: Verdict | None = None
    progress: WorkerProgress | None = None


@dataclass(frozen=True, slots=True)
class LoopView:
    """A loop at one moment.

    Attributes:
        folder: Directory of state.
        life: Whether a process runs it.
        state: What it does next.
        config: Its configuration.
        control: Requests that it has not followed yet.
        heartbeat: Its last sign of life.
        silent_s: Seconds since that; None without one.
        owner: Process that runs it, or the last one.
        start: The kernel where it began, as candidate 0.
        candidates: All candidates, by their numbers.
        active: Candidates that are made or judged now; none without a process.
        reviews: Verdicts of the reviewer, by iteration.
        log: Last lines of its log.
        problems: Files that cannot be read, and why.
    """

    folder: StateFolder
    life: Life
    state: LoopState = field(default_factory=LoopState)
    config: LoopConfig | None = None
    control: Control = field(default_factory=Control)
    heartbeat: Heartbeat | None = None
    silent_s: float | None = None
    owner: LockOwner | None = None
    start: CandidateView = CandidateView(0)
    candidates: tuple[CandidateView, ...] = ()
    active: tuple[CandidateView, ...] = ()
    reviews: tuple[tuple[int, ReviewerVerdict], ...] = ()
    log: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def spent(self) -> Spent:
        """What was spent so far: the state has what earlier iterations spent, the heartbeat also the current one."""
        if self.heartbeat is None:
            return self.state.spent
        pairs = zip(self.state.spent, self.heartbeat.spent, strict=True)
        return Spent(**{name: max(value, later) for (name, value), (_, later) in pairs})

    @property
    def name(self) -> str:
        """Name of the loop."""
        return self.config.name if self.config is not None else self.folder.root.name


class LoopReader:
    """Reads a directory of state again and again; a file that has not changed is not read twice.

    Args:
        folder: Directory of state, which need not exist.
        clock: Clock that heartbeats are compared with.
    """

    def __init__(self, folder: StateFolder, clock: Clock | None = None) -> None:
        self._folder, self._clock = folder, clock or Clock()
        self._known: dict[Path, tuple[tuple[int, int, int], Model | str | None]] = {}

    def read(self) -> LoopView:
        """Return the loop as it is now."""
        folder = self._folder
        problems: list[str] = []

        def model(path: Path, kind: type[M]) -> M | None:
            found = self._read(path, kind)
            if isinstance(found, str):
                problems.append(found)
                return None
            return found

        state, heartbeat = model(folder.state, LoopState), model(folder.heartbeat, Heartbeat)
        owner, control = model(folder.lock, LockOwner), model(folder.control, Control)
        config = self._config(problems)
        candidates = tuple(
            CandidateView(
                number,
                candidate=model(place / "candidate.json", Candidate),
                gates=(model(place / "gates.json", Gates) or Gates()).gates,
                examination=model(place / "examination.json", Examination),
                verdict=model(place / "verdict.json", Verdict),
            )
            for number, place in _numbered(folder.root / "candidates")
        )
        reviews = tuple(
            (number, review)
            for number, place in _numbered(folder.root / "iterations")
            if (review := model(place / "review.json", ReviewerVerdict)) is not None
        )
        beat = seconds_of(heartbeat.updated_at) if heartbeat is not None else None
        silent_s = None if beat is None else max(0.0, self._clock.now() - beat)
        life = _life(state, owner, silent_s, config)
        known = {each.number: each for each in candidates}
        numbers = heartbeat.candidates if heartbeat is not None and life == "running" else ()
        active = tuple(
            replace(
                known.get(number, CandidateView(number)),
                progress=model(folder.candidate(number) / "worker_progress.json", WorkerProgress),
            )
            for number in numbers
            if number > 0
        )
        return LoopView(
            folder=folder,
            life=life,
            state=state or LoopState(),
            config=config,
            control=control or Control(),
            heartbeat=heartbeat,
            silent_s=silent_s,
            owner=owner,
            start=CandidateView(
                0,
                gates=(model(folder.baseline / "gates.json", Gates) or Gates()).gates,
                examination=model(folder.baseline / "examination.json", Examination),
            ),
            candidates=candidates,
            active=active,
            reviews=reviews,
            log=tail(folder.log),
            problems=tuple(problems),
        )

    def _read(self, path: Path, kind: type[M]) -> M | str | None:
        """Return the model in a file, or why it cannot be read; None if there is no such file."""
        try:
            found = path.stat()
        except OSError:
            self._known.pop(path, None)
            return None
        # A file is replaced and never rewritten, so that a later content has another inode or time.
        mark = (found.st_ino, found.st_mtime_ns, found.st_size)
        if (known := self._known.get(path)) is not None and known[0] == mark:
            value = known[1]
            assert value is None or isinstance(value, str | kind)
            return value
        value = None
        try:
            value = read_model(path, kind)
        except DoorError as error:
            value = str(error)
        except OSError as error:
            value = f"{path}: {error.strerror or error}"
        self._known[path] = (mark, value)
        return value

    def _config(self, problems: list[str]) -> LoopConfig | None:
        path = self._folder.config
        try:
            return read_config(path)
        except DoorError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{path}: {error.strerror or error}")
        return None


def _life(state: LoopState | None, owner: LockOwner | None, silent_s: float | None, config: LoopConfig | None) -> Life:
    if owner is not None:
        if owner.host == socket.gethostname():
            alive = is_running(owner)
        else:
            stale_s = 60 * (config.limits.lock_minutes if config is not None else 10.0)
            alive = silent_s is not None and silent_s < stale_s
        if alive:
            return "running"
    if state is None:
        return "absent" if owner is None else "dead"
    return "stopped" if state.phase == "STOPPED" else "dead"


def _numbered(parent: Path) -> Iterator[tuple[int, Path]]:
    """Yield the numbered folders below a folder, in their order."""
    try:
        found = sorted((int(path.name), path) for path in parent.iterdir() if _NUMBER.fullmatch(path.name))
    except OSError:
        return
    yield from found


def tail(path: Path, lines: int = 200) -> tuple[str, ...]:
    """Return the last lines of a file that may grow, raw; none if it is no regular file that can be read."""
    data = _end_of(path, _MOST_TAIL)
    return tuple(data.decode(errors="replace").split("\n")[-lines - 1 :]) if data else ()


def output_of(folder: Path, lines: int = 200) -> tuple[str, tuple[str, ...]]:
    """Return the name and the last lines, raw, of the log of a candidate or iteration that was written last."""
    newest, at = None, -1
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                if entry.name.endswith(".log") and found.st_size and found.st_mtime_ns > at:
                    newest, at = Path(entry.path), found.st_mtime_ns
    except OSError:
        return "", ()
    return ("", ()) if newest is None else (newest.name, tail(newest, lines))


def diff_of(folder: StateFolder, number: int) -> str:
    """Return the diff of a candidate against the commit that its worker began with, raw; empty if there is none."""
    path = folder.candidate(number) / "diff.patch"
    data = _end_of(path, _MOST_DIFF, whole=True)
    return data.decode(errors="replace")


def _end_of(path: Path, most: int, *, whole: bool = False) -> bytes:
    """Return the last bytes, or with ``whole`` the first ones, of a regular file that is no link; else none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return b""
        return os.pread(descriptor, most, 0 if whole else max(0, found.st_size - most))
    except OSError:
        return b""
    finally:
        os.close(descriptor)
