"""Interface through which synchronisation reports its events to the machine's monitor (``machine.monitor``).

Each method is called while the instruction executes, before other warps can observe its effect. The monitor derives the
order of memory accesses from these events: an arrival releases, a wait acquires, and a phase or round joins what its
arrivals released (PTX ISA, "Memory Consistency Model", and the page of each instruction).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp
    from pytest_nvfp4.sim.sync.cluster import ClusterBarrier
    from pytest_nvfp4.sim.sync.mbarrier import Actor, Mbarrier
    from pytest_nvfp4.sim.sync.named import NamedBarrier

__all__ = ["SyncMonitor"]


class SyncMonitor(Protocol):
    """Synchronisation events."""

    def fence(self, w: Warp, mask: int, kind: str, at: int) -> None:
        """Lanes executed a fence; ``kind`` is its opcode without the root."""

    def warp_met(self, w: Warp, mask: int, at: int) -> None:
        """Lanes passed a ``bar.warp.sync`` together."""

    def grid_waited(self, w: Warp, mask: int, at: int) -> None:
        """Lanes executed ``griddepcontrol.wait``."""

    def mbarrier_initialised(self, barrier: Mbarrier, who: Actor) -> None:
        """A thread initialised a barrier; every use must be ordered after that."""

    def mbarrier_arrived(self, barrier: Mbarrier, who: Actor, count: int) -> None:
        """Threads or a unit arrive in the barrier's current phase, which may complete next."""

    def mbarrier_bytes(self, barrier: Mbarrier, who: Actor, size: int) -> None:
        """A unit's bytes have arrived in the barrier's current phase, which may complete next."""

    def mbarrier_completed(self, barrier: Mbarrier) -> None:
        """Phase ``barrier.phase`` is complete; the next one starts."""

    def mbarrier_waited(self, w: Warp, mask: int, barrier: Mbarrier, at: int) -> None:
        """A wait of lanes for the phase before ``barrier.phase`` succeeded (no phase is complete while that is 0)."""

    def mbarrier_refused(self, w: Warp, mask: int, barrier: Mbarrier, at: int) -> None:
        """A wait of lanes for the phase ``barrier.phase`` returned False, and the lanes continue."""

    def barrier_arrived(self, w: Warp, mask: int, barrier: NamedBarrier | ClusterBarrier, at: int) -> None:
        """Lanes arrive at a named or cluster barrier, whose round may complete next."""

    def barrier_completed(self, barrier: NamedBarrier | ClusterBarrier) -> None:
        """The round of a barrier is complete."""

    def barrier_passed(self, w: Warp, mask: int, barrier: NamedBarrier | ClusterBarrier, at: int) -> None:
        """Lanes leave a named or cluster barrier after their round was complete."""
