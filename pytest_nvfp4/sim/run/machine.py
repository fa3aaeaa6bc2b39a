"""The simulated device: its memory, its model, and the schedule of asynchronous work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_nvfp4.driver.device_model import B200, DeviceModel
from pytest_nvfp4.sim.memory.globals import GlobalMemory
from pytest_nvfp4.sim.run.asynchronous import Asynchronous, Eager
from pytest_nvfp4.sim.run.units import HasUnits

if TYPE_CHECKING:
    from pytest_nvfp4.sim.debug.debugger import Debugger
    from pytest_nvfp4.sim.monitor import Monitor
    from pytest_nvfp4.sim.provenance.recorder import OperandRecorder
    from pytest_nvfp4.sim.run.trace import Trace
    from pytest_nvfp4.sim.sync.barrier_log import BarrierLog
    from pytest_nvfp4.sim.tcgen05.step_tiles import Product


class Machine(HasUnits):
    """One simulated device. Its units outlive launches.

    Attributes:
        memory: Global memory.
        model: Device properties for host code; the SM count bounds the number of resident CTAs.
        asynchronous: The schedule of asynchronous work.
        changes: Number of changes that another warp may see. A warp that repeats its state while this number is
            constant spins forever.
        updates: Those that atomic operations have made.
        monitor: Receiver of a launch's events, such as the race detector, if any.
        trace: The recorder of a timeline, if any.
        operands: The recorder of what MMAs read, if any.
        barrier_log: The log of operations on mbarriers of the running launch, if they are recorded.
        debugger: The debugger that stops warps, if any.
        int8_product: Returns a fast product of matrices of 8-bit integers (``tcgen05.step_tiles``), or None.
        reports_outside: Whether tensor copies wholly outside their tensor are findings (``finding.OUTSIDE``).
        elected_lane: Lane that ``elect.sync`` elects if it is a member; None for the lowest.
    """

    def __init__(
        self, *, model: DeviceModel = B200, asynchronous: Asynchronous | None = None, memory: GlobalMemory | None = None
    ) -> None:
        super().__init__()
        self.memory = memory or GlobalMemory()
        self.model = model
        self.asynchronous = asynchronous or Eager()
        self.changes = 0
        self.updates = 0
        self.monitor: Monitor | None = None
        self.trace: Trace | None = None
        self.operands: OperandRecorder | None = None
        self.barrier_log: BarrierLog | None = None
        self.debugger: Debugger | None = None
        self.int8_product: Callable[[], Product | None] = lambda: None
        self.reports_outside = False
        self.elected_lane: int | None = self.asynchronous.elected_lane
        self._ticks = 0

    @property
    def without_data(self) -> bool:
        """Whether no data are copied or multiplied (``Monitor.without_data``)."""
        return self.monitor is not None and self.monitor.without_data

    def tick(self) -> int:
        """Return a number that grows with each call, the value of ``%clock64`` in place of a time."""
        self._ticks += 1
        return self._ticks
