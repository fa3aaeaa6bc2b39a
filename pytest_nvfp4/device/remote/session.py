"""One session on a remote: what is wanted goes out a few at a time, and every wait ends.

A thread drives the remote. It hands over twice as many batches as there are containers, so that none waits for the
network, and keeps the rest here, where cancelling them is free. Answers are kept on disk before anyone is told.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from pytest_nvfp4.device.remote.base import (
    Answer,
    Arrival,
    Batch,
    Cost,
    Place,
    Remote,
    RemoteError,
    Trouble,
    dollars,
)
from pytest_nvfp4.device.remote.kept import KeptAnswers, with_draws
from pytest_nvfp4.device.remote.progress import Progress
from pytest_nvfp4.device.remote.ticket import Ticket
from pytest_nvfp4.device.result import DeviceInfo

_FATAL: frozenset[Trouble] = frozenset({"setup", "login", "network", "version", "image", "capacity", "cost"})
"""Troubles that every further batch would meet too: the session ends with the first one."""
_AGAIN: frozenset[Trouble] = frozenset({"lost"})
"""Troubles after which a batch is sent once more, and only once."""
_QUICK_S, _SLOW_S = 0.004, 0.1
_STOP_S = 30.0
_OWN_S = 1.5
"""Seconds in which the session's thread may end by itself; after them it is taken to wait for the remote."""


class RemoteSession:
    """Sends batches to a remote and gives their answers.

    Args:
        remote: The remote.
        containers: Containers that it may use at once.
        timeout_s: Seconds without any answer after which what was sent is given up.
        max_cost: US dollars after which the session ends; None for no limit.
        kept: Where answers are kept; None to keep none.
        reuse: Take kept answers instead of sending.
        on_progress: Is told of every change, from the session's thread.
    """

    def __init__(
        self,
        remote: Remote,
        *,
        containers: int = 1,
        timeout_s: float = 900.0,
        max_cost: float | None = None,
        kept: KeptAnswers | None = None,
        reuse: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._remote = remote
        self._containers = containers
        self._window = containers if max_cost is not None else 2 * containers
        self._timeout_s = timeout_s
        self._max_cost = max_cost
        self._kept = kept
        self._reuse = reuse
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._waiting: deque[Ticket] = deque()
        self._sent: dict[str, Ticket] = {}
        self._unwanted: list[Ticket] = []
        self.devices: dict[DeviceInfo, None] = {}
        """Devices that answered, in their order: whatever a remote is called, its results say what they are from."""
        self.places: dict[str, Place] = {}
        """Where jobs ran, by container."""
        self._counts = {"done": 0, "kept": 0, "failed": 0, "cancelled": 0}
        self._building = False
        self._last_arrival = 0.0
        self._last_look = 0.0
        self._fatal: RemoteError | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    def add(self, batches: Iterable[Batch], *, urgent: bool = False) -> list[Ticket]:
        """Ask for batches; urgent ones go out before those that wait. Returns at once."""
        tickets = [Ticket(batch) for batch in batches]
        fresh = []
        for ticket in tickets:
            if not self._recalled(ticket):
                fresh.append(ticket)
        with self._lock:
            ended = self._fatal or (_closed() if self._closing else None)
            if ended is None and fresh:
                if urgent:
                    self._waiting.extendleft(reversed(fresh))
                else:
                    self._waiting.extend(fresh)
                self._start()
        if ended is not None:
            for ticket in fresh:
                ticket.finish(error=ended)
        self._wake.set()
        return tickets

    def hurry(self, ticket: Ticket) -> None:
        """Somebody waits for this one now: it goes out next."""
        with self._lock, contextlib.suppress(ValueError):
            self._waiting.remove(ticket)
            self._waiting.appendleft(ticket)

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Nobody needs these any more. Returns at once."""
        unwanted = [ticket for ticket in tickets if not ticket.done]
        with self._lock:
            for ticket in unwanted:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(ticket)
            self._unwanted += [ticket for ticket in unwanted if ticket.handle is not None]
            self._counts["cancelled"] += len(unwanted)
        for ticket in unwanted:
            ticket.finish(error=_cancelled())
        self._wake.set()

    def close(self, *, timeout_s: float = _STOP_S) -> None:
        """Cancel what is open and give everything back; bounded, also where the remote does not answer."""
        with self._lock:
            self._closing = True
            thread = self._thread
        self._wake.set()
        if thread is not None:
            thread.join(min(_OWN_S, timeout_s))
            if thread.is_alive():  # an image is being built, or a server does not answer: the remote alone can end that
                self._remote.stop()
                thread.join(max(0.0, timeout_s - _OWN_S))

    @property
    def cost(self) -> Cost:
        """What the session has cost so far."""
        return self._remote.cost()

    @property
    def trouble(self) -> RemoteError | None:
        """What ended the session, if something did."""
        return self._fatal

    @property
    def progress(self) -> Progress:
        """How far it is."""
        cost = self.cost
        with self._lock:
            sent, waiting = len(self._sent), len(self._waiting)
            building = sent + waiting if self._building else 0
            running = 0 if self._building else min(sent, self._containers)
            queued = 0 if self._building else sent - running + waiting
            return Progress(building=building, queued=queued, running=running, cost=cost, **self._counts)

    # the thread

    def _start(self) -> None:
        if self._thread is None:
            self._building = True
            self._thread = threading.Thread(target=self._drive, name=f"nvfp4-{self._remote.name}", daemon=True)
            self._thread.start()

    def _drive(self) -> None:
        try:
            while not self._closing and self._fatal is None:
                self._forward()
                self._receive()
                self._drop_unwanted()
                self._look()
        except RemoteError as error:
            if not (self._closing and error.trouble == "cancelled"):  # it ended as it was told to
                self._fatal = error
        except Exception as error:
            self._fatal = RemoteError("far", f"the remote failed in an unforeseen way: {type(error).__name__}: {error}")
        finally:
            self._end()

    def _forward(self) -> None:
        with self._lock:
            room = self._window - len(self._sent)
            ready = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
            for ticket in ready:
                self._sent[ticket.batch.id] = ticket
        if not ready:
            return
        self._tell()
        handles = self._remote.submit([ticket.asked for ticket in ready])
        now = time.monotonic()  # the first time, an image may have been built meanwhile
        with self._lock:
            self._building = False
            for ticket, handle in zip(ready, handles, strict=True):
                ticket.handle, ticket.sent_at, ticket.tries = handle, now, ticket.tries + 1
                if ticket.done:  # cancelled while it went out
                    self._unwanted.append(ticket)
        self._tell()

    def _receive(self) -> None:
        with self._lock:
            handles = [ticket.handle for ticket in self._sent.values() if ticket.handle is not None]
            room = len(self._sent) < self._window
        if not handles:
            self._wake.wait(_SLOW_S)
            self._wake.clear()
            return
        for arrival in self._remote.collect(handles, timeout_s=_QUICK_S if room else _SLOW_S):
            self._arrived(arrival)
            with self._lock:
                if self._waiting or self._unwanted or self._closing:
                    break  # there is room for another one now

    def _arrived(self, arrival: Arrival) -> None:
        self._last_arrival = time.monotonic()
        with self._lock:
            ticket = self._sent.pop(arrival.handle.batch.id, None)
        if ticket is None:
            return
        error = arrival.error
        answer = arrival.answer
        if answer is not None and (answer.batch != ticket.batch.id or len(answer.results) != len(ticket.asked.jobs)):
            answer, error = None, RemoteError("lost", "an answer came that belongs to another batch", "run it again")
        if answer is not None and self._kept is not None:
            self._kept.add(ticket.asked, answer)  # paid for, also where nobody waits for it any more
        if ticket.done:
            return
        if answer is not None:
            self._count("done")
            answer = answer.model_copy(update={"results": ticket.whole(answer.results)})
            self._note(answer)
            ticket.batch = _as_run(ticket.batch, self._remote)
            ticket.finish(answer=answer)
        else:
            assert error is not None
            if error.trouble in _AGAIN and ticket.tries < 2:
                with self._lock:
                    ticket.handle = None
                    self._waiting.appendleft(ticket)
                return
            if ticket.tries > 1:
                error = RemoteError(error.trouble, f"{error.what} (it was sent {ticket.tries} times)", error.do)
            self._count("failed")
            ticket.finish(error=error)
            if error.trouble in _FATAL:
                raise error
        self._tell()

    def _drop_unwanted(self) -> None:
        with self._lock:
            unwanted, self._unwanted = self._unwanted, []
            for ticket in unwanted:
                self._sent.pop(ticket.batch.id, None)
        handles = [ticket.handle for ticket in unwanted if ticket.handle is not None]
        if handles:
            self._remote.cancel(handles)
            self._tell()

    def _look(self) -> None:
        """Once a second: is it too expensive, is anything overdue?"""
        now = time.monotonic()
        if now - self._last_look < min(1.0, self._timeout_s / 4):
            return
        self._last_look = now
        usd = self.cost.usd
        if self._max_cost is not None and usd is not None and usd >= self._max_cost:
            raise RemoteError(
                "cost",
                f"the session has cost about {dollars(usd)}, and --nvfp4-remote-max-cost is {dollars(self._max_cost)}: "
                "what was open has been cancelled",
                "raise the limit and run again with --nvfp4-resume; what has been answered is kept",
            )
        with self._lock:
            late = [
                ticket
                for ticket in self._sent.values()
                if ticket.handle is not None and now - max(ticket.sent_at, self._last_arrival) > self._timeout_s
            ]
        if late:
            self._overdue(late)
        self._tell()

    def _overdue(self, late: Sequence[Ticket]) -> None:
        error = self._why_late()
        with self._lock:
            for ticket in late:
                self._sent.pop(ticket.batch.id, None)
        self._remote.cancel([ticket.handle for ticket in late if ticket.handle is not None])
        for ticket in late:
            self._count("failed")
            ticket.finish(error=error)
        if error.trouble in _FATAL:
            raise error

    def _why_late(self) -> RemoteError:
        more = f"no answer came within {self._timeout_s:.0f} s (--nvfp4-remote-timeout)"
        try:
            status = self._remote.status()
        except RemoteError as error:
            return RemoteError(error.trouble, f"{more}: {error.what}", error.do)
        if not status.reachable:
            return RemoteError("network", f"{more}, and {status.words}", "look at the connection and run again")
        if status.containers == 0:
            return RemoteError(
                "capacity",
                f"{more}: no container was started ({status.words})",
                "the GPU may be out of stock: try again later, allow more time, or another --nvfp4-gpu",
            )
        return RemoteError(
            "timeout",
            f"{more} although containers are up ({status.words})",
            "allow more time, or look at the kernel: its own limit is --nvfp4-device-timeout",
        )

    def _take_last(self) -> None:
        """What has come while the session was about to end is kept, too."""
        with self._lock:
            handles = [ticket.handle for ticket in self._sent.values() if ticket.handle is not None]
        if handles:
            for arrival in self._remote.collect(handles, timeout_s=0.0):
                if arrival.answer is not None:
                    self._arrived(arrival)

    def _end(self) -> None:
        with contextlib.suppress(Exception):  # of a remote that has gone wrong
            self._take_last()
        with self._lock:
            self._closing = True
            open_ = [*self._sent.values(), *self._waiting]
            handles = [ticket.handle for ticket in self._sent.values() if ticket.handle is not None]
            handles += [ticket.handle for ticket in self._unwanted if ticket.handle is not None]
            self._sent.clear()
            self._waiting.clear()
            self._building = False
        error = self._fatal or _closed()
        for ticket in open_:
            if not ticket.done:
                self._count("cancelled" if self._fatal is None else "failed")
            ticket.finish(error=error)
        if handles:
            self._remote.cancel(handles)
        self._remote.stop()
        self._tell()

    def _recalled(self, ticket: Ticket) -> bool:
        known = self._kept.get(ticket.batch) if self._kept is not None and self._reuse else {}
        if known:
            ticket.recall(known)
        if len(known) < len(ticket.batch.jobs):
            return False
        answer = Answer(batch=ticket.batch.id, results=ticket.whole(()), place=known[len(known) - 1].place)
        self._count("kept")
        self._note(answer)
        ticket.finish(answer=answer)
        return True

    def _note(self, answer: Answer) -> None:
        with self._lock:
            self.places[answer.place.container] = answer.place
            self.devices.update((result.device, None) for result in answer.results if result.device is not None)

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def _tell(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.progress)


def _as_run(batch: Batch, remote: Remote) -> Batch:
    """The batch with the draws that were used, where the remote knows of others (a broker, see there)."""
    draws = getattr(remote, "draws", {}).get(batch.id)
    if draws is None:
        return batch
    jobs = [with_draws(job, one) for job, one in zip(batch.jobs, draws, strict=True)]
    return batch.model_copy(update={"jobs": tuple(jobs)})


def _closed() -> RemoteError:
    return RemoteError("cancelled", "the session on the remote has ended", "run again; what was answered is kept")


def _cancelled() -> RemoteError:
    return RemoteError("cancelled", "the job was cancelled: nobody needed it any more")
