"""The recorder of launches without data: nothing is copied or multiplied that no control flow depends on.

What a warp does follows from parameters, constants, tables that the host wrote, and values made of these. A simulation
without data (``sim.lower.control_slice``) executes only the instructions that such values decide by. This recorder
follows which bytes of memory are unknown, because their data were not copied or computed:

- of shared memory, what tensor copies brought, what bulk copies and ``cp.async`` brought from unknown global memory,
  and what was stored from unknown values;
- of global memory, the allocations whose content the job left out (``Region.unknown``), those that a kernel has
  written unknown values to, and after a launch of which clusters were left out, all that it wrote.

A load of unknown bytes whose result may reach a guard, a branch, an address, or an operand of a barrier, copy or matrix
descriptor raises a Fault ``needs-data``: the call must be simulated with data. Any other load makes the values unknown
that descend from it. A byte is unknown if it may be; a store of known values makes bytes of shared memory known again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.model.recorder import Recorder
from pytest_nvfp4.sim.fault import needs_data
from pytest_nvfp4.sim.lower.control_slice import ControlSlice
from pytest_nvfp4.sim.memory.access import READ, WRITE
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.memory.shared import SharedMemory
from pytest_nvfp4.sim.monitor import CopyTarget
from pytest_nvfp4.sim.run.cta import Cluster
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.mbarrier import Mbarrier
from pytest_nvfp4.sim.tma.box import TmaBox

if TYPE_CHECKING:
    from pytest_nvfp4.sim.races.launch_overlap import Overlap

_MAP_BYTES = 128


class _Unknown:
    """What is unknown to one cluster.

    Attributes:
        loads: Warps and their loads that have returned unknown bytes.
    """

    def __init__(self, _cluster: Cluster) -> None:
        self._bytes: dict[SharedMemory, NDArray[np.bool_]] = {}
        self.loads: set[tuple[Warp, int]] = set()

    def of(self, shared: SharedMemory) -> NDArray[np.bool_]:
        """Return whether each byte of a CTA's shared memory is unknown."""
        found = self._bytes.get(shared)
        if found is None:
            found = self._bytes[shared] = np.zeros(shared.data.size, np.bool_)
        return found


class UnknownRegions:
    """The regions that a launch has made unknown: ``grid.unit(UnknownRegions)``, shared by forked processes.

    The tensor maps that the launch has copied to an unknown region are known until unknown values are stored there.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._starts: set[int] = set()
        self._maps: dict[int, set[int]] = {}

    def add(self, region: Region) -> None:
        """Make a region unknown."""
        region.unknown = True
        self._starts.add(region.start)
        self._maps.pop(region.start, None)

    def map_copied(self, address: int) -> None:
        """Note that a known tensor map was copied to an address."""
        region = self._grid.machine.memory.find(address)
        if region is not None:
            self._maps.setdefault(region.start, set()).add(address)

    def demand_map(self, address: int) -> None:
        """Raise Fault if the tensor map at an address is unknown."""
        region = self._grid.machine.memory.find(address)
        if region is not None and region.unknown and address not in self._maps.get(region.start, ()):
            raise needs_data(f"uses a tensor map in {region.name}, which holds unknown data")

    def part(self) -> frozenset[int]:
        """Return the addresses of the regions."""
        return frozenset(self._starts)

    def absorb(self, part: frozenset[int]) -> None:
        """Add the regions of another process."""
        for region in self._grid.machine.memory:
            if region.start in part:
                self.add(region)


class DatalessRecorder(Recorder):
    """A recorder of launches without data (see the module)."""

    without_data = True

    def __init__(self, *, sampled: bool = False) -> None:
        super().__init__(sampled=sampled)
        self._targets: Sequence[CopyTarget] = ()

    def launched(self, grid: Grid, *, stream: int = 0, overlap: Overlap | None = None, dependent: bool = False) -> bool:
        """Begin the record of a launch."""
        grid.unit(UnknownRegions)
        return super().launched(grid, stream=stream, overlap=overlap, dependent=dependent)

    # ---- copies --------------------------------------------------------------------------------------------------

    def copy_in(
        self, w: Warp, at: int, targets: Sequence[CopyTarget], size: int, order: NDArray[np.intp] | None = None,
        box: TmaBox | None = None,
    ) -> None:  # fmt: skip
        """Make the target unknown, until ``global_read_in`` says that known bytes come."""
        super().copy_in(w, at, targets, size, order, box)
        self._targets = targets
        for cta, offset, _ in targets:
            cta.cluster.unit(_Unknown).of(cta.shared)[offset : offset + size] = True

    def global_read_in(self, w: Warp, at: int, barrier: Mbarrier, region: Region, offset: int, size: int) -> None:
        """Make the target of a bulk copy known if the source is."""
        super().global_read_in(w, at, barrier, region, offset, size)
        if not region.unknown:
            for cta, start, _ in self._targets:
                cta.cluster.unit(_Unknown).of(cta.shared)[start : start + size] = False

    def global_copied_out(self, w: Warp, at: int, lane: int, boxes: Sequence[TmaBox], reduces: bool) -> None:
        """Make the target unknown."""
        super().global_copied_out(w, at, lane, boxes, reduces)
        for box in boxes:
            if box.region is not None:
                self._wrote(w, box.region)

    def global_written_out(
        self, w: Warp, at: int, lane: int, region: Region, offset: int, size: int, reduces: bool
    ) -> None:
        """Make the target unknown."""
        super().global_written_out(w, at, lane, region, offset, size, reduces)
        self._wrote(w, region)

    def async_copied(
        self, w: Warp, at: int, index: int, target: Pattern, sources: Sequence[tuple[Region, int, Pattern | int]]
    ) -> None:
        """Make the target unknown if a source may be."""
        super().async_copied(w, at, index, target, sources)
        _mark(self._unknown(w, w.cta.shared), index, target, any(region.unknown for region, _, _ in sources))

    def map_copied(self, w: Warp, mask: int, at: int, index: int, address: int) -> None:
        """Demand that the map is known."""
        super().map_copied(w, mask, at, index, address)
        if self._unknown(w, w.cta.shared)[index : index + _MAP_BYTES].any():
            raise needs_data("copies a tensor map of unknown bytes")
        w.cta.launch.unit(UnknownRegions).map_copied(address)

    def map_stored(self, w: Warp, at: int, lane: int, address: int) -> None:
        """Demand that the map is known."""
        super().map_stored(w, at, lane, address)
        w.cta.launch.unit(UnknownRegions).demand_map(address)

    def map_loaded(self, w: Warp, at: int, address: int, targets: Sequence[CopyTarget]) -> None:
        """Demand that the map is known."""
        super().map_loaded(w, at, address, targets)
        w.cta.launch.unit(UnknownRegions).demand_map(address)

    def map_prefetched(self, w: Warp, at: int, address: int) -> None:
        """Demand that the map is known."""
        super().map_prefetched(w, at, address)
        w.cta.launch.unit(UnknownRegions).demand_map(address)

    # ---- memory of lanes -----------------------------------------------------------------------------------------

    def shared_accessed(
        self, w: Warp, at: int, shared: SharedMemory, index: int, where: Pattern | int, kind: int, mask: int = 0
    ) -> None:
        """Follow what is read and written."""
        super().shared_accessed(w, at, shared, index, where, kind, mask)
        unknown = self._unknown(w, shared)
        if kind != WRITE and _any(unknown, index, where):
            self._read(w, at, "shared memory")
        if kind != READ:
            value = self._stored(w, at)
            if value or kind == WRITE:
                _mark(unknown, index, where, value)

    def global_accessed(
        self, w: Warp, at: int, region: Region, offset: int, where: Pattern | int, kind: int, mask: int = 0
    ) -> None:
        """Follow what is read and written. Flags are followed with data only."""
        if at in self._launch(w).code.polls:
            self._read(w, at, region.name)
            raise needs_data(f"polls a flag in {region.name}")
        super().global_accessed(w, at, region, offset, where, kind, mask)
        if kind != WRITE and region.unknown:
            self._read(w, at, region.name)
        if kind != READ and self._stored(w, at):
            self._wrote(w, region)

    def stored_async(
        self, w: Warp, at: int, shared: SharedMemory, index: int, where: Pattern, barrier: Mbarrier
    ) -> None:
        """Make the target unknown if the value is."""
        super().stored_async(w, at, shared, index, where, barrier)
        if self._stored(w, at):
            _mark(self._unknown(w, shared), index, where, value=True)

    # ---- details -------------------------------------------------------------------------------------------------

    @staticmethod
    def _unknown(w: Warp, shared: SharedMemory) -> NDArray[np.bool_]:
        return w.cta.cluster.unit(_Unknown).of(shared)

    @staticmethod
    def _slice(w: Warp) -> ControlSlice:
        found = w.cta.launch.program.control
        assert found is not None
        return found

    def _read(self, w: Warp, at: int, what: str) -> None:
        """Follow a load of unknown bytes. Raises Fault if control flow may depend on them."""
        if at in self._slice(w).deciding:
            raise needs_data(f"reads unknown data of {what}, which control flow, an address or a barrier may depend on")
        w.cta.cluster.unit(_Unknown).loads.add((w, at))

    def _stored(self, w: Warp, at: int) -> bool:
        """Return whether the values that an instruction stores may be unknown."""
        loads = self._slice(w).stored.get(at, frozenset())
        if loads is None:
            return True
        known = w.cta.cluster.unit(_Unknown).loads
        return bool(known) and any((w, load) in known for load in loads)

    @staticmethod
    def _wrote(w: Warp, region: Region) -> None:
        w.cta.launch.unit(UnknownRegions).add(region)


def _any(unknown: NDArray[np.bool_], index: int, where: Pattern | int) -> bool:
    size = where if isinstance(where, int) else where.span
    if not unknown[index : index + size].any():
        return False
    return isinstance(where, int) or bool(unknown[_places(index, where)].any())


def _mark(unknown: NDArray[np.bool_], index: int, where: Pattern | int, value: bool) -> None:
    if isinstance(where, int):
        unknown[index : index + where] = value
    else:
        unknown[_places(index, where)] = value


def _places(index: int, where: Pattern) -> NDArray[np.int64]:
    places: NDArray[np.int64] = (where.offsets[:, None] + np.arange(where.size)).ravel() + index
    return places
