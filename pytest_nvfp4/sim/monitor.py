"""The monitor of a launch (``machine.monitor``): its events and their arguments.

The race detector (``races.detector``), the protocol log (``sync.protocol_log``) and the recorder of modelled times
(``model.recorder``) are monitors. An event is reported while the instruction executes, before other warps can observe
its effect; asynchronous work is reported when it is issued. The operations of a tcgen05 pipe execute in order, after
whatever was ordered before their issue.
"""

# ruff: noqa: ARG002 - the arguments of events that the base class ignores
from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.run.cta import Cluster, Cta
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.mbarrier import Actor, Mbarrier

if TYPE_CHECKING:
    from pytest_nvfp4.sim.memory.globals import Region
    from pytest_nvfp4.sim.memory.pattern import Pattern
    from pytest_nvfp4.sim.memory.shared import SharedMemory
    from pytest_nvfp4.sim.races.launch_overlap import Overlap
    from pytest_nvfp4.sim.run.grid import Grid
    from pytest_nvfp4.sim.tcgen05.copy_plan import CopyPlan
    from pytest_nvfp4.sim.tcgen05.mma_plan import MmaPlan
    from pytest_nvfp4.sim.tma.box import TmaBox
    from pytest_nvfp4.sim.wgmma.operation import WgmmaOperation
    from pytest_nvfp4.sim.wgmma.unit import Warpgroup


class CopyTarget(NamedTuple):
    """A CTA that receives a copy's data, their offset in its shared memory, and the barrier that counts them."""

    cta: Cta
    offset: int
    barrier: Mbarrier


class TmemBox(NamedTuple):
    """A rectangle of TMEM."""

    column: int
    columns: int
    lane: int
    lanes: int


@dataclass(frozen=True, slots=True, eq=False)
class PipeAccesses:
    """Memory that an operation of a pipe reads and writes in a CTA.

    Equal operations share one object in all CTAs, so that a monitor can cache by identity.

    Attributes:
        shared: Numbers of the 16-byte units of shared memory that are read (0 is the kernel's first), unique.
        reads, writes: Rectangles of TMEM.
    """

    shared: NDArray[np.intp]
    reads: tuple[TmemBox, ...]
    writes: tuple[TmemBox, ...]


class CtaAccesses(NamedTuple):
    """A CTA, and the memory that an operation reads and writes there."""

    cta: Cta
    accesses: PipeAccesses


class Monitor:
    """A monitor that ignores every event. ``w`` executes instruction ``at`` in the lanes of ``mask``.

    Attributes:
        follows_path: Whether compiled blocks append to ``Warp.path`` what a warp executes (``lower.compiler.Passage``).
        keeps_passed: Whether compiled blocks add to ``Warp.passed`` what a warp executes.
        without_data: Whether only what decides the course of a launch is executed (``lower.control_slice``), and no
            data are copied or multiplied. A monitor that sets it follows which bytes are unknown.
        storing: The memory to which a warp's store is being reported, if any.
        doubts: What is left to do when that store has written its bytes (``stored``).
    """

    follows_path: bool = False
    keeps_passed: bool = False
    without_data: bool = False

    def __init__(self) -> None:
        self.storing: NDArray[np.uint8] | None = None
        self.doubts: list[Callable[[], object]] = []

    # ---- launches ------------------------------------------------------------------------------------------------

    def launched(self, grid: Grid, *, stream: int = 0, overlap: Overlap | None = None, dependent: bool = False) -> bool:
        """Begin a launch, before processes fork. Return whether its order after the previous launch is checked.

        ``overlap``: what of the previous launch on its stream may be missing. ``dependent``: whether it is a
        programmatic dependent launch.
        """
        return False

    def cluster_started(self, cluster: Cluster) -> None:
        """Begin a cluster, whose CTAs and warps exist."""

    def grid_waited(self, w: Warp, mask: int, at: int) -> None:
        """Execute ``griddepcontrol.wait``."""

    def marked(self, w: Warp, at: int) -> None:
        """Execute a mark of the author (``sim.ptx.marks``)."""

    # ---- fences and barriers ---------------------------------------------------------------------------------------

    def fence(self, w: Warp, mask: int, kind: str, at: int) -> None:
        """Execute a fence of any kind, or a tcgen05 wait; ``kind`` is the opcode, of a fence without its root."""

    def warp_met(self, w: Warp, mask: int, at: int) -> None:
        """Execute ``bar.warp.sync``."""

    def mbarrier_initialised(self, barrier: Mbarrier, who: Actor) -> None:
        """Initialise an mbarrier."""

    def mbarrier_arrived(self, barrier: Mbarrier, who: Actor, count: int, lanes: int) -> None:
        """Count arrivals of the lanes of a warp, or of a unit."""

    def mbarrier_bytes(self, barrier: Mbarrier, who: Actor, size: int) -> None:
        """Count bytes that have arrived."""

    def mbarrier_completed(self, barrier: Mbarrier) -> None:
        """Complete a phase, before its number changes."""

    def mbarrier_waited(self, w: Warp, mask: int, barrier: Mbarrier, at: int) -> None:
        """Pass a wait for the phase completed last."""

    def mbarrier_refused(self, w: Warp, mask: int, barrier: Mbarrier, at: int) -> None:
        """Return False from a wait."""

    def barrier_arrived(self, w: Warp, mask: int, barrier: Any, at: int) -> None:
        """Arrive at a named barrier or at the cluster barrier."""

    def barrier_completed(self, barrier: Any) -> None:
        """Complete the round of such a barrier."""

    def barrier_passed(self, w: Warp, mask: int, barrier: Any, at: int) -> None:
        """Pass the wait of such a barrier."""

    # ---- copies --------------------------------------------------------------------------------------------------

    def copy_in(
        self, w: Warp, at: int, targets: Sequence[CopyTarget], size: int, order: NDArray[np.intp] | None = None,
        box: TmaBox | None = None,
    ) -> None:  # fmt: skip
        """Issue a copy to shared memory, which completes at the targets' barriers.

        ``order`` is the 16-byte units that are written, if not all; ``box`` is the first box that a tensor copy reads.
        """

    def copy_read(self, w: Warp, at: int, barrier: Mbarrier, index: int, size: int) -> None:
        """Read the own shared memory for a copy to another CTA, before ``copy_in``."""

    def global_copied_in(self, w: Warp, at: int, barrier: Mbarrier, boxes: Sequence[TmaBox]) -> None:
        """Read boxes of global memory for a tensor copy, after ``copy_in``."""

    def global_read_in(self, w: Warp, at: int, barrier: Mbarrier, region: Region, offset: int, size: int) -> None:
        """Read global memory for a bulk copy, after ``copy_in``."""

    def copy_out(self, w: Warp, at: int, lane: int, index: int, size: int) -> None:
        """Issue a bulk or tensor store, which reads shared memory."""

    def global_copied_out(self, w: Warp, at: int, lane: int, boxes: Sequence[TmaBox], reduces: bool) -> None:
        """Write boxes of global memory for a tensor store or reduction, after ``copy_out``."""

    def global_written_out(
        self, w: Warp, at: int, lane: int, region: Region, offset: int, size: int, reduces: bool
    ) -> None:
        """Write global memory for a bulk store or reduction, after ``copy_out``."""

    def bulk_commit(self, w: Warp, mask: int, at: int) -> None:
        """Execute ``cp.async.bulk.commit_group``."""

    def bulk_wait(self, w: Warp, mask: int, at: int, allowed: int, read: bool) -> None:
        """Pass ``cp.async.bulk.wait_group``."""

    def map_changed(self, w: Warp, mask: int, at: int, address: int, shared: bool) -> None:
        """Replace a field of a tensor map."""

    def map_copied(self, w: Warp, mask: int, at: int, index: int, address: int) -> None:
        """Copy a tensor map from shared to global memory."""

    def map_stored(self, w: Warp, at: int, lane: int, address: int) -> None:
        """Use a tensor map that may change for a store."""

    def map_loaded(self, w: Warp, at: int, address: int, targets: Sequence[CopyTarget]) -> None:
        """Use a tensor map that may change for a load."""

    def map_prefetched(self, w: Warp, at: int, address: int) -> None:
        """Use a tensor map that may change for a prefetch."""

    # ---- matrix instructions and TMEM ------------------------------------------------------------------------------

    def tensor_issued(
        self, w: Warp, at: int, queue: Hashable, touched: tuple[CtaAccesses, ...], plan: MmaPlan | CopyPlan
    ) -> None:
        """Issue an MMA or copy of a tcgen05 pipe."""

    def tensor_committed(self, w: Warp, at: int, queue: Hashable, barriers: tuple[Mbarrier, ...]) -> None:
        """Issue a ``tcgen05.commit``."""

    def tmem_accessed(self, w: Warp, at: int, boxes: tuple[TmemBox, ...], write: bool) -> None:
        """Execute ``tcgen05.ld`` or ``tcgen05.st``."""

    def tmem_allocated(self, w: Warp, at: int, column: int, count: int, *, pair: bool) -> None:
        """Allocate columns."""

    def tmem_freed(self, w: Warp, at: int, column: int, count: int) -> None:
        """Free columns."""

    def wgmma_fenced(self, w: Warp) -> None:
        """Execute ``wgmma.fence``."""

    def wgmma_issued(self, w: Warp, group: Warpgroup, operation: WgmmaOperation, at: int) -> None:
        """Issue a ``wgmma.mma_async`` in one warp."""

    def wgmma_waited(self, w: Warp, group: Warpgroup, done: int) -> None:
        """Pass a ``wgmma.wait_group``, which completes the first ``done`` operations of the warpgroup."""

    # ---- memory --------------------------------------------------------------------------------------------------

    def shared_accessed(
        self, w: Warp, at: int, shared: SharedMemory, index: int, where: Pattern | int, kind: int, mask: int = 0
    ) -> None:
        """Access shared memory (``memory.access``: READ, WRITE, ATOMIC)."""

    def global_accessed(
        self, w: Warp, at: int, region: Region, offset: int, where: Pattern | int, kind: int, mask: int = 0
    ) -> None:
        """Access global memory."""

    def stored(self) -> None:
        """Do what is in ``doubts``."""

    def async_copied(
        self, w: Warp, at: int, index: int, target: Pattern, sources: Sequence[tuple[Region, int, Pattern | int]]
    ) -> None:
        """Issue a ``cp.async``."""

    def async_committed(self, w: Warp) -> None:
        """Commit the ``cp.async`` of a warp as a group."""

    def async_waited(self, w: Warp, allowed: int | None) -> None:
        """Pass a wait for all but the ``allowed`` youngest groups of ``cp.async`` (None: for all copies)."""

    def async_arrives(self, w: Warp, at: int, barrier: Mbarrier) -> None:
        """Issue a ``cp.async.mbarrier.arrive``, before its arrivals are counted."""

    def stored_async(
        self, w: Warp, at: int, shared: SharedMemory, index: int, where: Pattern, barrier: Mbarrier
    ) -> None:
        """Issue a ``st.async`` or ``red.async``."""
