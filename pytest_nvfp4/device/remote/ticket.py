"""What is waited for: a batch, what is known of it already, and its answer once there is one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from pytest_nvfp4.device.remote.base import Answer, Batch, Handle, RemoteError
from pytest_nvfp4.device.remote.kept import Recalled
from pytest_nvfp4.device.result import Result


class Ticket:
    """A batch that somebody wants the answer of."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        """The batch; once there is an answer, the one that was run (its draws differ)."""
        self.known: dict[int, Recalled] = {}
        """What was known already, by the places of jobs in the batch."""
        self.answer: Answer | None = None
        self.error: RemoteError | None = None
        self.handle: Handle | None = None
        self.sent_at = 0.0
        self.tries = 0
        self._done = threading.Event()

    def recall(self, known: dict[int, Recalled]) -> None:
        """Take results of earlier sessions for some of its jobs."""
        jobs = tuple(known[index].job if index in known else job for index, job in enumerate(self.batch.jobs))
        self.batch, self.known = self.batch.model_copy(update={"jobs": jobs}), known

    @property
    def asked(self) -> Batch:
        """What the remote is asked for: the batch without the jobs whose results are known."""
        jobs = tuple(job for index, job in enumerate(self.batch.jobs) if index not in self.known)
        return self.batch.model_copy(update={"jobs": jobs}) if self.known else self.batch

    def whole(self, results: Iterable[Result]) -> tuple[Result, ...]:
        """Results of what was asked for, with those that were known in their places."""
        fresh = iter(results)
        places = range(len(self.batch.jobs))
        return tuple(self.known[index].result if index in self.known else next(fresh) for index in places)

    @property
    def done(self) -> bool:
        """Whether it ended, with an answer or without."""
        return self._done.is_set()

    def finish(self, *, answer: Answer | None = None, error: RemoteError | None = None) -> None:
        """End it; a second end is passed over."""
        if not self._done.is_set():
            self.answer, self.error = answer, error
            self._done.set()

    def wait(self, *, on_wait: Callable[[], None] | None = None, poll_s: float = 0.5) -> Answer:
        """The answer, once it is there. An interrupt ends the wait at once.

        Args:
            on_wait: Is called every ``poll_s`` seconds.
            poll_s: See there.

        Raises:
            RemoteError: there will be none.
        """
        answer = self.wait_kept(on_wait=on_wait, poll_s=poll_s)
        assert answer is not None, "whoever lets an answer go keeps it"
        return answer

    def wait_kept(self, *, on_wait: Callable[[], None] | None = None, poll_s: float = 0.5) -> Answer | None:
        """As ``wait``; None for an answer that was let go."""
        while not self._done.wait(poll_s):
            if on_wait is not None:
                on_wait()
        if self.error is not None:
            raise self.error
        return self.answer

    def let_go(self) -> None:
        """Hold the answer no longer; whoever calls this has it elsewhere."""
        self.answer = None
