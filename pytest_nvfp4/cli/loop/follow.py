"""A loop as plain lines, one an event, for pipes and logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from pytest_nvfp4.cli.errors import Exit
from pytest_nvfp4.loop.view.view import LoopReader
from pytest_nvfp4.report.loop_events import events, first_lines
from pytest_nvfp4.text import printed

_DEAD_S = 10.0
"""Seconds that a loop must be dead, since one that is begun again is dead until its new process has its lock."""


def follow(
    reader: LoopReader,
    write: Callable[[str], None],
    *,
    refresh_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Exit:
    """Write what happens in a loop until it stops, or is found dead.

    Args:
        reader: Reads the loop, which need not have begun.
        write: Receives each line.
        refresh_s: Seconds from one reading to the next.
        sleep: Waits.
    """

    def show(lines: Iterable[str]) -> None:
        for line in lines:
            write(printed(" ".join(line.split("\n"))))

    view = reader.read()
    show(first_lines(view))
    dead_s = 0.0
    while view.life != "stopped":
        if view.life == "dead" and (dead_s := dead_s + refresh_s) > _DEAD_S:
            return Exit.FAILED
        sleep(refresh_s)
        before, view = view, reader.read()
        dead_s = dead_s if view.life == "dead" else 0.0
        show(events(before, view))
    return Exit.FINE
