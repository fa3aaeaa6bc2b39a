"""Batches in threads: a queue, a number of lanes that work it off, and their ends as they come.

What remotes have in common whose own interface is a blocking call (a line to a machine, a command that is run).
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from pytest_nvfp4.device.remote.base import Answer, Arrival, Batch, Handle, RemoteError, Trouble

_FOR_ALL: frozenset[Trouble] = frozenset({"setup", "login", "version", "network"})
"""Trouble that the next batch would meet too."""


class Work:
    """A batch that a lane works at.

    Attributes:
        batch: The batch.
        lane: Number of the lane.
        stopped: Set when nobody needs it any more.
        on_stop: Called when that happens while it runs; set by whoever runs it. Must not raise or block.
    """

    def __init__(self, batch: Batch, lane: int) -> None:
        self.batch = batch
        self.lane = lane
        self.stopped = threading.Event()
        self.on_stop: Callable[[], None] | None = None

    def stop(self) -> None:
        """Nobody needs it any more."""
        self.stopped.set()
        if self.on_stop is not None:
            self.on_stop()


class OpeningError(Exception):
    """A lane could not begin at all, because of ``error``: neither could another."""

    def __init__(self, error: RemoteError) -> None:
        super().__init__(str(error))
        self.error = error


class Lanes:
    """Works off batches in daemon threads, which start with the first batch.

    Args:
        count: How many batches run at once.
        work: Does one, in a lane's thread. Raises RemoteError; OpeningError ends every batch that waits.
    """

    def __init__(self, count: int, work: Callable[[Work], Answer]) -> None:
        self._count = count
        self._work = work
        self._changed = threading.Condition()
        self._waiting: deque[tuple[str, Batch]] = deque()
        self._running: dict[str, Work] = {}
        self._handles: dict[str, Handle] = {}
        self._ended: dict[str, Arrival] = {}
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._broken: RemoteError | None = None
        self._busy_s = 0.0
        self._began: dict[str, float] = {}

    @property
    def busy_s(self) -> float:
        """Seconds that lanes were at work, those that still run included."""
        with self._changed:
            now = time.monotonic()
            return self._busy_s + sum(now - began for began in self._began.values())

    @property
    def counts(self) -> tuple[int, int]:
        """Batches that wait, and that run."""
        with self._changed:
            return len(self._waiting), len(self._running)

    def submit(self, batches: Sequence[Batch]) -> list[Handle]:
        """Queue batches. Raises RemoteError if no lane could begin, or after ``close``."""
        with self._changed:
            if self._broken is not None:
                raise self._broken
            if self._closed:
                raise RemoteError("cancelled", "this remote was stopped")
            handles = []
            for batch in batches:
                handle = Handle(batch, uuid.uuid4().hex)
                self._handles[handle.call] = handle
                self._waiting.append((handle.call, batch))
                handles.append(handle)
            while len(self._threads) < min(self._count, len(self._waiting) + len(self._running)):
                thread = threading.Thread(
                    target=self._lane, args=(len(self._threads),), name=f"nvfp4-lane-{len(self._threads)}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()
        return handles

    def collect(self, handles: Sequence[Handle], *, timeout_s: float) -> Iterator[Arrival]:
        """The ends of batches as they come; each is given once. Stops when the time has passed.

        Whoever takes only some of them gets the others the next time.
        """
        until = time.monotonic() + timeout_s
        left = {handle.call for handle in handles}
        while left:
            with self._changed:
                call = next((call for call in self._ended if call in left), None)  # in the order in which they ended
                if call is None:
                    left = {other for other in left if other in self._handles}
                    remaining = until - time.monotonic()
                    if not left or remaining <= 0:
                        return
                    self._changed.wait(min(remaining, 1.0))
                    continue
                arrival = self._ended.pop(call)
                self._handles.pop(call, None)
            left.discard(call)
            yield arrival

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Take batches off the queue, and stop those that run."""
        stopping = []
        with self._changed:
            calls = {handle.call for handle in handles}
            for call in [call for call, _ in self._waiting if call in calls]:
                self._end(call, error=RemoteError("cancelled", "it was cancelled before it ran"))
            self._waiting = deque((call, batch) for call, batch in self._waiting if call not in calls)
            stopping = [work for call, work in self._running.items() if call in calls]
        for work in stopping:
            work.stop()

    def close(self, *, wait_s: float) -> None:
        """Cancel everything and end the threads, waiting for them a while."""
        with self._changed:
            self._closed = True
            handles = list(self._handles.values())
        self.cancel(handles)
        with self._changed:
            self._changed.notify_all()
        until = time.monotonic() + wait_s
        for thread in self._threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))

    def _end(self, call: str, *, answer: Answer | None = None, error: RemoteError | None = None) -> None:
        self._ended[call] = Arrival(self._handles[call], answer, error)
        self._changed.notify_all()

    def _lane(self, number: int) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait(1.0)
                if self._closed:
                    return
                call, batch = self._waiting.popleft()
                work = self._running[call] = Work(batch, number)
                self._began[call] = time.monotonic()
            answer, error, broken = None, None, None
            try:
                answer = self._work(work)
            except OpeningError as opening:
                error = opening.error
                broken = error if error.trouble in _FOR_ALL else None
            except RemoteError as known:
                error = known
            except Exception as unknown:
                error = RemoteError("far", f"{type(unknown).__name__}: {unknown}")
            with self._changed:
                del self._running[call]
                self._busy_s += time.monotonic() - self._began.pop(call)
                if work.stopped.is_set() and answer is None:
                    error = RemoteError("cancelled", "it was cancelled")
                self._end(call, answer=answer, error=error)
                if broken is not None:
                    self._broken = broken
                    for other, _ in self._waiting:
                        self._end(other, error=broken)
                    self._waiting.clear()
