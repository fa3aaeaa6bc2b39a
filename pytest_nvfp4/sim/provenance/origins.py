"""Which statement wrote each unit of a CTA's shared memory and each word of its TMEM, and what it replaced.

A record holds a copy of the bytes that a statement wrote. Where memory no longer has these bytes, something else wrote
it since (a store of threads), and its statement is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.tcgen05.tmem import COLUMNS, LANES, Tmem

UNKNOWN = -1
Numbers = NDArray[np.int32]


@dataclass(slots=True, eq=False)
class Written:
    """What statements wrote, by cell of a memory.

    Attributes:
        now: The words as written by the statement ``by``.
        by: Number of the statement that wrote the cell last.
        before, before_by: The words that it replaced, and the number of their statement.
    """

    now: NDArray[np.uint32]
    by: Numbers
    before: NDArray[np.uint32]
    before_by: Numbers

    @classmethod
    def of(cls, cells: tuple[int, ...], words: tuple[int, ...]) -> Written:
        """Return the record of a memory that nothing wrote."""
        by = np.full(cells, UNKNOWN, np.int32)
        return cls(np.zeros(cells + words, np.uint32), by, np.zeros(cells + words, np.uint32), by.copy())

    def write(self, where: Any, words: NDArray[np.uint32], by: int) -> None:
        """Record a write of some cells."""
        self.before[where] = self.now[where]
        self.before_by[where] = self.by[where]
        self.now[where] = words
        self.by[where] = by

    def statements(self, where: Any, words: NDArray[np.uint32]) -> Numbers:
        """Return who wrote the words that cells have now."""
        same = self.now[where] == words
        if same.ndim > self.by[where].ndim:
            same = same.all(axis=-1)
        return np.where(same, self.by[where], UNKNOWN).astype(np.int32)


class CtaOrigins:
    """Origins of one CTA: ``cta.unit(CtaOrigins)``.

    Attributes:
        shared: Shared memory in units of 16 bytes, by number of the load.
        tmem: TMEM ``[column, lane]``, by number of the copy.
        tmem_loads: The load whose data a copy brought.
    """

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.units: NDArray[np.uint32] = cta.shared.data[: cta.shared.size & ~15].view(np.uint32).reshape(-1, 4)
        """Shared memory itself."""
        self.columns: NDArray[np.uint32] = cta.unit(Tmem).data
        """TMEM itself."""
        self.shared = Written.of((len(self.units),), (4,))
        self.tmem = Written.of((COLUMNS, LANES), ())
        self.tmem_loads: Numbers = np.full((COLUMNS, LANES), UNKNOWN, np.int32)

    def loaded(self, index: int, units: NDArray[np.intp], number: int) -> None:
        """Record a load whose data have arrived in units from a byte index on."""
        where = units.ravel() + index // 16
        self.shared.write(where, self.units[where], number)

    def copied(self, column: int, source: NDArray[np.intp], number: int) -> None:
        """Record a copy to columns ``[column][lane]`` from the units of shared memory ``source``."""
        where = slice(column, column + len(source))
        self.tmem_loads[where] = self.shared.statements(source, self.units[source])
        self.tmem.write(where, self.columns[where], number)

    def dissolve(self) -> None:
        """Drop the references back to the CTA."""
        del self.units, self.columns, self.cta
