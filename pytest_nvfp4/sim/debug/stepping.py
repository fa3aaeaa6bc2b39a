"""The scheduler of a launch that is debugged: one instruction at a time, with a call before each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lower.control import SPLIT
from pytest_nvfp4.sim.run.scheduler import PATIENCE, Scheduler

if TYPE_CHECKING:
    from pytest_nvfp4.sim.debug.debugger import Debugger
    from pytest_nvfp4.sim.run.grid import Grid
    from pytest_nvfp4.sim.run.warp import Warp


class SteppingScheduler(Scheduler):
    """Scheduler that asks a debugger before each instruction, and when a fault ends the launch.

    The program must be compiled for it (``Program.stepped``): then all registers hold their values between two blocks.
    """

    def __init__(self, grid: Grid, debugger: Debugger) -> None:
        super().__init__(grid, grid.program)
        self._debugger = debugger
        self._entries = frozenset()  # a gang runs warps together

    def run(self) -> None:
        """Run all clusters of the grid. Raises Fault, when the debugger has shown it."""
        try:
            super().run()
        except Fault as fault:
            self._debugger.faulted(self, fault)
            raise

    def _run(self, warp: Warp, left: int, *, fairly: bool = False) -> int:
        program, registers = self.program, warp.registers
        schedule = self.grid.machine.asynchronous
        beside = 0 if fairly else schedule.pick(PATIENCE) if schedule.shuffles else 1
        while left > 0:
            group = warp.select() if beside % PATIENCE else warp.select_other()
            if group is None:
                if warp.groups:
                    self._check_meeting(warp)
                return left
            warp.current = group
            self._debugger.before(warp, group)
            place = group.pc
            if len(warp.groups) == 1:
                block = program.block(place)
            else:
                block = program.block_beside(place, tuple(sorted({o.pc for o in warp.groups if o is not group})))
                beside += 1
            place = block(registers, warp, group.mask)
            left -= 1
            if place > SPLIT:
                group.pc = place if place >= 0 else ~place
                group.forced = group.forced and place < 0
                warp.join()
        return left
