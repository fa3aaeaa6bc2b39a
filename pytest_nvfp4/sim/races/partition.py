"""Division of a memory into parts that are always accessed as a whole.

A kernel touches its memory in few different ways: a stage's tile by one copy, its slices by MMAs. ``Partition`` is the
coarsest division of a memory such that every *footprint* seen so far is a union of its parts, exact to the byte. A
shadow then has one state per part instead of one per byte, and an access costs as many steps as it has parts. The
division belongs to the launch: its CTAs use the same layout, so that only the first one pays for finding it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Units = slice | NDArray[np.intp]
_CAPACITY = 1 << 15
"""Footprints that are cached. A kernel with more of them has patterns that do not recur."""


@dataclass(slots=True, eq=False)
class Footprint:
    """A set of units, as a list of parts that is updated when a part is split."""

    parts: list[int]


class PartExtent(NamedTuple):
    """The first unit of a part, the one after its last, and the number of its units, which may have gaps."""

    low: int
    high: int
    size: int


class Partition:
    """The parts of a memory of ``size`` units (bytes of shared memory; a column by 16 lanes of TMEM).

    Attributes:
        parents: By part, the one that it was split from (0 from itself), so that shadows can repeat the splits.
    """

    def __init__(self, size: int) -> None:
        self.part_of: NDArray[np.int32] = np.zeros(size, np.int32)
        self.sizes: list[int] = [size]
        self.parents: list[int] = [0]
        self._containing: list[list[Footprint]] = [[]]
        self._known: dict[Hashable, Footprint] = {}

    def find(self, key: Hashable) -> Footprint | None:
        """Return the cached footprint of a key."""
        return self._known.get(key)

    def footprint(self, key: Hashable, units: Units) -> Footprint:
        """Make the footprint of units (unique numbers, or a slice) and cache it under a key."""
        return self._cache(key, Footprint(self._split(units)))

    @property
    def full(self) -> bool:
        """Whether footprints are no longer cached. Footprints made from then on do not follow later splits."""
        return len(self._known) >= _CAPACITY

    def union(self, key: Hashable, footprints: Sequence[Footprint]) -> Footprint:
        """Make the union of several footprints and cache it under a key."""
        return self._cache(key, Footprint(list(dict.fromkeys(part for each in footprints for part in each.parts))))

    def _cache(self, key: Hashable, footprint: Footprint) -> Footprint:
        if not self.full:
            self._known[key] = footprint
            for part in footprint.parts:
                self._containing[part].append(footprint)
        return footprint

    def units(self, part: int) -> NDArray[np.intp]:
        """Return the units of a part."""
        return np.flatnonzero(self.part_of == part)

    def extent(self, part: int) -> PartExtent:
        """Return the extent of a part."""
        units = self.units(part)
        return PartExtent(int(units[0]), int(units[-1]) + 1, units.size)

    def _split(self, units: Units) -> list[int]:
        here = self.part_of[units]
        if here.size == 0:
            return []
        if (here == here[0]).all():
            touched, counts = [int(here[0])], [here.size]
        else:
            unique, number = np.unique(here, return_counts=True)
            touched, counts = unique.tolist(), number.tolist()
        parts: list[int] = []
        for part, count in zip(touched, counts, strict=True):
            if count == self.sizes[part]:
                parts.append(part)
                continue
            new = len(self.sizes)
            if isinstance(units, slice):
                window = self.part_of[units]
                window[window == part] = new
            else:
                self.part_of[units[here == part]] = new
            self.sizes[part] -= count
            self.sizes.append(count)
            self.parents.append(part)
            others = self._containing[part]
            for other in others:
                other.parts.append(new)
            self._containing.append(list(others))
            parts.append(new)
        return parts
