"""Clocks of the loop. Tests replace them, and a wall clock that is set while the loop runs changes no budget."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta


class Clock:
    """The clocks of this machine, in seconds."""

    def now(self) -> float:
        """Return the wall clock, since 1970. It may jump."""
        return time.time()

    def running(self) -> float:
        """Return a clock that neither jumps nor counts while the machine sleeps."""
        return time.monotonic()

    def passing(self) -> float:
        """Return a clock that does not jump, and counts while the machine sleeps."""
        boottime = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if boottime is None else time.clock_gettime(boottime)

    def stamp(self) -> str:
        """Return the wall clock as text (UTC, ISO 8601)."""
        return stamp(self.now())


def stamp(seconds: float) -> str:
    """Return seconds since 1970 as text (UTC, ISO 8601)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float | None:
    """Return the seconds since 1970 of a text as of `stamp`; None if it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None


def seconds_until(text: str, now: float) -> float:
    """Return how long it takes until the next time that a local clock shows ``HH:MM``.

    A time that the change to summer time leaves out is taken as the one an hour later; one that occurs twice, as the
    first.

    Raises:
        ValueError: The text is no time of day.
    """
    if (found := re.fullmatch(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", text.strip())) is None:
        raise ValueError(f"{text!r} is no time of day; write it as HH:MM, such as 07:00")
    # Without a zone, so that the system's rules for the local one apply to the day that is meant.
    today = datetime.fromtimestamp(now).replace(
        hour=int(found[1]), minute=int(found[2]), second=0, microsecond=0, fold=0
    )
    wait = today.timestamp() - now
    return wait if wait > 0 else (today + timedelta(days=1)).timestamp() - now
