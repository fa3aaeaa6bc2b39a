"""What containers of Modal cost, as far as this side can know."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pytest_nvfp4.device.remote.base import Cost, Place
from pytest_nvfp4.device.remote.modal.settings import SCALEDOWN_S

USD_PER_HOUR = {"B200": 6.25, "H200": 4.54, "H100": 3.95}
"""About what Modal asks for a GPU-hour, per its public price list (2025); CPU and memory come on top."""
_NOTE = "estimated from the time that containers were held and a list price of the GPU; modal.com/settings has the bill"


def price(gpu: str) -> float | None:
    """US dollars an hour for a GPU by Modal's name for it, such as ``B200`` or ``B200:2``; None where not known."""
    name, _, count = gpu.upper().partition(":")
    each = USD_PER_HOUR.get(name.removesuffix("!"))
    return None if each is None else each * (int(count) if count.isdigit() else 1)


@dataclass(slots=True)
class _Held:
    """A container from its start to the last that was heard of it."""

    start: float
    last: float


class Meter:
    """Counts the seconds that containers were held.

    A container counts from its start to its last answer. A call that ended without word of where it ran (cancelled,
    lost) counts as if a container had been at it. As long as calls are open, those containers that could be working
    count up to now, the time spent waiting for a container included, unless it is known that none is up: the estimate
    may be too high, so that a limit on it is never passed unnoticed, but never more than all containers could cost.

    Args:
        gpu: The GPU of every container.
        containers: How many there may be at once.
        clock: Seconds, from anywhere.
    """

    def __init__(self, gpu: str, containers: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._price = price(gpu)
        self._containers = containers
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._open: dict[str, float] = {}
        self._unplaced = 0.0
        self._first: float | None = None
        self._until = 0.0
        """When the first call was sent, and when the last one ended."""

    def sent(self, call: str) -> None:
        """A call went out."""
        with self._lock:
            now = self._clock()
            self._first = now if self._first is None else self._first
            self._open[call] = now

    def ended(self, call: str, *, place: Place | None = None, busy_s: float = 0.0) -> None:
        """A call came back, with word of where it ran or without."""
        with self._lock:
            now = self._until = self._clock()
            if place is None:
                self._charge(call, now)
            sent = self._open.pop(call, None)
            if place is None:
                return
            start = now - busy_s - place.startup_s
            held = self._held.setdefault(place.container, _Held(start if sent is None else max(start, sent), now))
            held.last = now

    def none_up(self) -> None:
        """No container is up: what is open has cost nothing yet."""
        with self._lock:
            now = self._clock()
            for call in self._open:
                self._open[call] = now

    def cost(self) -> Cost:
        """The cost up to now."""
        with self._lock:
            now = self._clock()
            seconds = self._unplaced + sum(held.last - held.start for held in self._held.values())
            seconds += sum(now - since for _, since, _ in self._working())
            if self._first is not None:
                seconds = min(seconds, self._containers * ((now if self._open else self._until) - self._first))
        return Cost(seconds=seconds, usd_per_hour=self._price, note=_NOTE)

    def _working(self) -> list[tuple[str, float, _Held | None]]:
        """Open calls that a container may be at, each with since when, and on which container that is known.

        The oldest are taken to run on containers that were not heard of yet, the others on those that answered last.
        """
        working = sorted(self._open.items(), key=lambda item: item[1])[: self._containers]
        known = sorted(self._held.values(), key=lambda held: held.last)[-self._containers :]
        unheard = self._containers - len(known)
        found = []
        for index, (call, sent) in enumerate(working):
            held = known[index - unheard] if index >= unheard else None
            found.append((call, sent if held is None else max(sent, held.last), held))
        return found

    def _charge(self, call: str, now: float) -> None:
        """A call ended and nobody says where it ran."""
        for name, since, held in self._working():
            if name != call:
                continue
            if held is not None and since - held.last <= SCALEDOWN_S:  # it was up all the time
                held.last = now
            else:
                self._unplaced += now - since
