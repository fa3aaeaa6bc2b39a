"""What containers of Modal cost, as far as this side can know."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from pytest_nvfp4.device.remote.base import Cost, Place

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

    A container counts from its start to its last answer. As long as calls are open, those containers that could be
    working count up to now, the time spent waiting for a container included: the estimate may be too high, so that a
    limit on it is never passed unnoticed.

    Args:
        gpu: The GPU of every container.
        containers: How many there may be at once.
    """

    def __init__(self, gpu: str, containers: int) -> None:
        self._price = price(gpu)
        self._containers = containers
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._open: dict[str, float] = {}

    def sent(self, call: str) -> None:
        """A call went out."""
        with self._lock:
            self._open[call] = time.monotonic()

    def ended(self, call: str, *, place: Place | None = None, busy_s: float = 0.0) -> None:
        """A call came back, with word of where it ran or without."""
        now = time.monotonic()
        with self._lock:
            sent = self._open.pop(call, None)
            if place is None:
                return
            start = now - busy_s - place.startup_s
            held = self._held.setdefault(place.container, _Held(start if sent is None else max(start, sent), now))
            held.last = now

    def cost(self) -> Cost:
        """The cost up to now."""
        now = time.monotonic()
        with self._lock:
            working = sorted(self._open.values())[: self._containers]
            known = sorted(self._held.values(), key=lambda held: held.last, reverse=True)
            seconds = sum(held.last - held.start for held in known)
            # What is open runs on the containers that were heard of last; more of it on ones not heard of yet.
            for index, sent in enumerate(working):
                since = max(sent, known[index].last) if index < len(known) else sent
                seconds += now - since
        return Cost(seconds=seconds, usd_per_hour=self._price, note=_NOTE)
