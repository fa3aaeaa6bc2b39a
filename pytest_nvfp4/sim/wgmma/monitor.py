"""Events that ``wgmma`` reports to the machine's monitor (``machine.monitor``), which orders accesses.

Every event is reported while its instruction runs. An operation reads shared memory in the async proxy, at any time
after the last of the four warps issued it; for a warp it has ended when ``wgmma_waited`` reports it.
"""

from __future__ import annotations

from typing import Protocol

from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.wgmma.operation import WgmmaOperation
from pytest_nvfp4.sim.wgmma.unit import Warpgroup


class WgmmaMonitor(Protocol):
    """The part of the monitor that receives the events of ``wgmma``."""

    def wgmma_fenced(self, w: Warp) -> None:
        """A warp executed ``wgmma.fence``."""

    def wgmma_issued(self, w: Warp, group: Warpgroup, operation: WgmmaOperation, at: int) -> None:
        """A warp issued an operation.

        ``operation.arrived`` has a bit for each of the four warps that has, this one included; ``operation.a_units``
        and ``b_units`` are the units of shared memory that it reads.
        """

    def wgmma_waited(self, w: Warp, group: Warpgroup, done: int) -> None:
        """A wait of a warp found the first ``done`` operations of its warpgroup complete."""
