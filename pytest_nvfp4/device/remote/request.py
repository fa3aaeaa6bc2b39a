"""Request for the results of a batch, with the results that are cached already."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from pytest_nvfp4.device.remote.base import Batch, BatchResult, RemoteCall, RemoteError
from pytest_nvfp4.device.remote.cache import CachedResult
from pytest_nvfp4.device.remote.call_store import StoredCall
from pytest_nvfp4.device.result import Result


class BatchRequest:
    """A batch whose results are requested.

    Attributes:
        batch: The batch; after a result, the one that ran (its draws may differ).
        cached: Cached results by the index of the job.
        result: Its result, if it has one.
        error: The error that ended it, if one did.
        call: The submitted batch, if it was submitted.
        stored: The call of an earlier session whose result it waits for, if there is one.
        sent_at: Time of the last submission.
        tries: Number of submissions.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.cached: dict[int, CachedResult] = {}
        self.result: BatchResult | None = None
        self.error: RemoteError | None = None
        self.call: RemoteCall | None = None
        self.stored: StoredCall | None = None
        self.sent_at = 0.0
        self.tries = 0
        self._done = threading.Event()

    def use_cached(self, cached: dict[int, CachedResult]) -> None:
        """Take cached results for some of its jobs."""
        jobs = tuple(cached[index].job if index in cached else job for index, job in enumerate(self.batch.jobs))
        self.batch, self.cached = self.batch.model_copy(update={"jobs": jobs}), cached

    def use_stored(self, stored: StoredCall) -> None:
        """Wait for the call of an earlier session, which runs its remaining jobs with other draws."""
        drawn = iter(stored.drawn(self.remaining).jobs)
        jobs = tuple(job if index in self.cached else next(drawn) for index, job in enumerate(self.batch.jobs))
        self.batch, self.stored = self.batch.model_copy(update={"jobs": jobs}), stored

    @property
    def remaining(self) -> Batch:
        """Batch to submit: the jobs without cached results."""
        jobs = tuple(job for index, job in enumerate(self.batch.jobs) if index not in self.cached)
        return self.batch.model_copy(update={"jobs": jobs}) if self.cached else self.batch

    def combined(self, results: Iterable[Result]) -> tuple[Result, ...]:
        """Return the results of ``remaining`` and the cached ones in the order of the jobs."""
        fresh = iter(results)
        indices = range(len(self.batch.jobs))
        return tuple(self.cached[index].result if index in self.cached else next(fresh) for index in indices)

    @property
    def done(self) -> bool:
        """Whether it ended, with a result or an error."""
        return self._done.is_set()

    def finish(self, *, result: BatchResult | None = None, error: RemoteError | None = None) -> None:
        """End it; a second end is ignored."""
        if not self._done.is_set():
            self.result, self.error = result, error
            self._done.set()

    def wait(self, *, on_wait: Callable[[], None] | None = None, poll_s: float = 0.5) -> BatchResult:
        """Wait for the result. An interrupt ends the wait at once, because it polls.

        Args:
            on_wait: Called every ``poll_s`` seconds.
            poll_s: Seconds between two polls.

        Raises:
            RemoteError: The request ended without a result.
        """
        result = self.wait_or_released(on_wait=on_wait, poll_s=poll_s)
        assert result is not None, "only a caller that stores the result elsewhere releases it"
        return result

    def wait_or_released(self, *, on_wait: Callable[[], None] | None = None, poll_s: float = 0.5) -> BatchResult | None:
        """Wait like `wait`; return None for a released result."""
        while not self._done.wait(poll_s):
            if on_wait is not None:
                on_wait()
        if self.error is not None:
            raise self.error
        return self.result

    def release(self) -> None:
        """Free the memory of the result; the caller has stored it elsewhere."""
        self.result = None
