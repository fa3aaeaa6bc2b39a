"""Launches that overlap: programmatic dependent launch.

A launch with the attribute of programmatic stream serialization may begin as soon as every CTA of the launch before it
on its stream has executed ``griddepcontrol.launch_dependents`` or ended. ``griddepcontrol.wait`` blocks until the grids
that it depends on are complete and what they wrote is visible (PTX ISA, "griddepcontrol"); whatever is ordered after
the wait of one thread, by a barrier for instance, is ordered after them too. All other accesses to what the earlier
launch writes, and all writes to what it reads, race with it.

Not seen: a launch before the one before, which a launch in the middle that never waits may leave running; a launch
whose predecessor executes no ``launch_dependents``, and so has ended when this one begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.finding import Finding, Where
from pytest_nvfp4.sim.races.access import Access
from pytest_nvfp4.sim.races.findings import RACE

if TYPE_CHECKING:
    from pytest_nvfp4.sim.memory.globals import Region
    from pytest_nvfp4.sim.races.agents import WarpAgent
    from pytest_nvfp4.sim.races.launch import LaunchRaces

__all__ = ["Overlap"]

Rows = Callable[[], tuple[NDArray[np.intp], int]]
_NOTES = 6


class Overlap:
    """A launch and the one before it, which may still run.

    Args:
        earlier: What is known of the one before.
        later: The launch.
    """

    def __init__(self, earlier: LaunchRaces, later: LaunchRaces) -> None:
        self.earlier = earlier
        self.later = later
        self._told: int | None = None
        self._lines: set[str] = set()

    def waited(self, agent: WarpAgent) -> None:
        """A warp has executed ``griddepcontrol.wait``."""
        agent.learn(agent.agents.earlier_grids, 1)

    def check(self, agent: WarpAgent, region: Region, rows: Rows, access: Access, *, writes: bool) -> None:
        """A warp accesses global memory, or starts a copy that does."""
        if agent.knows(agent.agents.earlier_grids, 1):
            return
        found = self.earlier.memory.meets(region, rows, access, writes=writes)
        if found is None:
            return
        old, wrote, offset = found
        place = f"global memory at {region.say(region.start + offset)}"
        self._tell(old, access, place, wrote=wrote, writes=writes)

    def _tell(self, old: Access, new: Access, place: str, *, wrote: bool, writes: bool) -> None:
        grid, before = self.later.grid, self.earlier.grid
        line = grid.say(new.at).split(" (")[0]
        if line in self._lines:
            return
        self._lines.add(line)
        verb = "writes" if writes else "reads"
        what = (
            f"{grid.say(new.at)} in {new.who} {verb} {place}, which {before.say(old.at)} in {old.who} of the launch "
            f"before, {before.kernel.name[:80]}, {'writes' if wrote else 'reads'}"
        )
        findings = grid.findings
        if self._told is not None and self._told < len(findings):
            known = findings[self._told]
            if len(known.notes) < _NOTES:
                findings[self._told] = replace(known, notes=(*known.notes, f"the same: {what}"))
            return
        self._told = len(findings)
        instruction = grid.kernel.instructions[new.at]
        where = Where(
            kernel=grid.kernel.name, cta=new.who.cta, warp=new.who.warp, at=new.at, ptx_line=instruction.ptx_line,
            text=instruction.text, source=instruction.location,
        )  # fmt: skip
        message = (
            f"{what}: that launch lets this one begin before it has ended (programmatic dependent launch and "
            f"griddepcontrol.launch_dependents), and no griddepcontrol.wait is ordered before {line}"
        )
        hint = (
            f"griddepcontrol.wait (cute.arch.griddepcontrol_wait) before {line}, in the same warp or before a barrier "
            "that it passes first; or launch without use_pdl"
        )
        findings.append(Finding(RACE, message, hint=hint, where=where))
