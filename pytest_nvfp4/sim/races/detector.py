"""The race detector: a monitor that orders every access of a launch by happens-before.

Rules, with where they come from:

- An access is checked against the past of whoever *issues* it. The operations of a tcgen05 pipe follow each other
  (PTX ISA, "tcgen05 memory consistency model", pipelined instructions); copies do not, even on one mbarrier.
- Edges: mbarrier arrive (release) to a wait that holds (acquire), unless ``.relaxed``; complete-tx at a barrier makes
  the copy's data visible to who waits for the phase; ``tcgen05.commit`` arrives when all before it in the pipe is done;
  named barriers and the cluster barrier; the ``wait_group`` of ``cp.async``, of bulk stores (``.read``: of their reads)
  and of ``wgmma``; ``tcgen05.wait::st``; release and acquire patterns through memory (``sync_variables``).
- What one warp does is in program order; lanes that race inside one instruction are found by ``memory``.
- The async proxy sees a generic write only behind a ``fence.proxy.async`` ("Proxies"); that it lacks behind a
  ``cp.async`` is a warning, because official kernels do without. A generic read before an
  asynchronous write needs none, and neither does an asynchronous write that was waited for: no kernel of NVIDIA's has
  one there.
- Work of different streams is ordered by what the host does (``host_order``).
- What a launch that may overlap the one before it touches is ordered by ``griddepcontrol.wait`` (``overlap``).
- ``mbarrier.init`` happens before every other use of the barrier.
- Not errors, because official kernels do without: ``tcgen05.wait::ld``, tcgen05's fences around the synchronisation of
  threads (the table in ``tensor_order``), and the ``fence.mbarrier_init`` or proxy fence behind ``mbarrier.init``. With
  ``warnings`` they are told.
"""

from __future__ import annotations

from pytest_nvfp4.sim.races.copy_hooks import CopyHooks
from pytest_nvfp4.sim.races.launch import LaunchRaces
from pytest_nvfp4.sim.races.map_hooks import MapHooks
from pytest_nvfp4.sim.races.overlap import Overlap
from pytest_nvfp4.sim.races.sync_hooks import SyncHooks
from pytest_nvfp4.sim.races.tensor_hooks import TensorHooks
from pytest_nvfp4.sim.run.grid import Grid

__all__ = ["Detector"]


class Detector(SyncHooks, MapHooks, CopyHooks, TensorHooks):
    """The monitor (``sim.monitor.Monitor``). What it knows lies with the launch, its clusters, CTAs and warps.

    Args:
        warnings: Tell also what official kernels leave out.

    Attributes:
        followed: Whether somebody compares launches of different streams (``host_order``).
    """

    def __init__(self, *, warnings: bool = False) -> None:
        super().__init__(warnings=warnings)
        self.followed = False
        self._last: dict[int, LaunchRaces] = {}

    def launched(self, grid: Grid, *, stream: int = 0, early: bool = False) -> bool:
        """Make the launch's part before processes fork."""
        races = grid.unit(LaunchRaces)
        for region in grid.machine.memory:
            region.read_at = -1
        before, self._last[stream] = self._last.get(stream), races
        if not early or before is None or not before.memory.sets.accesses:
            return False
        races.overlap = Overlap(before, races)
        return True
