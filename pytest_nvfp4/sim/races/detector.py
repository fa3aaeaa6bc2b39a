"""The race detector: a monitor that checks whether every two conflicting accesses of a launch are ordered.

Rules and their sources:

- An access is checked against the past of its issuer. The operations of a tcgen05 pipe are in order (PTX ISA, "tcgen05
  memory consistency model", pipelined instructions); copies are not, even on one mbarrier.
- Edges of the order: mbarrier arrive (release) to a wait that returns true (acquire), unless ``.relaxed``; complete-tx
  to a wait for the phase, for the copy's data; ``tcgen05.commit``, which arrives when everything before it in the pipe
  is complete; named barriers and the cluster barrier; ``wait_group`` of ``cp.async``, of bulk stores (``.read``: for
  their reads) and of ``wgmma``; ``tcgen05.wait::st``; release and acquire patterns through memory (``sync_variables``).
- The accesses of one warp are in program order; ``warp_lanes`` finds races between its lanes.
- The async proxy sees a generic write only behind a ``fence.proxy.async`` (PTX ISA, "Proxies"). Its absence behind a
  ``cp.async`` is a warning, because official kernels omit it. A generic read before an asynchronous write needs none,
  and neither does an asynchronous write that was waited for: no kernel of NVIDIA's has one there.
- ``host_order`` checks the order of work on different streams.
- ``griddepcontrol.wait`` orders the accesses of a launch that may overlap the previous one (``launch_overlap``).
- ``mbarrier.init`` must happen before every other use of the mbarrier.
- Reported only with ``warnings``, because official kernels omit them: ``tcgen05.wait::ld``, tcgen05's fences around
  the synchronisation of threads (table in ``tensor_order``), and the ``fence.mbarrier_init`` or proxy fence behind
  ``mbarrier.init``.
"""

from __future__ import annotations

from pytest_nvfp4.sim.races.copy_hooks import CopyHooks
from pytest_nvfp4.sim.races.launch import LaunchRaces
from pytest_nvfp4.sim.races.launch_overlap import LaunchOverlap, Overlap
from pytest_nvfp4.sim.races.map_hooks import MapHooks
from pytest_nvfp4.sim.races.sync_hooks import SyncHooks
from pytest_nvfp4.sim.races.tensor_hooks import TensorHooks
from pytest_nvfp4.sim.run.grid import Grid


class Detector(SyncHooks, MapHooks, CopyHooks, TensorHooks):
    """The monitor of a machine. Its state is attached to the launch, its clusters, CTAs and warps.

    Args:
        warnings: Whether to report also instructions that official kernels omit.

    Attributes:
        followed: Whether launches on different streams are compared (``host_order``).
    """

    keeps_passed = True

    def __init__(self, *, warnings: bool = False) -> None:
        super().__init__(warnings=warnings)
        self.followed = False
        self._last: dict[int, LaunchRaces] = {}

    def launched(self, grid: Grid, *, stream: int = 0, overlap: Overlap | None = None, dependent: bool = False) -> bool:  # noqa: ARG002
        """Make the state of a launch, before processes fork. Return whether its overlap is checked."""
        races = grid.unit(LaunchRaces)
        for region in grid.machine.memory:
            region.read_at = -1
        previous, self._last[stream] = self._last.get(stream), races
        if overlap is None or previous is None or not previous.memory.sets.accesses:
            return False
        races.overlap = LaunchOverlap(previous.grid, previous.memory, races.reporter, overlap)
        return True
