"""Cancel what a thread runs from another thread; an interrupt reaches only the main thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

_STOP: Final[ContextVar[threading.Event | None]] = ContextVar("nvfp4_stop", default=None)


class StoppedError(RuntimeError):
    """A process was killed before its end because its result is no longer needed."""


@contextlib.contextmanager
def stopped_by(event: threading.Event) -> Iterator[None]:
    """Make this thread's :func:`~pytest_nvfp4.isolation.run` raise :class:`StoppedError` once ``event`` is set."""
    token = _STOP.set(event)
    try:
        yield
    finally:
        _STOP.reset(token)


def check() -> None:
    """Raise :class:`StoppedError` if this thread was stopped."""
    event = _STOP.get()
    if event is not None and event.is_set():
        raise StoppedError("killed before its end: the run is over")
