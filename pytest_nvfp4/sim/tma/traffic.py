"""Which 32-byte sectors of global memory the loads of a launch touched, each counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.tma.tile import Box

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.grid import Grid

__all__ = ["SECTOR", "Sectors"]

SECTOR = 32
"""Bytes of a sector, by address."""


class Sectors:
    """A bitmap a region: ``launch.unit(Sectors)``. Adds what is new to the counter ``tma.load.unique_bytes``.

    ``maps`` may be merged with those of another process by OR; ``total`` then counts again.
    """

    def __init__(self, launch: Grid) -> None:
        self.launch = launch
        self.maps: dict[int, NDArray[np.bool_]] = {}
        """By the region's start address: by sector, from the one that holds the first byte."""

    def _bitmap(self, region: Region) -> NDArray[np.bool_]:
        found = self.maps.get(region.start)
        if found is None:
            lead = region.start % SECTOR
            found = self.maps[region.start] = np.zeros(-(-(lead + region.size) // SECTOR), np.bool_)
        return found

    def touch(self, box: Box) -> None:
        """Note the sectors of a box that lie inside the tensor."""
        if box.region is None:
            return
        offsets, size = box.rows()
        self.touch_rows(box.region, offsets, size)

    def touch_rows(self, region: Region, offsets: NDArray[np.intp], size: int) -> None:
        """Note the sectors of runs of ``size`` bytes at offsets of a region."""
        bitmap = self._bitmap(region)
        lead = region.start % SECTOR
        low = (offsets + lead) // SECTOR
        high = (offsets + lead + size - 1) // SECTOR
        wide = int((high - low).max()) + 1
        index = np.minimum(low[:, None] + np.arange(wide), high[:, None]).ravel()
        fresh = np.unique(index[~bitmap[index]]).size
        if fresh:
            bitmap[index] = True
            self.launch.counters["tma.load.unique_bytes"] += fresh * SECTOR

    def total(self) -> int:
        """Bytes of all sectors touched."""
        return SECTOR * sum(int(one.sum()) for one in self.maps.values())
