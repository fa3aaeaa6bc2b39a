"""CTAs and clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.shared import RANK_SHIFT, SharedMemory
from pytest_nvfp4.sim.run.units import HasUnits

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.grid import Grid
    from pytest_nvfp4.sim.run.scheduler import Scheduler
    from pytest_nvfp4.sim.run.warp import Warp

Dim3 = tuple[int, int, int]


class Cluster(HasUnits):
    """The CTAs that are scheduled together. ``index`` is ``%clusterid``, ``shape`` ``%cluster_nctaid``."""

    def __init__(self, launch: Grid, index: Dim3, shape: Dim3) -> None:
        super().__init__()
        self.launch = launch
        self.index = index
        self.shape = shape
        self.ctas: list[Cta] = []
        """CTAs by rank (``%cluster_ctarank``: x fastest)."""

    def dissolve(self) -> None:
        """Break the reference cycles of an ended cluster, so that its memory is freed at once.

        No work may be in flight, and no code may use the cluster afterwards.
        """
        for cta in self.ctas:
            cta.call_units("dissolve")
            for warp in cta.warps:
                warp.units.clear()
                warp.groups.clear()
                del warp.current  # a group refers to its warp
            cta.units.clear()
            cta.warps.clear()
            del cta.shared  # the launch may keep a reference to the CTA, as the writer of a tensor map
        self.units.clear()
        self.ctas.clear()


class Cta(HasUnits):
    """One CTA.

    Attributes:
        launch: Its grid; ``launch.machine`` is the device.
        cluster, rank: Its cluster and its rank there.
        index, place: ``%ctaid`` and ``%cluster_ctaid``.
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
        """Number of warps that have ended."""

    @property
    def linear(self) -> int:
        """Linear index in the grid, x fastest."""
        x, y, _ = self.launch.shape
        return self.index[0] + x * (self.index[1] + y * self.index[2])

    def peer(self, rank: int, *, what: str) -> Cta:
        """Return the CTA of a rank in the cluster. Raises Fault if there is none, or if it has exited."""
        ctas = self.cluster.ctas
        if not 0 <= rank < len(ctas):
            raise Fault("cluster", f"{what}: CTA rank {rank} of a cluster of {len(ctas)}")
        other = ctas[rank]
        if other is not self and other.exited == len(other.warps):
            raise Fault(
                "cluster",
                f"{what}: shared memory of CTA rank {rank}, which has exited",
                # PTX ISA, "mapa" and "barrier.cluster": shared memory of a CTA lives as long as the CTA.
                hint="a CTA must not exit before its peers have finished with its shared memory (barrier.cluster)",
            )
        return other

    def owner_of(self, address: int, *, what: str) -> Cta:
        """Return the CTA whose shared memory contains a shared::cluster address. Raises Fault."""
        return self.peer(address >> RANK_SHIFT, what=what)
