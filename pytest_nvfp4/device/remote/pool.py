"""Worker pool for remotes whose interface is a blocking call (a connection to a machine, a command)."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from pytest_nvfp4.device.remote.base import (
    Batch,
    BatchResult,
    Cost,
    ErrorKind,
    RemoteCall,
    RemoteError,
    RemoteOptions,
)
from pytest_nvfp4.text import clip

_MOST_CHARACTERS = 2000
"""Characters of the text of an unexpected error that are shown."""
_PERSISTENT: frozenset[ErrorKind] = frozenset({"setup", "login", "version", "network"})
"""Errors at the start of a worker that every further batch would repeat."""


class PoolTask:
    """A batch that a worker runs.

    Attributes:
        batch: The batch.
        worker: Index of the worker.
        stopped: Set when the batch is cancelled.
        on_stop: Called when the running batch is cancelled; set by the function that runs it. Must not raise or block.
    """

    def __init__(self, batch: Batch, worker: int) -> None:
        self.batch = batch
        self.worker = worker
        self.stopped = threading.Event()
        self.on_stop: Callable[[], None] | None = None

    def stop(self) -> None:
        """Cancel the batch."""
        self.stopped.set()
        if self.on_stop is not None:
            self.on_stop()


class WorkerStartError(Exception):
    """Failure to start a worker, because of ``error``, which other workers would repeat."""

    def __init__(self, error: RemoteError) -> None:
        super().__init__(str(error))
        self.error = error


class WorkerPool:
    """Runs batches in daemon threads, which start with the first batch.

    Args:
        size: Number of batches that run at once.
        run: Runs one batch in a worker's thread. Raises RemoteError; WorkerStartError ends every queued batch.
    """

    def __init__(self, size: int, run: Callable[[PoolTask], BatchResult]) -> None:
        self._size = size
        self._run = run
        self._changed = threading.Condition()
        self._queue: deque[RemoteCall] = deque()
        self._running: dict[str, PoolTask] = {}
        self._started: dict[str, float] = {}
        self._open: set[str] = set()
        self._completed: dict[str, RemoteCall] = {}
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._broken: RemoteError | None = None
        self._busy_s = 0.0

    @property
    def busy_s(self) -> float:
        """Total seconds of all batches, including those that still run."""
        with self._changed:
            now = time.monotonic()
            return self._busy_s + sum(now - started for started in self._started.values())

    @property
    def counts(self) -> tuple[int, int]:
        """Number of queued batches and of running batches."""
        with self._changed:
            return len(self._queue), len(self._running)

    def submit(self, batches: Sequence[Batch]) -> list[RemoteCall]:
        """Queue batches. Raises RemoteError if no worker can start, or after `close`."""
        with self._changed:
            if self._broken is not None:
                raise self._broken
            if self._closed:
                raise RemoteError("cancelled", "the remote was stopped")
            calls = [RemoteCall(batch, uuid.uuid4().hex) for batch in batches]
            self._open.update(call.id for call in calls)
            self._queue.extend(calls)
            while len(self._threads) < min(self._size, len(self._queue) + len(self._running)):
                number = len(self._threads)
                thread = threading.Thread(target=self._work, args=(number,), name=f"nvfp4-worker-{number}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()
        return calls

    def collect(self, calls: Sequence[RemoteCall], *, timeout_s: float) -> Iterator[RemoteCall]:
        """Yield the ends of batches in the order of arrival, each once; see ``Remote.collect``."""
        until = time.monotonic() + timeout_s
        left = {call.id for call in calls}
        while left:
            with self._changed:
                identity = next((identity for identity in self._completed if identity in left), None)
                if identity is None:
                    left &= self._open
                    remaining = until - time.monotonic()
                    if not left or remaining <= 0:
                        return
                    self._changed.wait(min(remaining, 1.0))
                    continue
                ended = self._completed.pop(identity)
                self._open.discard(identity)
            left.discard(identity)
            yield ended

    def cancel(self, calls: Sequence[RemoteCall]) -> None:
        """Remove batches from the queue, and stop those that run."""
        self._cancel({call.id for call in calls})

    def _cancel(self, identities: set[str]) -> None:
        with self._changed:
            for call in self._queue:
                if call.id in identities:
                    self._end(call, error=RemoteError("cancelled", "the batch was cancelled before it ran"))
            self._queue = deque(call for call in self._queue if call.id not in identities)
            stopping = [task for identity, task in self._running.items() if identity in identities]
        for task in stopping:
            with contextlib.suppress(Exception):  # a task that cannot be stopped must not keep the others running
                task.stop()

    def close(self, *, wait_s: float) -> None:
        """Cancel everything and end the threads; wait for them at most ``wait_s`` seconds."""
        with self._changed:
            self._closed = True
            identities = set(self._open)
        self._cancel(identities)
        with self._changed:
            self._changed.notify_all()
        until = time.monotonic() + wait_s
        for thread in self._threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))

    def _end(self, call: RemoteCall, *, result: BatchResult | None = None, error: RemoteError | None = None) -> None:
        self._completed[call.id] = call.ended(result, error)
        self._changed.notify_all()

    def _work(self, number: int) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait(1.0)
                if self._closed:
                    return
                call = self._queue.popleft()
                task = self._running[call.id] = PoolTask(call.batch, number)
                self._started[call.id] = time.monotonic()
            result, error, broken = None, None, None
            try:
                result = self._run(task)
            except WorkerStartError as start_error:
                error = start_error.error
                broken = error if error.kind in _PERSISTENT else None
            except RemoteError as remote_error:
                error = remote_error
            except BaseException as unexpected:  # a thread that ends here would leave the batch unfinished
                error = RemoteError("remote", clip(f"{type(unexpected).__name__}: {unexpected}", _MOST_CHARACTERS))
            with self._changed:
                del self._running[call.id]
                self._busy_s += time.monotonic() - self._started.pop(call.id)
                if task.stopped.is_set() and result is None:
                    error = RemoteError("cancelled", "the batch was cancelled")
                self._end(call, result=result, error=error)
                if broken is not None:
                    self._broken = broken
                    for other in self._queue:
                        self._end(other, error=broken)
                    self._queue.clear()


class PooledRemote(ABC):
    """Base of the remotes that run batches in a worker pool; a subclass runs one batch.

    Args:
        options: Options of the remote.
        size: Number of workers.

    Raises:
        RemoteError: An option is not supported.
    """

    name: ClassVar[str]
    simulates: ClassVar[bool] = False
    """Whether its machines can simulate (``RemoteOptions.simulates``)."""

    def __init__(self, options: RemoteOptions, *, size: int) -> None:
        if options.deployed_app:
            raise RemoteError("setup", f"{self.name} has no deployed apps", "omit --nvfp4-deployed-app")
        if options.simulates and not self.simulates:
            problem = f"{self.name} runs nothing in the simulator"
            raise RemoteError("setup", problem, "use modal or ssh:HOST, or omit --nvfp4-device=sim")
        if options.cpus is not None or options.memory_gib is not None:
            problem = f"{self.name} does not choose the cores and the memory of its machines"
            raise RemoteError("setup", problem, "omit --nvfp4-remote-cpus and --nvfp4-remote-memory")
        self._options = options
        self._pool = WorkerPool(size, self._run_batch)
        self._guard = threading.Lock()
        self._programs_s = 0.0
        """Seconds that programs ran, in addition to the batches of the pool."""

    @abstractmethod
    def _run_batch(self, task: PoolTask) -> BatchResult:
        """Run a batch in a worker's thread. Raises RemoteError and WorkerStartError."""

    def submit(self, batches: Sequence[Batch]) -> list[RemoteCall]:
        """Queue batches; see `Remote`."""
        return self._pool.submit(batches)

    def collect(self, calls: Sequence[RemoteCall], *, timeout_s: float) -> Iterator[RemoteCall]:
        """Yield the ends of batches; see `Remote`."""
        return self._pool.collect(calls, timeout_s=timeout_s)

    def cancel(self, calls: Sequence[RemoteCall]) -> None:
        """Stop batches; see `Remote`."""
        self._pool.cancel(calls)

    def _cost(self, seconds: float, usd_per_hour: float | None) -> Cost:
        """Return the cost of some seconds, at the price of the target's setting or else of the option."""
        if usd_per_hour is not None:
            return Cost(seconds, usd_per_hour, "the price is from ?price=")
        if self._options.gpu_price is not None:
            return Cost(seconds, self._options.gpu_price, "the price is the given one")
        return Cost(seconds, None, f"the price of {self.name} is unknown here (?price=, --nvfp4-gpu-price)")
