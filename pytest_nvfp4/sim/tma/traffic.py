"""Which 32-byte sectors of global memory the loads of a launch touched, each counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.tma.box import TmaBox
from pytest_nvfp4.sim.tma.tile import TmaTile

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.grid import Grid

__all__ = ["SECTOR", "TouchedSectors"]

SECTOR = 32
"""Bytes of a sector, by address."""


class TouchedSectors:
    """Bitmap of touched sectors of each region: ``launch.unit(TouchedSectors)``.

    Processes that share a launch tell each other their bitmaps (see ``run.parallel``).
    """

    def __init__(self, launch: Grid) -> None:
        self.launch = launch
        self.maps: dict[int, NDArray[np.bool_]] = {}
        """By the region's start address: by sector, from the one that holds the first byte."""
        self._whole: set[tuple[int, TmaTile]] = set()
        """Whole boxes that were noted before, by address: tiles are loaded by many CTAs."""
        self._patterns: dict[tuple[TmaTile, int], NDArray[np.intp]] = {}
        """The sectors of a whole box, from that of its first byte, by the byte's place in its sector."""

    def touch(self, box: TmaBox) -> None:
        """Note the sectors of a box that lie inside the tensor."""
        region = box.region
        if region is None:
            return
        if box.cut is not None:
            offsets, size = box.rows()
            self.touch_rows(region, offsets, size)
            return
        key = (region.start + box.offset, box.tile)
        if key in self._whole:
            return
        self._whole.add(key)
        lead = region.start % SECTOR + box.offset
        phase = lead % SECTOR
        pattern = self._patterns.get((box.tile, phase))
        if pattern is None:
            pattern = _sectors(box.tile.row_offsets + phase, box.tile.inner)
            self._patterns[box.tile, phase] = pattern
        self._note(region, pattern + lead // SECTOR)

    def touch_rows(self, region: Region, offsets: NDArray[np.intp], size: int) -> None:
        """Note the sectors of runs of ``size`` bytes at offsets of a region."""
        if size:
            self._note(region, _sectors(offsets + region.start % SECTOR, size))

    def _note(self, region: Region, sectors: NDArray[np.intp]) -> None:
        bitmap = self.maps.get(region.start)
        if bitmap is None:
            lead = region.start % SECTOR
            bitmap = self.maps[region.start] = np.zeros(-(-(lead + region.size) // SECTOR), np.bool_)
        bitmap[sectors] = True

    def part(self) -> dict[int, tuple[int, bytes]]:
        """What a forked process tells: by region, the number of sectors and the packed bitmap."""
        return {start: (one.size, np.packbits(one).tobytes()) for start, one in self.maps.items()}

    def absorb(self, told: dict[int, tuple[int, bytes]]) -> None:
        """Add what another process told."""
        for start, (size, packed) in told.items():
            theirs = np.unpackbits(np.frombuffer(packed, np.uint8), count=size).astype(np.bool_)
            mine = self.maps.get(start)
            self.maps[start] = theirs if mine is None else mine | theirs

    def at_exit(self) -> None:
        """The launch has ended."""
        self.launch.counters["tma.load.unique_bytes"] = self.total()

    def total(self) -> int:
        """Bytes of all sectors touched."""
        return SECTOR * sum(int(one.sum()) for one in self.maps.values())


def _sectors(starts: NDArray[np.intp], size: int) -> NDArray[np.intp]:
    """The different sectors of runs of ``size`` bytes."""
    low = starts // SECTOR
    high = (starts + size - 1) // SECTOR
    wide = int((high - low).max()) + 1
    found: NDArray[np.intp] = np.unique(np.minimum(low[:, None] + np.arange(wide), high[:, None]))
    return found
