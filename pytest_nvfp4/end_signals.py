"""SIGTERM and SIGHUP end a command as Ctrl-C does: with its clean-up, and with a message that says what is left."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

_NAMES = ("SIGTERM", "SIGHUP")
_STATUS = 130
"""Exit status of an interrupted command: 128 + SIGINT."""


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


@contextlib.contextmanager
def clean_ends(left: Callable[[], str], *, interrupted: bool = False, within_s: float | None = None) -> Iterator[None]:
    """Let the clean-up after a signal finish: further signals neither raise in it nor end it at once.

    The first one raises KeyboardInterrupt. The second writes a line, and the third ends this process, after a line that
    says what may still run. No effect in other threads than the main one.

    Args:
        left: Returns what may still run, with the command that ends it; must not block.
        interrupted: Whether the first signal has been received already.
        within_s: Seconds after the first signal in which this process ends, whatever blocks it; None for no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = int(interrupted)

    def leave() -> NoReturn:
        _write(f"nvfp4: left without a clean-up. {left()}".rstrip())
        os._exit(_STATUS)

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received > 2:
            leave()
        if received == 2:
            _write("nvfp4: cancelling what runs; once more leaves it as it is")
            return
        if within_s is not None:
            timers.append(threading.Timer(within_s, leave))
            timers[-1].daemon = True
            timers[-1].start()
        raise KeyboardInterrupt(signal.Signals(number).name)

    timers: list[threading.Timer] = []
    before: dict[int, Any] = {}
    for name in ("SIGINT", *_NAMES):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def _write(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be closed
        os.write(2, f"\n{line}\n".encode())
