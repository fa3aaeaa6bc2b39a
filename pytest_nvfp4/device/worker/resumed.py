"""Steps in a forked process, which goes on behind a step that crashed, hung or lost the GPU's context."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

Work = Callable[[int], Iterator[int | str]]
"""Does the steps from a number on: yields the number of each before it begins, and lines of text."""

_READ_BYTES = 1 << 16
_MOST_REASON = 2000


@dataclass(frozen=True, slots=True)
class Lost:
    """A step that did not end, or -1 if none had begun, and why."""

    step: int
    reason: str


def resumed(work: Work, *, silence_s: float, most_lost: int) -> Iterator[str | Lost]:
    """Yield the lines of all steps, and the steps that were lost.

    This process does none of the work, so that it outlives whatever happens there.

    Args:
        silence_s: Seconds without a message after which the step is taken to hang, and its process is killed.
        most_lost: Number of lost steps after which the rest is not tried.
    """
    first = lost = 0
    while True:
        ended = yield from _attempt(work, first, silence_s)
        if ended is None:
            return
        yield ended
        lost += 1
        if ended.step < 0 or lost >= most_lost:
            return
        first = ended.step + 1


def _attempt(work: Work, first: int, silence_s: float) -> Generator[str, None, Lost | None]:
    """Yield the lines of one process; return the step that it lost, or None."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        _child(work, first, writing)
    os.close(writing)
    step, reason, done, closed = -1, "", False, False
    try:
        for message in _messages(reading, silence_s):
            kind, text = message[:1], message[1:]
            if kind == "=":
                yield text
            elif kind == ">":
                step = int(text)
            elif kind == "!":
                reason = text
            else:
                done = kind == "."
        closed = True
    except TimeoutError:
        reason = f"nothing was heard of it for {silence_s:g} s"
    finally:
        os.close(reading)
        if not closed:  # it hangs, or nobody wants the rest
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if done:
        return None
    return Lost(step, reason or _how(status))


def _messages(reading: int, silence_s: float) -> Iterator[str]:
    """Yield what a process writes, line by line. Raises TimeoutError."""
    left = b""
    while True:
        if not select.select([reading], [], [], silence_s)[0]:
            raise TimeoutError
        piece = os.read(reading, _READ_BYTES)
        if not piece:
            return
        *lines, left = (left + piece).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in lines)


def _child(work: Work, first: int, writing: int) -> None:
    """Do the steps, write messages, and end the process."""
    try:
        with os.fdopen(writing, "w", encoding="utf-8") as out:
            try:
                for message in work(first):
                    out.write(f">{message}\n" if isinstance(message, int) else f"={message}\n")
                    out.flush()
                out.write(".\n")
            except Exception as error:
                text = " ".join(f"{type(error).__name__}: {error}".split())
                out.write(f"!{text[:_MOST_REASON]}\n")
    finally:
        os._exit(0)


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"its process ended with {signal.Signals(os.WTERMSIG(status)).name}"
    return f"its process ended with exit status {os.waitstatus_to_exitcode(status)}"
