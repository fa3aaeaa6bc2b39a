"""Estimated cost of Modal's containers."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pytest_nvfp4.device.remote.base import Cost, Place
from pytest_nvfp4.device.remote.modal.settings import SCALEDOWN_S, ModalSettings
from pytest_nvfp4.device.remote.options import RemoteOptions

USD_PER_HOUR = {"B200": 6.25, "H200": 4.54, "H100": 3.95}
"""Price of a GPU-hour by Modal's public price list (2025), without CPU and memory."""
CPU_USD_PER_HOUR, GIB_USD_PER_HOUR = 0.0000131 * 3600, 0.00000222 * 3600
"""Assumed prices of a physical core and of a GiB of memory: pages of others name them for a second as Modal's
(finops.apis.io, beam.cloud, 2026), no bill has confirmed them. A region or machines that are never preempted cost more.
"""
NOTE = (
    "estimated from the time that containers were held, idle time included, and {price}, with assumed "
    f"prices of CPUs (${CPU_USD_PER_HOUR:.3f} a core and hour) and memory (${GIB_USD_PER_HOUR:.3f} a GiB and hour); "
    "modal.com/settings has the bill"
)


def price(gpu: str) -> float | None:
    """Return US dollars an hour for a GPU by Modal's name, such as ``B200`` or ``B200:2``; None if unknown."""
    name, _, count = gpu.upper().partition(":")
    each = USD_PER_HOUR.get(name.removesuffix("!"))
    return None if each is None else each * (int(count) if count.isdigit() else 1)


def usd_per_hour(options: RemoteOptions, settings: ModalSettings) -> float | None:
    """Return the price of one container: a GPU, if it has one, CPUs and memory; None if the GPU's is unknown."""
    gpu = 0.0 if settings.simulates else price(options.gpu) if options.gpu_price is None else options.gpu_price
    if gpu is None:
        return None
    return gpu + settings.cpus * CPU_USD_PER_HOUR + settings.memory_gib * GIB_USD_PER_HOUR


@dataclass(slots=True)
class _Held:
    """Start of a container, and its last result."""

    start: float
    last: float


class _Working(NamedTuple):
    """An open call that a container may be running since a time, and the container if it is known."""

    call: str
    since: float
    held: _Held | None


class Meter:
    """Counts the seconds that containers were held.

    A container counts from its start to its last result, and then for as long as it stays up idle. A call that ended
    at an unknown place (cancelled, lost) counts as if a container had run it. While calls are open, every container
    that could run one counts up to now, including the wait for a container, unless none is known to be up. The estimate
    may thus be too high, so that the cost never exceeds a limit unnoticed, but it is never more than all containers
    could cost.

    Args:
        usd_per_hour: Price of one container; None if it is unknown.
        containers: Maximum number of containers at once.
        idle_s: Seconds that an idle container stays up.
        note: Source of the price.
        clock: Monotonic clock in seconds.

    Attributes:
        idle_s: Seconds that an idle container stays up.
    """

    def __init__(
        self,
        usd_per_hour: float | None,
        containers: int,
        *,
        idle_s: float = 0.0,
        note: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._price = usd_per_hour
        self._containers = containers
        self.idle_s = idle_s
        self._note = note
        self._clock = clock
        self._stopped: float | None = None
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._open: dict[str, float] = {}
        self._unplaced = 0.0
        self._first: float | None = None  # time of the first call; `_last`: end of the last one
        self._last = 0.0

    def sent(self, call: str) -> None:
        """Record that a call was sent."""
        with self._lock:
            now = self._clock()
            self._first = now if self._first is None else self._first
            self._open[call] = now

    def ended(self, call: str, *, place: Place | None = None, busy_s: float = 0.0) -> None:
        """Record the end of a call, and the place where it ran if that is known."""
        with self._lock:
            now = self._last = self._clock()
            if place is None:
                self._charge(call, now)
            sent = self._open.pop(call, None)
            if place is None:
                return
            # The container reports these seconds; they count within the time that this side has seen pass.
            start = now - max(0.0, busy_s) - max(0.0, place.startup_s)
            earliest = sent if sent is not None else self._first if self._first is not None else now
            held = self._held.setdefault(place.container, _Held(max(start, earliest), now))
            held.last = now

    def none_up(self) -> None:
        """Record that no container is up, so that the open calls have cost nothing yet."""
        with self._lock:
            now = self._clock()
            for call in self._open:
                self._open[call] = now

    def stopped(self, *, containers_end: bool) -> None:
        """Record the end of the session: its containers ended too, or stay up until they have been idle for long."""
        with self._lock:
            if self._stopped is None:
                self._stopped = self._clock() if containers_end else math.inf

    def cost(self) -> Cost:
        """Return the cost up to now; after the end of the session, with the time that its containers stay up."""
        with self._lock:
            now = self._clock()
            working = self._working()
            busy = {id(one.held) for one in working}
            until = now if self._stopped is None else self._stopped
            idle = {
                name: 0.0 if id(held) in busy else max(0.0, min(until - held.last, self.idle_s))
                for name, held in self._held.items()
            }
            seconds = self._unplaced + sum(held.last - held.start + idle[name] for name, held in self._held.items())
            seconds += sum(now - one.since for one in working)
            if self._first is not None:
                end = now if self._open else self._last + max(idle.values(), default=0.0)
                seconds = min(seconds, self._containers * (end - self._first))
        return Cost(seconds=seconds, usd_per_hour=self._price, note=self._note)

    def _working(self) -> list[_Working]:
        """Return the open calls that a container may be running.

        The oldest are assumed to run on new containers, the others on those that returned the latest results.
        """
        oldest = sorted(self._open.items(), key=lambda item: item[1])[: self._containers]
        known = sorted(self._held.values(), key=lambda held: held.last)[-self._containers :]
        unknown = self._containers - len(known)
        working = []
        for index, (call, sent) in enumerate(oldest):
            held = known[index - unknown] if index >= unknown else None
            working.append(_Working(call, sent if held is None else max(sent, held.last), held))
        return working

    def _charge(self, call: str, now: float) -> None:
        """Count a call that ended at an unknown place."""
        for name, since, held in self._working():
            if name != call:
                continue
            if held is not None and since - held.last <= max(
                self.idle_s, SCALEDOWN_S
            ):  # the idle container was still up
                held.last = now
            else:
                self._unplaced += now - since
