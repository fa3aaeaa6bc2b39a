"""What the phases of the loop share."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeVar

from pytest_nvfp4.isolation import cancellation
from pytest_nvfp4.isolation.cancellation import StoppedError, stopped_by
from pytest_nvfp4.loop.clock import Clock
from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.machine.budget import Budget
from pytest_nvfp4.loop.machine.pulse import Pulse
from pytest_nvfp4.loop.protocols import (
    BudgetError,
    InfrastructureError,
    Judge,
    Memory,
    Notifier,
    PromptWriter,
    Repository,
    Reviewer,
    Worker,
)
from pytest_nvfp4.loop.schemas import Candidate
from pytest_nvfp4.loop.state import StateFolder, read_model
from pytest_nvfp4.text import printed

T = TypeVar("T")
Status = Literal["stopped", "interrupted", "failed"]
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class EndError(Exception):
    """The loop ends here; what its directory says is enough to go on.

    Args:
        status: ``stopped`` as asked or at a limit, ``interrupted`` by a signal, ``failed`` where it cannot go on.
        reason: Why, for people.
    """

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that the state machine drives.

    Attributes:
        repository: Owner of the incumbent.
        worker: Maker of candidates.
        judge: Judge of candidates.
        reviewer: Reviewer of iterations; None for none.
        memory: What was tried.
        prompts: Writer of prompts.
        notify: Notifications.
        show: Called with each line of the log.
    """

    repository: Repository
    worker: Worker
    judge: Judge
    reviewer: Reviewer | None
    memory: Memory
    prompts: PromptWriter
    notify: Notifier
    show: Callable[[str], None]


def write_log(folder: StateFolder, clock: Clock, line: str) -> str:
    """Append a line to the log of a loop, and return it as it is shown. Raises OSError."""
    text = printed(line).replace("\n", " ")
    with folder.log.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{clock.stamp()} {text}\n")
    return text


@dataclass(frozen=True, slots=True)
class Context:
    """The parts with the directory of state, the account and the pulse of one run."""

    config: LoopConfig
    folder: StateFolder
    parts: Parts
    clock: Clock
    budget: Budget
    pulse: Pulse

    def log(self, line: str) -> None:
        """Append a line to the log, and show it. Raises OSError."""
        self.parts.show(write_log(self.folder, self.clock, line))

    def candidate(self, number: int) -> Candidate | None:
        """Return the record of a candidate; None if its worker has not ended. Raises DoorError and OSError."""
        return read_model(self.folder.candidate(number) / "candidate.json", Candidate)

    def ended(self) -> EndError:
        """Return the end that the pulse demands."""
        return EndError("failed" if self.pulse.cause == "error" else "stopped", self.pulse.reason)

    def called(self, call: Callable[[], T]) -> T:
        """Call a part in the main thread; the call ends when the loop has to. Raises as `guarded`."""
        with stopped_by(self.pulse.halt):
            return guarded(call)

    @contextlib.contextmanager
    def side_by_side(self, jobs: int) -> Iterator[Callable[[Callable[[], T]], Future[T]]]:
        """Yield a function that begins a call of a part in a thread; the calls end with the block."""
        over, running, changed = _Either(self.pulse.halt), set[object](), threading.Condition()
        pool = ThreadPoolExecutor(jobs, thread_name_prefix="nvfp4-loop")

        def stoppable(call: Callable[[], T]) -> T:
            with stopped_by(over):
                with changed:
                    cancellation.check()
                    running.add(mine := object())
                try:
                    return call()
                finally:
                    with changed:
                        running.discard(mine)
                        changed.notify_all()

        try:
            yield lambda call: pool.submit(stoppable, call)
        finally:
            over.set()
            pool.shutdown(wait=True, cancel_futures=True)
            # The pool does not know a thread in whose start an interrupt came.
            with changed:
                changed.wait_for(lambda: not running)


class _Either(threading.Event):
    """An event that is also set when another one is."""

    def __init__(self, other: threading.Event) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        return super().is_set() or self._other.is_set()


def guarded(call: Callable[[], T]) -> T:
    """Call a part.

    Raises:
        InfrastructureError: Whatever else the part has raised: its defect must not end the loop.
        BudgetError: As the part.
        StoppedError: The loop has to end.
        OSError: The disk is full.
    """
    try:
        return call()
    except (StoppedError, BudgetError, InfrastructureError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            raise
        raise InfrastructureError(f"{type(error).__name__}: {error}") from error


def twice(call: Callable[[], T]) -> T:
    """Call a part, and once more if the surroundings fail. Raises InfrastructureError after the second time."""
    try:
        return guarded(call)
    except InfrastructureError:
        return guarded(call)
