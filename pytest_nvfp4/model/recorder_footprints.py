"""The global memory of a launch in lines, and the footprints of its operations, each distinct one once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.model.recording import Footprint
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.tma.box import TmaBox
from pytest_nvfp4.sim.tma.tile import TmaTile

LINE = 128
"""Bytes of a line."""
_SECTOR = 32
NOWHERE = -1
"""Footprint of an operation that touches nothing, such as a box wholly outside its tensor."""


_Cut = tuple[tuple[int, int], ...]
"""The part of a box that lies inside its tensor: first and end by dimension."""


class LineNumbers:
    """Numbers of the lines of regions. Regions keep theirs from launch to launch."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], int] = {}
        self._next = 0

    def add(self, regions: Iterable[Region]) -> None:
        """Number the lines of new regions."""
        for region in regions:
            self.first(region)

    def first(self, region: Region) -> int:
        """Return the number of the line that holds a region's first byte."""
        key = (region.start, region.size)
        found = self._first.get(key)
        if found is None:
            found = self._first[key] = self._next
            self._next += (region.start % LINE + region.size) // LINE + 1
        return found


class _Lines:
    """Lines relative to the first, and the sectors touched in them."""

    __slots__ = ("lines", "sectors")

    def __init__(self, lines: NDArray[np.int32], sectors: int) -> None:
        self.lines = lines
        self.sectors = sectors


Place = tuple[int, bytes, int]
"""A footprint as plain data: its first line, the bytes of its lines relative to that, its sectors."""


class Footprints:
    """The distinct footprints of a launch.

    Args:
        numbers: Numbers of lines.
    """

    def __init__(self, numbers: LineNumbers) -> None:
        self._numbers = numbers
        self._shapes: dict[tuple[bytes, int], _Lines] = {}
        self._tiles: dict[tuple[TmaTile, _Cut | None, int], _Lines] = {}
        self._patterns: dict[tuple[object, ...], _Lines] = {}
        self._index: dict[tuple[int, _Lines], int] = {}
        self._boxes: dict[tuple[int, int, TmaTile, _Cut | None], int] = {}
        self._all: list[tuple[int, _Lines]] = []
        self._shape_numbers: dict[_Lines, int] = {}
        self._by_number: list[_Lines] = []
        self._starts: dict[int, int] = {}
        """By address of a region, the number of its first byte. Regions do not change during a launch."""

    def clear(self) -> None:
        """Forget all footprints."""
        self._index.clear()
        self._boxes.clear()
        self._all.clear()

    def boxes(self, boxes: Sequence[TmaBox]) -> int:
        """Return the footprint of a tensor copy."""
        if len(boxes) == 1:
            return self._box(boxes[0])
        parts = [self._all[number] for number in map(self._box, boxes) if number != NOWHERE]
        if not parts:
            return NOWHERE
        lines = np.unique(np.concatenate([first + part.lines for first, part in parts]))
        return self._intern(lines, sum(part.sectors for _, part in parts))

    def _box(self, box: TmaBox) -> int:
        region = box.region
        if region is None:
            return NOWHERE
        cut = None if box.cut is None else tuple([(part.start, part.stop) for part in box.cut])
        key = (region.start, box.offset, box.tile, cut)
        found = self._boxes.get(key)
        if found is None:
            byte = self._byte(region) + box.offset
            shape = self._tiles.get((box.tile, cut, byte % LINE))
            if shape is None:
                offsets, size = box.rows()
                shape = self._shape(*_touched(offsets - box.offset + byte % LINE, size))
                self._tiles[box.tile, cut, byte % LINE] = shape
            found = self._boxes[key] = self._add(byte // LINE, shape)
        return found

    def run(self, region: Region, offset: int, size: int) -> int:
        """Return the footprint of contiguous bytes."""
        return self._by_pattern(region, offset, ("run", size), np.zeros(1, np.intp), size) if size else NOWHERE

    def items(self, region: Region, offset: int, where: Pattern | int) -> tuple[int, int]:
        """Return the footprint of the lanes' items, and its sectors."""
        if isinstance(where, int):
            found = self.run(region, offset, where)
        else:
            found = self._by_pattern(region, offset, ("items", where), where.offsets, where.size)
        return found, self._all[found][1].sectors if found != NOWHERE else 0

    def several(self, parts: Sequence[tuple[Region, int, Pattern | int]]) -> tuple[int, int]:
        """Return the footprint of items of several regions, and its sectors."""
        found = [number for number, _ in (self.items(*part) for part in parts) if number != NOWHERE]
        if len(found) < 2:
            return (found[0], self._all[found[0]][1].sectors) if found else (NOWHERE, 0)
        places = [self._all[number] for number in found]
        lines = np.unique(np.concatenate([first + part.lines for first, part in places]))
        sectors = sum(part.sectors for _, part in places)
        return self._intern(lines, sectors), sectors

    def split(self, numbers: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first lines of footprints and the numbers of their shapes, -1 for ``NOWHERE``."""
        places = [self._all[number] if number != NOWHERE else None for number in numbers.tolist()]
        first = np.array([0 if place is None else place[0] for place in places], np.int64)
        shape = np.array([-1 if place is None else self._numbered(place[1]) for place in places], np.int64)
        return first, shape

    def _numbered(self, shape: _Lines) -> int:
        number = self._shape_numbers.setdefault(shape, len(self._by_number))
        if number == len(self._by_number):
            self._by_number.append(shape)
        return number

    def joined(self, first: NDArray[np.int64], shape: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the footprints with first lines and shapes: the inverse of ``split``, for new ones too."""
        most = len(self._by_number) + 1
        unique, where = np.unique(first * most + shape + 1, return_inverse=True)
        # Shape -1, that of NOWHERE, is number 0 here.
        added = [
            self._add(key // most, self._by_number[key % most - 1]) if key % most else NOWHERE
            for key in unique.tolist()
        ]
        numbers: NDArray[np.int32] = np.array(added, np.int32)[where.reshape(-1)]
        return numbers

    def places(self) -> list[Place]:
        """Return all footprints as plain data."""
        return [(first, shape.lines.tobytes(), shape.sectors) for first, shape in self._all]

    def absorb(self, places: Iterable[Place]) -> list[int]:
        """Add footprints of another process, and return their numbers here."""
        return [
            self._add(first, self._shape(np.frombuffer(lines, np.int32), sectors)) for first, lines, sectors in places
        ]

    def footprints(self) -> tuple[Footprint, ...]:
        """Return all footprints, by number."""
        return tuple(Footprint((first + shape.lines).astype(np.int32), shape.sectors) for first, shape in self._all)

    def _by_pattern(
        self, region: Region, offset: int, kind: tuple[object, ...], offsets: NDArray[np.intp], size: int
    ) -> int:
        byte = self._byte(region) + offset
        key = (*kind, byte % LINE)
        shape = self._patterns.get(key)
        if shape is None:
            shape = self._patterns[key] = self._shape(*_touched(offsets + byte % LINE, size))
        return self._add(byte // LINE, shape)

    def _byte(self, region: Region) -> int:
        found = self._starts.get(region.start)
        if found is None:
            found = self._starts[region.start] = self._numbers.first(region) * LINE + region.start % LINE
        return found

    def _intern(self, lines: NDArray[np.intp], sectors: int) -> int:
        return self._add(int(lines[0]), self._shape(lines, sectors))

    def _shape(self, lines: NDArray[np.intp] | NDArray[np.int32], sectors: int) -> _Lines:
        relative = (lines - lines[0]).astype(np.int32)
        return self._shapes.setdefault((relative.tobytes(), sectors), _Lines(relative, sectors))

    def _add(self, first: int, shape: _Lines) -> int:
        number = self._index.get((first, shape))
        if number is None:
            number = self._index[first, shape] = len(self._all)
            self._all.append((first, shape))
        return number


def _touched(starts: NDArray[np.intp], size: int) -> tuple[NDArray[np.intp], int]:
    """Return the unique lines of runs of ``size`` bytes, and the number of their sectors."""
    low, high = starts // _SECTOR, (starts + size - 1) // _SECTOR
    wide = int((high - low).max()) + 1
    sectors = np.unique(np.minimum(low[:, None] + np.arange(wide), high[:, None]))
    return np.unique(sectors // (LINE // _SECTOR)), int(sectors.size)
