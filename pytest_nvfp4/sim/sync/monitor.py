"""What synchronisation tells the machine's monitor (``machine.monitor``), so that it can order memory accesses.

Every call happens while the instruction runs, before other warps can see its effect. A monitor takes what it needs;
with none, nothing is called. Memory order follows from these events alone: arrivals release, waits acquire, and a phase
or a round joins what its arrivals released (PTX ISA, "Memory Consistency Model" and each instruction's page).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp
    from pytest_nvfp4.sim.sync.cluster import ClusterBarrier
    from pytest_nvfp4.sim.sync.mbarrier import Mbarrier, Who
    from pytest_nvfp4.sim.sync.named import NamedBarrier

__all__ = ["SyncMonitor"]


class SyncMonitor(Protocol):
    """The part of the monitor that hears of synchronisation."""

    def fence(self, w: Warp, mask: int, kind: str, at: int) -> None:
        """A fence was executed; ``kind`` is its opcode without the root."""

    def warp_met(self, w: Warp, mask: int, at: int) -> None:
        """Lanes passed a ``bar.warp.sync`` together."""

    def grid_waited(self, w: Warp, mask: int, at: int) -> None:
        """``griddepcontrol.wait``."""

    def mbarrier_initialised(self, barrier: Mbarrier, who: Who) -> None:
        """A thread made a barrier; whoever uses it must be ordered after that."""

    def mbarrier_arrived(self, barrier: Mbarrier, who: Who, count: int) -> None:
        """Threads or a unit arrive in the barrier's present phase; it may complete right after."""

    def mbarrier_bytes(self, barrier: Mbarrier, who: Who, size: int) -> None:
        """A unit's bytes have arrived in the barrier's present phase; it may complete right after."""

    def mbarrier_completed(self, barrier: Mbarrier) -> None:
        """The phase ``barrier.phase`` is complete; the next one starts."""

    def mbarrier_waited(self, w: Warp, mask: int, barrier: Mbarrier, at: int) -> None:
        """Lanes saw that the phase before ``barrier.phase`` is complete (none is while that is 0)."""

    def mbarrier_refused(self, w: Warp, mask: int, barrier: Mbarrier, at: int) -> None:
        """Lanes asked whether the phase ``barrier.phase`` is complete, and go on although it is not."""

    def barrier_arrived(self, w: Warp, mask: int, barrier: NamedBarrier | ClusterBarrier, at: int) -> None:
        """Lanes arrive at a named barrier or at the cluster's; its round may complete right after."""

    def barrier_completed(self, barrier: NamedBarrier | ClusterBarrier) -> None:
        """The round of a barrier is complete."""

    def barrier_passed(self, w: Warp, mask: int, barrier: NamedBarrier | ClusterBarrier, at: int) -> None:
        """Lanes leave a named barrier or the cluster's after their round was complete."""
