"""What a launch tells the machine's monitor (``machine.monitor``) and its tracer (``machine.trace``).

The monitor orders memory accesses: synchronisation, the tensor core and ``wgmma`` have their part of its protocol
beside their units; here are memory and the copies. Every call happens while the instruction runs, before other warps
can see its effect. The tracer hears of turns and phases. Where there is none of either, nothing is called.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.sync.monitor import SyncMonitor
from pytest_nvfp4.sim.tcgen05.monitor import TensorMonitor
from pytest_nvfp4.sim.wgmma.monitor import WgmmaMonitor

if TYPE_CHECKING:
    from pytest_nvfp4.sim.memory.globals import Region
    from pytest_nvfp4.sim.memory.pattern import Pattern
    from pytest_nvfp4.sim.memory.shared import SharedMemory
    from pytest_nvfp4.sim.run.cta import Cta
    from pytest_nvfp4.sim.run.grid import Grid
    from pytest_nvfp4.sim.run.warp import Warp
    from pytest_nvfp4.sim.sync.mbarrier import Mbarrier
    from pytest_nvfp4.sim.tma.box import TmaBox

__all__ = ["ATOMIC", "READ", "WRITE", "CopyMonitor", "CopyTarget", "MemoryMonitor", "Monitor", "Tracer"]

READ, WRITE, ATOMIC = range(3)
"""What an access does to its bytes."""


class CopyTarget(NamedTuple):
    """A CTA that receives a copy's data, their offset in its shared memory, and the barrier that counts them."""

    cta: Cta
    offset: int
    barrier: Mbarrier


class MemoryMonitor(Protocol):
    """The part of the monitor that hears of the warps' own accesses.

    ``where`` is the pattern of the lanes' items, the first at ``index`` or ``offset``; or a size, of one item there.
    """

    def shared_accessed(
        self, w: Warp, at: int, shared: SharedMemory, index: int, where: Pattern | int, kind: int, mask: int = 0
    ) -> None:
        """A warp reads, writes or updates shared memory, of its own CTA or of another of the cluster.

        ``mask`` is the lanes of an access to one item, 0 where it is not a lane's.
        """

    def global_accessed(
        self, w: Warp, at: int, region: Region, offset: int, where: Pattern | int, kind: int, mask: int = 0
    ) -> None:
        """A warp reads, writes or updates global memory; ``mask`` as for shared memory."""

    doubts: list[Any]
    """What the monitor wants to decide once the bytes of the store that it was just told of are written."""

    def global_written(self) -> None:
        """They are; called where there are doubts."""

    def async_copied(
        self, w: Warp, at: int, index: int, target: Pattern, sources: Sequence[tuple[Region, int, Pattern | int]]
    ) -> None:
        """A warp issued a ``cp.async`` to its CTA's shared memory."""

    def async_committed(self, w: Warp) -> None:
        """``cp.async.commit_group``."""

    def async_waited(self, w: Warp, allowed: int | None) -> None:
        """All but the ``allowed`` youngest groups are complete; None: everything, committed or not."""

    def async_arrives(self, w: Warp, at: int, barrier: Mbarrier) -> None:
        """``cp.async.mbarrier.arrive``: the barrier gets the arrival when the copies issued so far are complete."""

    def stored_async(self, w: Warp, at: int, shared: SharedMemory, index: int, size: int, barrier: Mbarrier) -> None:
        """``st.async`` and ``red.async``: bytes of shared memory change, and then complete at the barrier."""


class CopyMonitor(Protocol):
    """The part of the monitor that hears of bulk copies and tensor copies."""

    def copy_in(
        self, w: Warp, at: int, targets: Sequence[CopyTarget], size: int, order: NDArray[np.intp] | None = None,
        box: TmaBox | None = None,
    ) -> None:  # fmt: skip
        """Data go to shared memory, ``size`` bytes from each target's index; they complete at its barrier.

        ``order`` has the 16-byte units that are written, if not all; ``box`` what a tensor copy reads, its first box.
        """

    def copy_read(self, w: Warp, at: int, barrier: Mbarrier, index: int, size: int) -> None:
        """A copy to another CTA reads the own shared memory; it is complete when the barrier's phase is."""

    def copy_out(self, w: Warp, at: int, lane: int, index: int, size: int) -> None:
        """A bulk store of a thread reads shared memory."""

    def global_copied_in(self, w: Warp, at: int, barrier: Mbarrier, boxes: Sequence[TmaBox]) -> None:
        """A tensor copy reads global memory; it is complete when the barrier's phase is."""

    def global_read_in(self, w: Warp, at: int, barrier: Mbarrier, region: Region, offset: int, size: int) -> None:
        """A bulk copy reads global memory; it is complete when the barrier's phase is."""

    def global_copied_out(self, w: Warp, at: int, lane: int, boxes: Sequence[TmaBox], reduces: bool) -> None:
        """A tensor store or reduction of a thread writes global memory."""

    def global_written_out(
        self, w: Warp, at: int, lane: int, region: Region, offset: int, size: int, reduces: bool
    ) -> None:
        """A bulk store or reduction of a thread writes global memory."""

    def bulk_commit(self, w: Warp, mask: int, at: int) -> None:
        """``cp.async.bulk.commit_group``."""

    def bulk_wait(self, w: Warp, mask: int, at: int, allowed: int, read: bool) -> None:
        """``cp.async.bulk.wait_group`` held."""

    def map_changed(self, w: Warp, mask: int, at: int, address: int, shared: bool) -> None:
        """A field of a tensor map was replaced in place: in global memory, or in the own shared memory."""

    def map_copied(self, w: Warp, mask: int, at: int, index: int, address: int) -> None:
        """A tensor map was copied from the own shared memory to global memory."""

    def map_used(self, w: Warp, at: int, lane: int, address: int) -> None:
        """A tensor store of a thread, told of just before, uses the tensor map at an address."""


class Monitor(SyncMonitor, TensorMonitor, WgmmaMonitor, MemoryMonitor, CopyMonitor, Protocol):
    """All of it."""

    def launched(self, grid: Grid, *, stream: int = 0, early: bool = False) -> bool:
        """A launch begins; ``early``: the one before it on its stream may still run.

        Returns whether the monitor looks for what goes wrong then.
        """


class Tracer(Protocol):
    """What follows a launch over time (``run.trace``)."""

    def begin(self, grid: Grid) -> None:
        """A launch starts."""

    def end(self) -> None:
        """It ended, or was stopped."""

    def turn_begins(self, warp: Warp) -> None:
        """The scheduler lets a warp run."""

    def turn_ends(self, warp: Warp) -> None:
        """A warp waits, has ended, or had its turn."""

    def phase(self, cta: Cta, key: Hashable, name: str) -> None:
        """A barrier of a CTA completed a phase; ``key`` tells it from others, ``name`` is for people."""
