"""A warp: its registers, and its groups of lanes that run together.

Lanes that took different ways are *groups*, each with a place in the code and a mask; groups that meet at one place
become one. Independent thread scheduling (PTX ISA, "Independent Thread Scheduling") allows any order of them; the
lowest place first lets them meet soonest.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.run.units import HasUnits
from pytest_nvfp4.sim.run.waiting import Waitable

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.cta import Cta

__all__ = ["Group", "Warp"]


class Group:
    """Lanes of a warp at one place. ``waiting`` is what they wait for, None while they can run."""

    __slots__ = ("forced", "mask", "pc", "waiting", "warp")

    def __init__(self, warp: Warp, pc: int, mask: int) -> None:
        self.warp = warp
        self.pc = pc
        self.mask = mask
        self.waiting: Waitable | None = None
        self.forced = False
        """Nothing else can run: a wait that may give up (``mbarrier.try_wait``) must answer now."""

    def wake(self) -> None:
        """Let the group run again; whoever waits forgets it first."""
        self.waiting = None
        warp = self.warp
        if not warp.queued:
            warp.queued = True
            warp.cta.scheduler.ready.append(warp)


class Meeting:
    """The wait of lanes for the others of their warp, at an instruction that they execute together."""

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        self.waiters: list[Group] = []

    def waiting_for(self) -> str:
        """In words."""
        return "the other lanes of the warp, at an instruction that all execute together"


@lru_cache(maxsize=256)
def _threads(block: tuple[int, int, int], index: int) -> tuple[int, tuple[lanes.Bits, lanes.Bits, lanes.Bits]]:
    """The lanes that exist of a warp of a block, and their places in it."""
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
        cta: Its CTA.
        index: Its number in the CTA (linear thread id / 32).
        live: Mask of the lanes that exist and have not exited.
        registers: By slot; an int or array (see ``lanes``); never written values are poison.
        tid: ``(x, y, z)``, each an int or an array of uint32.
        elected: What ``elect.sync`` answers when all 32 lanes execute it.
        executed: Instructions it has run.
    """

    __slots__ = (
        "cta", "current", "elected", "executed", "groups", "index", "live", "meeting", "queued", "registers", "tid",
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
        self.meeting = Meeting()

    def wait_for(self, what: Waitable) -> None:
        """The running group waits; its blocking instruction runs again when ``what`` wakes it."""
        group = self.current
        group.waiting = what
        what.waiters.append(group)

    def split(self, parts: list[tuple[int, int]]) -> None:
        """Replace the running group by groups of ``(place, mask)``; lanes named by none have exited."""
        self.groups.remove(self.current)
        for place, mask in parts:
            self.groups.append(Group(self, place, mask))
        self.join()
        self.reconsider()

    def join(self) -> None:
        """Make one group of those that can run, or wait for each other, at the same place."""
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
        """Let groups look again whether all lanes that they wait for are there."""
        waiters, self.meeting.waiters = self.meeting.waiters, []
        for group in waiters:
            if group.waiting is self.meeting:
                group.waiting = None

    def await_lanes(self) -> None:
        """The running group waits for other lanes of the warp; whoever comes lets it look again."""
        self.wait_for(self.meeting)

    def select(self) -> Group | None:
        """The group to run next: of those that can, the one at the lowest place."""
        best: Group | None = None
        for group in self.groups:
            if group.waiting is None and (best is None or group.pc < best.pc):
                best = group
        return best

    def select_other(self) -> Group | None:
        """The group that has not run for longest, of those that can; for fairness between groups that spin."""
        for position, group in enumerate(self.groups):
            if group.waiting is None and group is not self.current:
                del self.groups[position]
                self.groups.append(group)
                return group
        return self.select()
