"""A warp: its registers, and its groups of lanes that run together.

Lanes that took different ways are *groups*, each with a place in the code and a mask; groups that meet at one place
become one. Independent thread scheduling (PTX ISA, "Independent Thread Scheduling") allows any order of them; the
lowest place first lets them meet soonest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.run.waiting import Waitable

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.cta import Cta

__all__ = ["Group", "Warp"]

_Unit = TypeVar("_Unit")


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


class Warp:
    """32 lanes of a CTA.

    Attributes:
        cta: Its CTA.
        index: Its number in the CTA (linear thread id / 32).
        live: Mask of the lanes that exist and have not exited.
        registers: By slot; an int or array (see ``lanes``); never written values are poison.
        tid: ``(x, y, z)``, each an int or an array of uint32.
        executed: Instructions it has run.
    """

    __slots__ = (
        "cta", "current", "executed", "groups", "index", "live", "queued", "registers", "tid", "units",
    )  # fmt: skip

    def __init__(self, cta: Cta, index: int, *, registers: list[Any]) -> None:
        self.cta = cta
        self.index = index
        x, y, z = cta.launch.block
        threads = x * y * z
        linear = np.arange(32, dtype=np.uint32) + np.uint32(32 * index)
        self.live = lanes.bits_of(linear < threads)
        self.tid = (
            lanes.collapse(linear % np.uint32(x)),
            lanes.collapse(linear // np.uint32(x) % np.uint32(y)),
            lanes.collapse(linear // np.uint32(x * y)),
        )
        self.registers = registers
        self.groups: list[Group] = [Group(self, 0, self.live)]
        self.current = self.groups[0]
        self.queued = False
        self.executed = 0
        self.units: dict[type, Any] = {}

    def unit(self, kind: type[_Unit]) -> _Unit:
        """The warp's part of a hardware unit, made on first use by ``kind(warp)``."""
        found: _Unit | None = self.units.get(kind)
        if found is None:
            found = self.units[kind] = kind(self)  # type: ignore[call-arg]
        return found

    def wait_for(self, what: Waitable) -> None:
        """The running group waits; its blocking instruction runs again when ``what`` wakes it."""
        group = self.current
        group.waiting = what
        what.waiters.append(group)
