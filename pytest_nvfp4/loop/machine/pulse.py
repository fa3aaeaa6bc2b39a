"""The pulse of a running loop: heartbeats, and the requests and times at which what runs now has to end."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from pytest_nvfp4.isolation.door.error import DoorError
from pytest_nvfp4.loop.clock import Clock
from pytest_nvfp4.loop.machine.budget import Budget
from pytest_nvfp4.loop.state import Control, Heartbeat, Phase, StateFolder, read_model, write_model

Cause = Literal["", "request", "time", "error"]


@dataclass(slots=True)
class Activity:
    """What the loop does now; the state machine changes it, and the pulse shows it."""

    phase: Phase = "INIT"
    iteration: int = 0
    text: str = ""
    candidates: set[int] = field(default_factory=set)


class Pulse:
    """Writes a heartbeat every few seconds, in a thread of its own, and ends what runs when it has to end.

    Args:
        folder: Directory of state.
        budget: The account; its wall clock is a limit.
        clock: Clocks.
        until_s: Seconds from now at which the loop ends; None for no such time.
        interval_s: Seconds between two heartbeats.

    Attributes:
        activity: What the heartbeat shows.
        halt: Set when what runs has to end.
        cause: Why it is set.
        reason: Why, for people.
    """

    def __init__(
        self,
        folder: StateFolder,
        budget: Budget,
        clock: Clock,
        *,
        until_s: float | None = None,
        interval_s: float = 2.0,
    ) -> None:
        self._folder, self._budget, self._clock, self._interval_s = folder, budget, clock, interval_s
        self._end = None if until_s is None else clock.passing() + until_s
        self._ended = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="nvfp4-loop-pulse", daemon=True)
        self.activity = Activity()
        self.halt = threading.Event()
        self.cause: Cause = ""
        self.reason = ""

    def start(self) -> None:
        """Begin. Raises OSError if the first heartbeat cannot be written."""
        self.beat()
        self._thread.start()

    def stop(self) -> None:
        """End, after a last heartbeat if it can be written."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        with contextlib.suppress(OSError):
            self.beat()

    def beat(self) -> None:
        """Write a heartbeat. Raises OSError."""
        with self._writing:
            now = self.activity
            write_model(
                self._folder.heartbeat,
                Heartbeat(
                    pid=os.getpid(),
                    host=socket.gethostname(),
                    updated_at=self._clock.stamp(),
                    phase=now.phase,
                    iteration=now.iteration,
                    activity=now.text[:1000],
                    candidates=tuple(sorted(now.candidates)),
                    spent=self._budget.total(),
                ),
            )

    def look(self) -> None:
        """Set `halt` if a request or a time demands it."""
        if self.halt.is_set():
            return
        if (control := self.control()).stop == "now":
            self._end_all(
                "request", "stopped by `nvfp4 loop stop --now`" + (f": {control.reason}" * bool(control.reason))
            )
        elif reason := self.out_of_time():
            self._end_all("time", reason)

    def control(self) -> Control:
        """Return the requests of other processes."""
        with contextlib.suppress(OSError, DoorError):
            return read_model(self._folder.control, Control) or Control()
        return Control()

    def out_of_time(self) -> str:
        """Return why no time is left; empty if some is."""
        if self._end is not None and self._clock.passing() >= self._end:
            return "the time of --until is reached"
        if self._budget.left_s() <= 0:
            return self._budget.reached()
        return ""

    def left_s(self) -> float:
        """Return the seconds until the loop has to end."""
        until = self._budget.left_s()
        return until if self._end is None else min(until, self._end - self._clock.passing())

    def doing(self, text: str, *, start: Iterable[int] = (), end: Iterable[int] = ()) -> None:
        """Change what the next heartbeat shows."""
        self.activity.text = text
        self.activity.candidates = (self.activity.candidates | set(start)) - set(end)

    def _end_all(self, cause: Cause, reason: str) -> None:
        self.cause, self.reason = cause, reason
        self.halt.set()

    def _work(self) -> None:
        while not self._ended.wait(self._interval_s):
            try:
                self.look()
                self.beat()
            except Exception as error:  # a thread that dies would leave a loop that cannot be stopped
                self._end_all("error", f"the heartbeat cannot be written: {error}")
                return
