"""Bytes that are always accessed together, as one.

A kernel touches its memory in few different ways: a stage's tile by one copy, its slices by MMAs. ``Partition`` keeps
the coarsest division of a memory such that every *footprint* seen so far is a union of its parts, byte by byte. A
shadow then holds one state a part instead of one a byte, and an access costs as many steps as it has parts. The
division belongs to the launch: its CTAs use the same layout, so that only the first one pays for finding it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Footprint", "Partition"]

Units = slice | NDArray[np.intp]
_KEPT = 1 << 15
"""Footprints that are kept; a kernel with more of them has patterns that do not come back."""


class Footprint:
    """A set of units, as the parts that it consists of at present."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[int]) -> None:
        self.parts = parts


class Partition:
    """A memory of ``size`` units (bytes of shared memory; columns by 16 lanes of TMEM) in parts.

    Attributes:
        parents: By part, the one that it was split from (0 from itself): shadows follow the splits.
    """

    def __init__(self, size: int) -> None:
        self.part_of: NDArray[np.int32] = np.zeros(size, np.int32)
        self.sizes: list[int] = [size]
        self.parents: list[int] = [0]
        self._containing: list[list[Footprint]] = [[]]
        self._known: dict[Hashable, Footprint] = {}

    def find(self, key: Hashable) -> Footprint | None:
        """The footprint that was made with a key."""
        return self._known.get(key)

    def footprint(self, key: Hashable, units: Units) -> Footprint:
        """The footprint of units (unique numbers, or a slice); ``find`` gives it again by the key."""
        made = Footprint(self._split(units))
        self._keep(key, made)
        return made

    @property
    def full(self) -> bool:
        """Whether footprints are no longer kept: those made now do not follow later splits."""
        return len(self._known) >= _KEPT

    def union(self, key: Hashable, footprints: Sequence[Footprint]) -> Footprint:
        """What several footprints have together; ``find`` gives it again by the key."""
        made = Footprint(list(dict.fromkeys(part for one in footprints for part in one.parts)))
        self._keep(key, made)
        return made

    def _keep(self, key: Hashable, made: Footprint) -> None:
        if not self.full:
            self._known[key] = made
            for part in made.parts:
                self._containing[part].append(made)

    def extent(self, part: int) -> tuple[int, int, int]:
        """The first unit of a part, the one after its last, and how many it has."""
        units = np.flatnonzero(self.part_of == part)
        return int(units[0]), int(units[-1]) + 1, units.size

    def _split(self, units: Units) -> list[int]:
        here = self.part_of[units]
        if here.size == 0:
            return []
        if (here == here[0]).all():
            found, counts = [int(here[0])], [here.size]
        else:
            unique, number = np.unique(here, return_counts=True)
            found, counts = unique.tolist(), number.tolist()
        parts: list[int] = []
        for part, count in zip(found, counts, strict=True):
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
