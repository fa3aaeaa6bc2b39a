"""End what a thread runs from another thread: an interrupt reaches only the main one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

_STOP: Final[ContextVar[threading.Event | None]] = ContextVar("nvfp4_stop", default=None)


class StoppedError(RuntimeError):
    """A process was ended before its end, because nobody wants its answer any more."""


@contextlib.contextmanager
def stopped_by(event: threading.Event) -> Iterator[None]:
    """Within, :func:`~pytest_nvfp4.isolation.run` of this thread ends with :class:`StoppedError` once this is set."""
    token = _STOP.set(event)
    try:
        yield
    finally:
        _STOP.reset(token)


def check() -> None:
    """Raise :class:`StoppedError` if this thread is to stop."""
    event = _STOP.get()
    if event is not None and event.is_set():
        raise StoppedError("ended before its end: the run is over")
