"""Session on a remote: submits requested batches a few at a time; every wait is bounded.

One thread drives the remote. Without a cost limit it submits twice as many batches as there are containers, so that no
container waits for the network, and queues the rest locally, where cancelling is free. Results are stored in the
cache on disk before any thread that waits for them continues.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from pytest_nvfp4.device.remote.base import (
    Batch,
    BatchResult,
    Cost,
    ErrorKind,
    Place,
    Remote,
    RemoteCall,
    RemoteError,
    ResumableRemote,
    left_on,
)
from pytest_nvfp4.device.remote.breaker import Breaker
from pytest_nvfp4.device.remote.cache import RemoteResultCache
from pytest_nvfp4.device.remote.limits import cost_error, timeout_error
from pytest_nvfp4.device.remote.paid_work import PaidWork
from pytest_nvfp4.device.remote.progress import Progress
from pytest_nvfp4.device.remote.received import received, with_actual_draws
from pytest_nvfp4.device.remote.request import BatchRequest
from pytest_nvfp4.device.remote.run_times import RunTimes
from pytest_nvfp4.device.result import DeviceInfo

_FATAL: frozenset[ErrorKind] = frozenset({"setup", "login", "network", "version", "image", "capacity", "cost"})
"""Errors that every further batch would repeat: the first one ends the session."""
_KEPT: frozenset[ErrorKind] = frozenset({"network", "login"})
"""Errors after which a call may go on, so that a later session asks for its result."""
_RETRIED: frozenset[ErrorKind] = frozenset({"lost"})
"""Errors after which a batch is submitted a second time, and only once."""
_QUICK_S, _SLOW_S = 0.004, 0.1
"""Timeouts of one poll for results, with and without room for further batches."""
_STOP_S = 30.0
_THREAD_END_S = 1.5
"""Seconds for the session's thread to end; if it takes longer, it waits for the remote, which must then be stopped."""


class RemoteSession:
    """Submits batches to a remote and returns their results.

    Args:
        remote: The remote.
        containers: Number of containers that it may use at once.
        timeout_s: Seconds without any result after which submitted batches are abandoned.
        max_cost: Cost in US dollars that ends the session; None for no limit.
        usd_per_hour: Price of one container, if the remote knows none.
        cache: Cache of the results; None for none.
        times: Where the times of batches are kept; None for nowhere.
        reuse: Whether what earlier sessions paid for is used instead of submitting a batch.
        on_progress: Called at every change, from the session's thread.

    Attributes:
        devices: Devices that returned results, in order of their first result. A remote's name proves nothing; its
            results name the device.
        places: Where jobs ran, by container.
    """

    def __init__(
        self,
        remote: Remote,
        *,
        containers: int = 1,
        timeout_s: float = 900.0,
        max_cost: float | None = None,
        usd_per_hour: float | None = None,
        cache: RemoteResultCache | None = None,
        times: RunTimes | None = None,
        reuse: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._remote = remote
        self._containers = containers
        self._window = containers if max_cost is not None else 2 * containers
        self._timeout_s = timeout_s
        self._max_cost = max_cost
        self._usd_per_hour = usd_per_hour
        self._paid = PaidWork(remote, cache=cache, times=times, reuse=reuse)
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._queue: deque[BatchRequest] = deque()
        self._sent: dict[str, BatchRequest] = {}
        self._to_cancel: list[BatchRequest] = []
        self._breaker = Breaker()
        self.devices: dict[DeviceInfo, None] = {}
        self.places: dict[str, Place] = {}
        self._counts = {"done": 0, "cached": 0, "failed": 0, "cancelled": 0}
        self._building = False
        self._last_result = 0.0
        self._last_check = 0.0
        self._fatal: RemoteError | None = None
        self._lost: RemoteError | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    def check(self) -> RemoteError | None:
        """Return why this machine cannot use the remote, which then ends the session; None if it can, or may."""
        check = getattr(self._remote, "check", None)
        if callable(check):
            try:
                check()
            except RemoteError as error:
                self._fatal = self._fatal or error
        return self._fatal

    def add(self, batches: Iterable[Batch], *, urgent: bool = False) -> list[BatchRequest]:
        """Request batches; urgent ones are submitted before the queued ones. Returns at once."""
        requests = [BatchRequest(batch) for batch in batches]
        new = [request for request in requests if not self._use_paid(request)]
        with self._lock:
            ended = self._fatal or (_closed() if self._closing else None)
            if ended is None and new:
                if urgent:
                    self._queue.extendleft(reversed(new))
                else:
                    self._queue.extend(new)
                self._start()
        if ended is not None:
            for request in new:
                request.finish(error=ended)
        self._wake.set()
        return requests

    def prioritize(self, request: BatchRequest) -> None:
        """Submit a queued request next, because a thread waits for it."""
        with self._lock, contextlib.suppress(ValueError):
            self._queue.remove(request)
            self._queue.appendleft(request)

    def cancel(self, requests: Iterable[BatchRequest]) -> None:
        """Cancel requests. Returns at once."""
        cancelled = [request for request in requests if not request.done]
        with self._lock:
            for request in cancelled:
                with contextlib.suppress(ValueError):
                    self._queue.remove(request)
            self._to_cancel += [request for request in cancelled if request.call is not None]
            self._counts["cancelled"] += len(cancelled)
        for request in cancelled:
            request.finish(error=RemoteError("cancelled", "the batch was cancelled"))
        self._wake.set()

    def close(self, *, timeout_s: float = _STOP_S) -> None:
        """Cancel open batches and stop the remote. Bounded, even if the remote does not respond."""
        with self._lock:
            self._closing = True
            thread = self._thread
        self._wake.set()
        if thread is not None:
            thread.join(min(_THREAD_END_S, timeout_s))
            if thread.is_alive():  # the remote builds an image, or its server does not respond: only `stop` ends that
                self._remote.stop()
                thread.join(max(0.0, timeout_s - _THREAD_END_S))

    @property
    def cost(self) -> Cost:
        """Cost of the session so far."""
        cost = self._remote.cost()
        return cost if cost.usd_per_hour is not None else replace(cost, usd_per_hour=self._usd_per_hour)

    @property
    def where(self) -> str:
        """What the session uses there; empty if the remote does not say."""
        return str(getattr(self._remote, "where", ""))

    @property
    def left(self) -> str:
        """What may still run there after `close`, and the command that ends it; empty if nothing can."""
        return left_on(self._remote)

    @property
    def failure(self) -> RemoteError | None:
        """The error that ended the session, if one did."""
        return self._fatal

    @property
    def loss(self) -> RemoteError | None:
        """The first error that left a batch without a result, and that need not have ended the session."""
        return self._lost or self._fatal

    @property
    def progress(self) -> Progress:
        """Current counts of batches, and the cost."""
        cost, activity = self.cost, str(getattr(self._remote, "activity", ""))
        with self._lock:
            sent, queued = len(self._sent), len(self._queue)
            if self._building:
                return Progress(building=sent + queued, cost=cost, activity=activity, **self._counts)
            running = min(sent, self._containers)
            waiting = sent - running + queued
            return Progress(queued=waiting, running=running, cost=cost, activity=activity, **self._counts)

    # The session's thread

    def _start(self) -> None:
        if self._thread is None:
            self._building = True
            self._thread = threading.Thread(target=self._drive, name=f"nvfp4-{self._remote.name}", daemon=True)
            self._thread.start()

    def _drive(self) -> None:
        try:
            while not self._closing and self._fatal is None:
                self._submit()
                self._receive()
                self._cancel_submitted()
                self._check_limits()
        except RemoteError as error:
            if not (self._closing and error.kind == "cancelled"):  # `close` itself made the remote raise this
                self._fatal = error
        except Exception as error:
            problem = f"the remote failed with an unexpected error: {type(error).__name__}: {error}"
            self._fatal = RemoteError("remote", problem)
        finally:
            self._end()

    def _submit(self) -> None:
        """Submit queued batches, and wait for those that an earlier session submitted.

        Those are on the server already, so that no window limits them. Batches are requested at any time, also while
        the remote attaches: one look at the queue decides what becomes of each.
        """
        with self._lock:
            stored = [request for request in self._queue if request.stored is not None]
            for request in stored:
                self._queue.remove(request)
                self._sent[request.batch.id] = request
            room = self._window - len(self._sent)
            ready: list[BatchRequest] = []
            while self._queue and len(ready) < room:
                request = self._queue.popleft()
                if (refusal := self._breaker.refusal(request.remaining, tries=request.tries)) is not None:
                    self._counts["failed"] += 1
                    self._lost = self._lost or refusal
                    request.finish(error=refusal)
                else:
                    self._sent[request.batch.id] = request
                    ready.append(request)
        for request in stored:
            assert request.stored is not None
            assert isinstance(self._remote, ResumableRemote)
            request.call = self._remote.attach(request.remaining, request.stored.id, request.stored.where)
            request.sent_at = time.monotonic()
            self._building = False
        if not ready:
            return
        self._report()
        calls = self._remote.submit([request.remaining for request in ready])
        now = time.monotonic()  # after the call: the first one may have built an image
        with self._lock:
            self._building = False
            for request, call in zip(ready, calls, strict=True):
                request.call, request.sent_at, request.tries = call, now, request.tries + 1
                if request.done:  # cancelled during the submission
                    self._to_cancel.append(request)
        self._report()

    def _receive(self) -> None:
        with self._lock:
            calls = [request.call for request in self._sent.values() if request.call is not None]
            room = len(self._sent) < self._window
        if not calls:
            self._wake.wait(_SLOW_S)
            self._wake.clear()
            return
        for ended in self._remote.collect(calls, timeout_s=_QUICK_S if room else _SLOW_S):
            self._complete(ended)
            with self._lock:
                if self._queue or self._to_cancel or self._closing:
                    break  # a container is free for the next batch now

    def _complete(self, ended: RemoteCall) -> None:
        self._last_result = time.monotonic()
        with self._lock:
            request = self._sent.pop(ended.batch.id, None)
        if request is None:
            return
        try:
            self._settle(request, ended)
        except RemoteError as error:
            request.finish(error=error)
            raise
        except Exception as error:
            # The request is in no list any more, so only this ends the wait for it.
            request.finish(error=RemoteError("remote", f"its result failed: {type(error).__name__}: {error}"))
            raise
        self._report()

    def _settle(self, request: BatchRequest, ended: RemoteCall) -> None:
        """Finish a request that has left the list of submitted ones, or queue it once more."""
        error = ended.error
        stored, request.stored = request.stored, None
        if error is None or error.kind not in _KEPT:
            self._paid.forget([request])
        if stored is not None and error is not None and error.kind not in _KEPT:
            with self._lock:  # it was not this session that lost it
                request.call = None
                self._queue.appendleft(request)
            return
        result, error = received(self._remote, request, ended, stored)
        if result is not None:
            self._paid.returned(request, result, timed=stored is None)
        try:
            self._breaker.ended(request.remaining, error)
        except RemoteError as fatal:
            self._finish_failed(request, fatal)
            raise
        if request.done:
            return
        if result is not None:
            self._count("done" if stored is None else "cached")
            result = result.model_copy(update={"results": request.combined(result.results)})
            self._record_source(result)
            request.batch = with_actual_draws(request.batch, self._remote)
            request.finish(result=result)
            return
        assert error is not None
        if error.kind in _RETRIED and request.tries < 2:
            with self._lock:
                request.call = None
                self._queue.appendleft(request)
            return
        self._fail([request], _with_tries(error, request))

    def _fail(self, requests: Sequence[BatchRequest], error: RemoteError) -> None:
        for request in requests:
            self._finish_failed(request, error)
        if error.kind in _FATAL:
            raise error

    def _finish_failed(self, request: BatchRequest, error: RemoteError) -> None:
        if not request.done:
            self._count("failed")
            self._lost = self._lost or error
        request.finish(error=error)

    def _cancel_submitted(self) -> None:
        with self._lock:
            cancelled, self._to_cancel = self._to_cancel, []
            for request in cancelled:
                self._sent.pop(request.batch.id, None)
        calls = [request.call for request in cancelled if request.call is not None]
        if calls:
            self._remote.cancel(calls)
            self._paid.forget(cancelled)
            self._report()

    def _check_limits(self) -> None:
        """Check cost limit and timeouts, at most once a second."""
        now = time.monotonic()
        if now - self._last_check < min(1.0, self._timeout_s / 4):
            return
        self._last_check = now
        if (error := cost_error(self.cost, self._max_cost)) is not None:
            raise error
        with self._lock:
            # Any result restarts the timeout: a queue that moves is not late, however long its last batch waits.
            late = [
                request
                for request in self._sent.values()
                if request.call is not None and now - max(request.sent_at, self._last_result) > self._timeout_s
            ]
        if late:
            self._end_late(late)
        self._report()

    def _end_late(self, late: Sequence[BatchRequest]) -> None:
        """Cancel batches without a result; those that an earlier session sent are sent anew."""
        fresh = [request for request in late if request.stored is None]
        error = timeout_error(self._remote, self._timeout_s) if fresh else None
        calls = [request.call for request in late if request.call is not None]
        with self._lock:
            for request in late:
                self._sent.pop(request.batch.id, None)
                if request.stored is not None:
                    request.stored = request.call = None
                    self._queue.appendleft(request)
        try:
            self._paid.forget(late)
            self._remote.cancel(calls)
        finally:
            if error is not None:
                self._fail(fresh, error)

    def _collect_last(self) -> None:
        """Store the results that arrived while the session ended; they were paid for."""
        with self._lock:
            calls = [request.call for request in self._sent.values() if request.call is not None]
        if calls:
            for ended in self._remote.collect(calls, timeout_s=0.0):
                if ended.result is not None:
                    self._complete(ended)

    def _end(self) -> None:
        with contextlib.suppress(Exception):  # the remote may be broken
            self._collect_last()
        with self._lock:
            self._closing = True
            open_requests = [*self._sent.values(), *self._queue]
            submitted = [*self._sent.values(), *self._to_cancel]
            calls = [request.call for request in submitted if request.call is not None]
            self._sent.clear()
            self._queue.clear()
            self._building = False
        error = self._fatal or _closed()
        for request in open_requests:
            if not request.done:
                self._count("cancelled" if self._fatal is None else "failed")
            request.finish(error=error)
        try:
            if calls:
                self._remote.cancel(calls)
        finally:
            self._remote.stop()
            self._paid.close()
        with contextlib.suppress(Exception):  # nobody is left to report it to
            self._report()

    def _use_paid(self, request: BatchRequest) -> bool:
        """Take what earlier sessions paid for; return whether it completes the request."""
        result = self._paid.use(request)
        if result is not None:
            self._count("cached")
            self._record_source(result)
            request.finish(result=result)
        return result is not None

    def _record_source(self, result: BatchResult) -> None:
        with self._lock:
            self.places[result.place.container] = result.place
            self.devices.update((job.device, None) for job in result.results if job.device is not None)

    def _count(self, outcome: str) -> None:
        with self._lock:
            self._counts[outcome] += 1

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.progress)


def _with_tries(error: RemoteError, request: BatchRequest) -> RemoteError:
    """Return the error with the number of submissions, if there was more than one."""
    if request.tries < 2:
        return error
    return RemoteError(error.kind, f"{error.problem} (submitted {request.tries} times)", error.remedy)


def _closed() -> RemoteError:
    return RemoteError("cancelled", "the session on the remote has ended", "run again; received results are cached")
