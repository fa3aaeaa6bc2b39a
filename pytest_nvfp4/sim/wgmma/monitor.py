"""What the tensor unit of warpgroups tells the machine's monitor (``machine.monitor``), so that it can order accesses.

Every call happens while the instruction runs. An operation reads shared memory in the async proxy, at any time from
its issue by the last of the four warps on; it has ended for a warp when ``wgmma_waited`` says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp
    from pytest_nvfp4.sim.wgmma.operation import Operation
    from pytest_nvfp4.sim.wgmma.unit import Warpgroup

__all__ = ["WgmmaMonitor"]


class WgmmaMonitor(Protocol):
    """The part of the monitor that hears of ``wgmma``."""

    def wgmma_fenced(self, w: Warp) -> None:
        """A warp executed ``wgmma.fence``."""

    def wgmma_issued(self, w: Warp, group: Warpgroup, operation: Operation, at: int) -> None:
        """A warp issued an operation; ``operation.arrived`` says which of the four have, this one included.

        ``operation.a_units`` and ``b_units`` give what it reads of shared memory.
        """

    def wgmma_waited(self, w: Warp, group: Warpgroup, done: int) -> None:
        """A warp knows that the first ``done`` operations of its warpgroup, by number, are complete."""
