"""Debugger sessions on a few lines of PTX, with commands from a list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.sim.debug.commands import Reply, execute, where
from pytest_nvfp4.sim.debug.debugger import Debugger
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.ptx_case import Ran, kernel_text, run_ptx


class Script:
    """Gives commands from a list at each stop, and records the stops and replies; when it ends, the launch runs on."""

    def __init__(self, commands: list[str]) -> None:
        self._commands: Iterator[str] = iter(commands)
        self.stops: list[Reply] = []
        self.replies: dict[str, Reply] = {}

    def stopped(self, debugger: Debugger) -> None:
        assert debugger.stop is not None
        self.stops.append(where(debugger, debugger.stop))
        for command in self._commands:
            reply = execute(debugger, command)
            if reply.runs:
                return
            self.replies[command] = reply
        debugger.detached = True

    @property
    def reasons(self) -> list[str]:
        """Why the launch stopped, without the stop at its start."""
        return [stop.data["stop"]["reason"] for stop in self.stops[1:]]

    @property
    def places(self) -> list[tuple[int, str]]:
        """The warp and the instruction of each of these stops."""
        return [(stop.data["stop"]["warp"], stop.data["stop"]["instruction"]) for stop in self.stops[1:]]


def session(body: str, commands: list[str], **launch: Any) -> tuple[Script, Ran | Fault]:
    """Debug a body; return what the script saw, and the finished launch or its fault."""
    script = Script(commands)
    machine = Machine(model=for_arch("sm_100a"), asynchronous=launch.pop("asynchronous", None))
    machine.debugger = Debugger(script)
    machine.monitor = machine.debugger.log
    try:
        return script, run_ptx(body, machine=machine, **launch)
    except Fault as fault:
        return script, fault


def line(text: str, body: str) -> str:
    """The place of the first line of a body that contains a text."""
    lines = kernel_text(body, buffers=0).splitlines()
    return f"ptx:{next(number for number, each in enumerate(lines, 1) if text in each)}"
