"""A warp: its registers, and its groups of lanes with a common program counter.

Diverged lanes form *groups*, each with a program counter and a mask; groups that reach the same place are merged.
Independent thread scheduling (PTX ISA, "Independent Thread Scheduling") allows any order of groups. The group with the
lowest program counter runs first, because groups then reconverge earliest.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.units import HasUnits
from pytest_nvfp4.sim.run.waiting import Waitable


class Group:
    """Lanes of a warp at one program counter. ``waiting`` is the object they wait for, None while they can run."""

    __slots__ = ("forced", "mask", "pc", "waiting", "warp")

    def __init__(self, warp: Warp, pc: int, mask: int) -> None:
        self.warp = warp
        self.pc = pc
        self.mask = mask
        self.waiting: Waitable | None = None
        self.forced = False
        """Whether no other group can run, so that ``mbarrier.try_wait`` must return a result now."""

    def wake(self) -> None:
        """Let the group run again. The caller removes it from the waiters first."""
        self.waiting = None
        warp = self.warp
        if not warp.queued:
            warp.queued = True
            warp.cta.scheduler.ready.append(warp)


class Meeting:
    """Wait of lanes for the other lanes of their warp, at an instruction that they execute together."""

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        self.waiters: list[Group] = []

    def waiting_for(self) -> str:
        """Describe the wait, for the report of a deadlock."""
        return "the other lanes of the warp, at an instruction that all execute together"


@lru_cache(maxsize=256)
def _threads(block: tuple[int, int, int], index: int) -> tuple[int, tuple[lanes.Bits, lanes.Bits, lanes.Bits]]:
    """Return the mask of existing lanes of a warp of a block, and their thread indices (x, y, z)."""
    x, y, z = block
    linear = np.arange(32, dtype=np.uint32) + np.uint32(32 * index)
    places = (linear % np.uint32(x), linear // np.uint32(x) % np.uint32(y), linear // np.uint32(x * y))
    for place in places:
        place.flags.writeable = False
    first, second, third = (lanes.collapse(place) for place in places)
    return lanes.bits_of(linear < x * y * z), (first, second, third)


class Warp(HasUnits):
    """32 lanes of a CTA.

    Attributes:
        index: Number in the CTA (linear thread id / 32).
        live: Mask of the lanes that exist and have not exited.
        registers: Values by slot, each an int or array (see ``lanes``); poison until written.
        tid: ``(x, y, z)``, each an int or an array of uint32.
        elected: Result of ``elect.sync`` when all 32 lanes execute it.
        executed: Number of executed instructions.
        products: Number of products of scalar and packed multiplications, each lane's counted.
        does: Kinds of asynchronous and matrix instructions that it has executed, which make its role.
        path: Numbers of the passages that it has executed (``lower.compiler.Passage``), between what a monitor adds;
            empty unless a monitor follows the path.
        passed: Numbers of the passages that any of its lanes has executed; empty unless a monitor needs them.
    """

    __slots__ = (
        "cta", "current", "does", "elected", "executed", "groups", "index", "live", "meeting", "passed", "path",
        "products", "queued", "registers", "tid",
    )  # fmt: skip

    def __init__(self, cta: Cta, index: int, *, registers: list[Any]) -> None:
        super().__init__()
        self.cta = cta
        self.index = index
        self.live, self.tid = _threads(cta.launch.block, index)
        self.registers = registers
        self.groups: list[Group] = [Group(self, 0, self.live)]
        self.current = self.groups[0]
        self.queued = False
        lane = cta.launch.machine.elected_lane or 0
        self.elected: tuple[int, lanes.Predicate] = lane, lanes.ONE_HOT[lane]
        self.executed = 0
        self.products = 0
        self.does: set[str] = set()
        self.path: list[Any] = []
        self.passed: set[int] = set()
        self.meeting = Meeting()

    def wait_for(self, what: Waitable) -> None:
        """Suspend the running group; its blocking instruction executes again when ``what`` wakes it."""
        group = self.current
        group.waiting = what
        what.waiters.append(group)

    def split(self, parts: list[tuple[int, int]]) -> None:
        """Replace the running group by groups of ``(place, mask)``; lanes in none of them have exited."""
        self.groups.remove(self.current)
        for place, mask in parts:
            self.groups.append(Group(self, place, mask))
        self.join()
        self.reconsider()

    def join(self) -> None:
        """Merge the groups at the same place that can run or wait for each other."""
        if len(self.groups) < 2:
            return
        at: dict[int, Group] = {}
        joined: list[Group] = []
        for group in self.groups:
            if group.waiting is not None and group.waiting is not self.meeting:
                joined.append(group)
                continue
            other = at.get(group.pc)
            if other is None:
                at[group.pc] = group
                joined.append(group)
            else:
                other.mask |= group.mask
                other.waiting = None
                if group is self.current:
                    self.current = other
        self.groups = joined

    def reconsider(self) -> None:
        """Resume groups that wait for other lanes, so that they check again whether all are present."""
        waiters, self.meeting.waiters = self.meeting.waiters, []
        for group in waiters:
            if group.waiting is self.meeting:
                group.waiting = None

    def select(self) -> Group | None:
        """Return the runnable group at the lowest place."""
        best: Group | None = None
        for group in self.groups:
            if group.waiting is None and (best is None or group.pc < best.pc):
                best = group
        return best

    def select_other(self) -> Group | None:
        """Return the runnable group that has not run for longest, for fairness between groups that spin."""
        for position, group in enumerate(self.groups):
            if group.waiting is None and group is not self.current:
                del self.groups[position]
                self.groups.append(group)
                return group
        return self.select()
