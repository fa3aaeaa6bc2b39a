"""A CTA and its cluster: what their warps share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.shared import RANK_SHIFT, SharedMemory
from pytest_nvfp4.sim.run.units import HasUnits

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.grid import Grid
    from pytest_nvfp4.sim.run.scheduler import Scheduler
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["Cluster", "Cta"]

Dim3 = tuple[int, int, int]


class Cluster(HasUnits):
    """The CTAs that are scheduled together. ``index`` is ``%clusterid``, ``shape`` ``%cluster_nctaid``."""

    def __init__(self, launch: Grid, index: Dim3, shape: Dim3) -> None:
        super().__init__()
        self.launch = launch
        self.index = index
        self.shape = shape
        self.ctas: list[Cta] = []
        """By rank (``%cluster_ctarank``: x fastest)."""

    def dissolve(self) -> None:
        """Cut the ties between the parts of an ended cluster, so that its memory is free at once.

        Nothing may be under way any more, and nobody may ask about it later. A unit of a CTA with a method
        ``dissolve()`` has it called.
        """
        for cta in self.ctas:
            for unit in cta.units.values():
                let_go = getattr(unit, "dissolve", None)
                if let_go is not None:
                    let_go()
            for warp in cta.warps:
                warp.units.clear()
                warp.groups.clear()
                del warp.current  # its group knows the warp
            cta.units.clear()
            cta.warps.clear()
            del cta.shared  # the launch may go on to know the CTA, as the one that changed a tensor map
        self.units.clear()
        self.ctas.clear()


class Cta(HasUnits):
    """One CTA. A unit of its own with a method ``at_exit()`` has it called when its last warp has ended.

    Attributes:
        launch: The grid it belongs to; ``launch.machine`` is the device.
        cluster, rank: Its cluster and its number there.
        index, place: ``%ctaid`` and ``%cluster_ctaid``.
        shared: Its shared memory.
        warps: Its warps.
    """

    def __init__(
        self, cluster: Cluster, rank: int, index: Dim3, *, place: Dim3, shared_bytes: int, scheduler: Scheduler
    ) -> None:
        super().__init__()
        self.launch = cluster.launch
        self.cluster = cluster
        self.rank = rank
        self.index = index
        self.place = place
        self.scheduler = scheduler
        self.shared = SharedMemory(shared_bytes, rank=rank)
        self.warps: list[Warp] = []
        self.exited = 0
        """Warps that have ended."""

    @property
    def linear(self) -> int:
        """Number in the grid, x fastest."""
        x, y, _ = self.launch.shape
        return self.index[0] + x * (self.index[1] + y * self.index[2])

    def peer(self, rank: int, *, what: str) -> Cta:
        """The CTA of a rank in the cluster. Raises Fault if there is none, or if it has exited."""
        ctas = self.cluster.ctas
        if not 0 <= rank < len(ctas):
            raise Fault("cluster", f"{what}: CTA rank {rank} of a cluster of {len(ctas)}")
        other = ctas[rank]
        if other is not self and other.exited == len(other.warps):
            raise Fault(
                "cluster",
                f"{what}: shared memory of CTA rank {rank}, which has exited",
                hint="a CTA must stay until its peers have stopped using its shared memory (barrier.cluster)",
            )
        return other

    def owner_of(self, address: int, *, what: str) -> Cta:
        """The CTA whose shared memory a shared::cluster address names. Raises Fault."""
        return self.peer(address >> RANK_SHIFT, what=what)
