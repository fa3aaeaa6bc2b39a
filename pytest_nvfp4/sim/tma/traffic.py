"""32-byte sectors of global memory that the copies of a launch read: how many of them, and how many different ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.tma.box import TmaBox
from pytest_nvfp4.sim.tma.tile import TmaTile

SECTOR = 32
"""Bytes of a sector; sectors start at multiples of it."""


class TouchedSectors:
    """Bitmaps of the sectors read, by region: ``launch.unit(TouchedSectors)``.

    Processes that share a launch exchange their bitmaps (see ``run.parallel``). At the launch's end they set the
    counter ``tma.load.unique_bytes``.

    Attributes:
        maps: Bitmap by the region's start address; item 0 is the sector that holds the region's first byte.
    """

    def __init__(self, launch: Grid) -> None:
        self.launch = launch
        self.maps: dict[int, NDArray[np.bool_]] = {}
        self._whole: set[tuple[int, TmaTile]] = set()
        """Whole boxes already counted, by address: many CTAs load the same one."""
        self._patterns: dict[tuple[TmaTile, int], tuple[NDArray[np.intp], int]] = {}
        """Sectors of a whole box relative to the first, by the first byte's offset in its sector, and their sum over
        the rows."""

    def touch(self, box: TmaBox) -> None:
        """Mark the sectors of a box that lie inside the tensor."""
        region = box.region
        if region is None:
            return
        if box.cut is not None:
            offsets, size = box.rows()
            self.touch_rows(region, offsets, size)
            return
        key = (region.start + box.offset, box.tile)
        if key not in self._whole:
            self._whole.add(key)
            pattern, _, first = self._of_whole(region, box)
            self._mark(region, pattern + first)

    def count(self, box: TmaBox) -> int:
        """Return the sectors of a box inside the tensor, summed over its rows, without marking them."""
        region = box.region
        if region is None:
            return 0
        if box.cut is None:
            return self._of_whole(region, box)[1]
        offsets, size = box.rows()
        return _sectors(offsets + region.start % SECTOR, size)[1] if size else 0

    def _of_whole(self, region: Region, box: TmaBox) -> tuple[NDArray[np.intp], int, int]:
        """Return the sectors of a whole box relative to the first, their sum over the rows, and the first one."""
        lead = region.start % SECTOR + box.offset
        phase = lead % SECTOR
        known = self._patterns.get((box.tile, phase))
        if known is None:
            known = self._patterns[box.tile, phase] = _sectors(box.tile.row_offsets + phase, box.tile.inner)
        return *known, lead // SECTOR

    def touch_rows(self, region: Region, offsets: NDArray[np.intp], size: int) -> int:
        """Mark the sectors of runs of ``size`` bytes at offsets of a region; return their sum over the runs."""
        if not size:
            return 0
        sectors, count = _sectors(offsets + region.start % SECTOR, size)
        self._mark(region, sectors)
        return count

    def _mark(self, region: Region, sectors: NDArray[np.intp]) -> None:
        bitmap = self.maps.get(region.start)
        if bitmap is None:
            lead = region.start % SECTOR
            bitmap = self.maps[region.start] = np.zeros(-(-(lead + region.size) // SECTOR), np.bool_)
        bitmap[sectors] = True

    def part(self) -> dict[int, tuple[int, bytes]]:
        """Return this process's bitmaps: by region, the number of sectors and the packed bitmap."""
        return {start: (bitmap.size, np.packbits(bitmap).tobytes()) for start, bitmap in self.maps.items()}

    def absorb(self, part: dict[int, tuple[int, bytes]]) -> None:
        """Merge the bitmaps of another process."""
        for start, (size, packed) in part.items():
            bitmap = np.unpackbits(np.frombuffer(packed, np.uint8), count=size).astype(np.bool_)
            present = self.maps.get(start)
            self.maps[start] = bitmap if present is None else present | bitmap

    def at_exit(self) -> None:
        """Set the counter when the launch ends."""
        self.launch.counters["tma.load.unique_bytes"] = self.total()

    def total(self) -> int:
        """Return the bytes of all sectors read."""
        return SECTOR * sum(int(bitmap.sum()) for bitmap in self.maps.values())


def _sectors(starts: NDArray[np.intp], size: int) -> tuple[NDArray[np.intp], int]:
    """Return the unique sectors of runs of ``size`` bytes, and the sum of the sectors of each run."""
    low = starts // SECTOR
    high = (starts + size - 1) // SECTOR
    wide = int((high - low).max()) + 1
    sectors: NDArray[np.intp] = np.unique(np.minimum(low[:, None] + np.arange(wide), high[:, None]))
    return sectors, int((high - low + 1).sum())
