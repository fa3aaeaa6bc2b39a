"""SIGTERM and SIGHUP end a command as Ctrl-C does: with its clean-up, and with a message that says what is left."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

_NAMES = ("SIGTERM", "SIGHUP")


def as_interrupts() -> Callable[[], None]:
    """Let these signals raise KeyboardInterrupt in the main thread, and return a function that undoes it.

    A signal that is ignored (as SIGHUP is by nohup) or that has a handler is left as it is.
    """
    changed: list[int] = []
    if threading.current_thread() is threading.main_thread():
        for name in _NAMES:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _interrupt)
                changed.append(number)

    def undo() -> None:
        for number in changed:
            if signal.getsignal(number) is _interrupt:
                signal.signal(number, signal.SIG_DFL)

    return undo


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt(signal.Signals(number).name)
