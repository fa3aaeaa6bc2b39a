"""The debugger's dialogue as the worker has it: commands are lines of its standard input, answers are events."""

from __future__ import annotations

import os

from pytest_nvfp4.device.dialogue import EVENT, MOST_CHARACTERS
from pytest_nvfp4.device.worker.events import Events
from pytest_nvfp4.sim.debug.commands import Reply, execute, show, where
from pytest_nvfp4.sim.debug.debugger import Debugger
from pytest_nvfp4.text import clip

_MOST_LINE = 1 << 16


class CommandReader:
    """Reads commands from a descriptor.

    Args:
        commands: The descriptor.
        events: Where answers go.
    """

    def __init__(self, commands: int, events: Events) -> None:
        self._file = os.fdopen(commands, "rb")
        self._events = events
        self._stops = 0

    def stopped(self, debugger: Debugger) -> None:
        """Show a stop, everything at the first one after the launch, and execute commands until one continues."""
        assert debugger.stop is not None
        self._stops += 1
        whole = self._stops == 2 or debugger.stop.fault is not None
        self._send((show if whole else where)(debugger, debugger.stop))
        while line := self._file.readline(_MOST_LINE):
            reply = execute(debugger, line.decode("utf-8", "replace"))
            if reply.runs:
                return
            self._send(reply)
        debugger.detached = True

    def _send(self, reply: Reply) -> None:
        self._events.send(EVENT, text=clip(reply.text, MOST_CHARACTERS // 2), data=reply.data, asks=True)
