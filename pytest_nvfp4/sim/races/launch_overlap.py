"""Races between a launch and the previous one on its stream: programmatic dependent launch.

A launch with the attribute of programmatic stream serialization may begin when every CTA of the previous launch on its
stream has executed ``griddepcontrol.launch_dependents`` or ended. ``griddepcontrol.wait`` blocks until the grids that
it depends on are complete and their writes are visible (PTX ISA, "griddepcontrol"); everything ordered behind the wait
of one thread, by a barrier for instance, is ordered behind those grids too. All other accesses to what the previous
launch writes race with it, and all writes to what it reads. If the previous launch executes no ``launch_dependents``,
all its CTAs have ended and have read what they read, but their writes may not be visible yet: NVIDIA's own libraries
failed on that (NVIDIA/cccl, pull request 5456 and issue 9134).

Not detected: races with the launch before the previous one, which may still run if the previous one never waits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from pytest_nvfp4.driver.kernel_names import short_kernel
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.races.access import Access
from pytest_nvfp4.sim.races.access_pair import RACE
from pytest_nvfp4.sim.races.clocks import Agent
from pytest_nvfp4.sim.races.findings import Reporter
from pytest_nvfp4.sim.races.global_shadow import EarlierAccess, GlobalShadow
from pytest_nvfp4.sim.races.region_shadow import Rows
from pytest_nvfp4.sim.run.grid import Grid


class Overlap(Enum):
    """What of the previous launch may be missing when one begins."""

    WRITES = auto()
    """It has ended, and its writes may not be visible."""
    RUNNING = auto()
    """It may still run."""


@dataclass(slots=True, eq=False)
class LaunchOverlap:
    """A launch and the previous one, whose writes may not be visible yet, and which may still run.

    Args:
        earlier: The previous launch.
        memory: Its accesses to global memory.
        reporter: Reporter of the launch.
        overlap: What of the previous launch may be missing.
    """

    _earlier: Grid
    _memory: GlobalShadow
    _reporter: Reporter
    _overlap: Overlap
    _lines: set[str] = field(default_factory=set)

    @staticmethod
    def waited(agent: Agent) -> None:
        """Execute a warp's ``griddepcontrol.wait``."""
        agent.complete(agent.clocks.previous_launch, 1)

    def check(self, agent: Agent, region: Region, rows: Rows, access: Access, *, writes: bool) -> None:
        """Check a warp's access to global memory, or a copy that it starts."""
        if agent.has_seen(agent.clocks.previous_launch, 1):
            return
        # A launch that has ended has read everything: only its writes are in doubt.
        both = writes and self._overlap is Overlap.RUNNING
        old = self._memory.conflicting(region, rows, access, writes=both)
        if old is not None:
            self._report(old, access, region, writes=writes)

    def _report(self, old: EarlierAccess, new: Access, region: Region, *, writes: bool) -> None:
        reporter, earlier = self._reporter, self._earlier
        line = reporter.messages.line(new.at)
        if line in self._lines:
            return
        self._lines.add(line)
        pair = (
            f"{reporter.grid.place(new.at)} in {new.warp} {'writes' if writes else 'reads'} global memory at "
            f"{region.place(region.start + old.offset)}, which {earlier.place(old.access.at)} in {old.access.warp} of "
            f"the previous launch, {short_kernel(earlier.kernel.name)}, {'writes' if old.writes else 'reads'}"
        )
        why = (
            "the previous launch lets this one begin before it has ended (programmatic dependent launch and "
            "griddepcontrol.launch_dependents)"
            if self._overlap is Overlap.RUNNING
            else "this launch may begin before what the previous one wrote is visible (programmatic dependent launch)"
        )
        reporter.other(
            RACE,
            f"{pair}: {why}, and no griddepcontrol.wait is ordered before {line}",
            f"<griddepcontrol.wait> before {line}, in the same warp or before a barrier "
            "that it passes first; or launch without <programmatic dependent launch>",
            warp=new.warp,
            at=new.at,
            group=("previous launch",),
            note=f"the same: {pair}",
        )
