"""The simulated device: its memory, its model, and how asynchronous work is scheduled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.driver.device_model import B200, DeviceModel
from pytest_nvfp4.sim.memory.globals import GlobalMemory
from pytest_nvfp4.sim.run.asynchronous import Asynchronous, Eager
from pytest_nvfp4.sim.run.units import HasUnits

if TYPE_CHECKING:
    from pytest_nvfp4.sim.monitor import Monitor, Tracer

__all__ = ["Machine"]


class Machine(HasUnits):
    """One device of one process. Its own units outlive launches.

    Attributes:
        memory: Global memory.
        model: What host code is told of the device; its SM count bounds the CTAs that run at once.
        asynchronous: The schedule of asynchronous work.
        changes: Grows with every change that another warp may see; what spins while it stands still spins forever.
        monitor: The race detector, if one watches.
        trace: What draws a timeline, if one is wanted.
        elected_lane: The lane that ``elect.sync`` elects where it may choose; None for the lowest.
    """

    def __init__(
        self, *, model: DeviceModel = B200, asynchronous: Asynchronous | None = None, memory: GlobalMemory | None = None
    ) -> None:
        super().__init__()
        self.memory = memory or GlobalMemory()
        self.model = model
        self.asynchronous = asynchronous or Eager()
        self.changes = 0
        self.monitor: Monitor | None = None
        self.trace: Tracer | None = None
        self.elected_lane: int | None = self.asynchronous.elected_lane
        self._ticks = 0

    def tick(self) -> int:
        """A number that grows with each call: what ``%clock64`` gives instead of a time."""
        self._ticks += 1
        return self._ticks
