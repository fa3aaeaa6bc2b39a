"""Interfaces through which a launch reports events to the monitor (``machine.monitor``) and tracer (``machine.trace``).

The monitor orders memory accesses. Its protocols for the tensor core and ``wgmma`` are beside their units; those for
synchronisation, memory and copies are here. Each method is called while the instruction executes, before other warps
can observe its effect. The tracer receives turns and phases.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.memory.access import ATOMIC, READ, WRITE
from pytest_nvfp4.sim.tcgen05.monitor import TensorMonitor
from pytest_nvfp4.sim.wgmma.monitor import WgmmaMonitor

if TYPE_CHECKING:
    from pytest_nvfp4.sim.memory.globals import Region
    from pytest_nvfp4.sim.memory.pattern import Pattern
    from pytest_nvfp4.sim.memory.shared import SharedMemory
    from pytest_nvfp4.sim.run.cta import Cta
    from pytest_nvfp4.sim.run.grid import Grid
    from pytest_nvfp4.sim.run.warp import Warp
    from pytest_nvfp4.sim.sync.cluster import ClusterBarrier
    from pytest_nvfp4.sim.sync.mbarrier import Actor, Mbarrier
    from pytest_nvfp4.sim.sync.named import NamedBarrier
    from pytest_nvfp4.sim.tma.box import TmaBox

__all__ = ["ATOMIC", "READ", "WRITE", "CopyMonitor", "MemoryMonitor", "Monitor", "SyncMonitor", "Tracer"]


class CopyTarget(NamedTuple):
    """A CTA that receives a copy's data, their offset in its shared memory, and the barrier that counts them."""

    cta: Cta
    offset: int
    barrier: Mbarrier


class SyncMonitor(Protocol):
    """Synchronisation events.

    The monitor derives the order of memory accesses from them: an arrival releases, a wait acquires, and a phase or
    round joins what its arrivals released (PTX ISA, "Memory Consistency Model", and the page of each instruction).
    """

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


class MemoryMonitor(Protocol):
    """Accesses of the warps themselves.

    ``where`` is the pattern of the lanes' items, the lowest at ``index`` or ``offset``, or the size of a single item.
    ``mask`` is the lanes of an access to a single item, 0 for a pattern.
    """

    def shared_accessed(
        self, w: Warp, at: int, shared: SharedMemory, index: int, where: Pattern | int, kind: int, mask: int = 0
    ) -> None:
        """A warp reads, writes or updates shared memory of its own CTA or of another CTA of the cluster."""

    def global_accessed(
        self, w: Warp, at: int, region: Region, offset: int, where: Pattern | int, kind: int, mask: int = 0
    ) -> None:
        """A warp reads, writes or updates global memory."""

    doubts: list[Any]
    """Possible races whose verdict depends on the bytes of the store that was just reported."""

    def global_written(self) -> None:
        """The bytes of that store are written; called only if there are doubts."""

    def async_copied(
        self, w: Warp, at: int, index: int, target: Pattern, sources: Sequence[tuple[Region, int, Pattern | int]]
    ) -> None:
        """A warp issued a ``cp.async`` to its CTA's shared memory."""

    def async_committed(self, w: Warp) -> None:
        """A warp executed ``cp.async.commit_group``."""

    def async_waited(self, w: Warp, allowed: int | None) -> None:
        """A wait for all but the ``allowed`` youngest groups succeeded (None: for all copies, committed or not)."""

    def async_arrives(self, w: Warp, at: int, barrier: Mbarrier) -> None:
        """``cp.async.mbarrier.arrive``: the barrier receives the arrival when the copies issued so far are complete."""

    def stored_async(self, w: Warp, at: int, shared: SharedMemory, index: int, size: int, barrier: Mbarrier) -> None:
        """``st.async`` or ``red.async``: bytes of shared memory change and are then counted at the barrier."""


class CopyMonitor(Protocol):
    """Bulk copies and tensor copies."""

    def copy_in(
        self, w: Warp, at: int, targets: Sequence[CopyTarget], size: int, order: NDArray[np.intp] | None = None,
        box: TmaBox | None = None,
    ) -> None:  # fmt: skip
        """A copy writes ``size`` bytes of shared memory from each target's index, counted at the target's barrier.

        ``order`` is the 16-byte units that are written, if not all; ``box`` is the first box that a tensor copy reads.
        """

    def copy_read(self, w: Warp, at: int, barrier: Mbarrier, index: int, size: int) -> None:
        """A copy to another CTA reads the own shared memory; it completes with the barrier's phase."""

    def copy_out(self, w: Warp, at: int, lane: int, index: int, size: int) -> None:
        """A bulk store of a thread reads shared memory."""

    def global_copied_in(self, w: Warp, at: int, barrier: Mbarrier, boxes: Sequence[TmaBox]) -> None:
        """A tensor copy reads global memory; it completes with the barrier's phase."""

    def global_read_in(self, w: Warp, at: int, barrier: Mbarrier, region: Region, offset: int, size: int) -> None:
        """A bulk copy reads global memory; it completes with the barrier's phase."""

    def global_copied_out(self, w: Warp, at: int, lane: int, boxes: Sequence[TmaBox], reduces: bool) -> None:
        """A tensor store or reduction of a thread writes global memory."""

    def global_written_out(
        self, w: Warp, at: int, lane: int, region: Region, offset: int, size: int, reduces: bool
    ) -> None:
        """A bulk store or reduction of a thread writes global memory."""

    def bulk_commit(self, w: Warp, mask: int, at: int) -> None:
        """Lanes executed ``cp.async.bulk.commit_group``."""

    def bulk_wait(self, w: Warp, mask: int, at: int, allowed: int, read: bool) -> None:
        """A ``cp.async.bulk.wait_group`` of lanes succeeded."""

    def map_changed(self, w: Warp, mask: int, at: int, address: int, shared: bool) -> None:
        """A field of a tensor map was replaced in place, in global memory or in the own shared memory."""

    def map_copied(self, w: Warp, mask: int, at: int, index: int, address: int) -> None:
        """A tensor map was copied from the own shared memory to global memory."""

    def map_used(self, w: Warp, at: int, lane: int, address: int) -> None:
        """The tensor store of a thread that was just reported uses the tensor map at an address."""


class Monitor(SyncMonitor, TensorMonitor, WgmmaMonitor, MemoryMonitor, CopyMonitor, Protocol):
    """All events that the race detector receives."""

    def launched(self, grid: Grid, *, stream: int = 0, early: bool = False) -> bool:
        """A launch begins; ``early`` if the previous one on its stream may still run.

        Returns:
            Whether the monitor checks the overlap of the two launches.
        """


class Tracer(Protocol):
    """Events that the recorder of a timeline receives (``run.trace``)."""

    def begin(self, grid: Grid) -> None:
        """A launch starts."""

    def end(self) -> None:
        """The launch ended or was stopped."""

    def turn_begins(self, warp: Warp) -> None:
        """The turn of a warp begins."""

    def turn_ends(self, warp: Warp) -> None:
        """The turn of a warp ends: it waits, has ended, or another warp is next."""

    def phase(self, cta: Cta, key: Hashable, name: str) -> None:
        """A barrier of a CTA completed a phase; ``key`` identifies the barrier, ``name`` is for display."""
