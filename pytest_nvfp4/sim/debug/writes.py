"""Who wrote each byte of shared memory and each word of TMEM, and which operations of a tcgen05 pipe have no commit."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.memory.access import READ
from pytest_nvfp4.sim.monitor import CopyTarget, CtaAccesses, Monitor, TmemBox
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.mbarrier import Mbarrier
from pytest_nvfp4.sim.tcgen05.tmem import COLUMNS, LANES

if TYPE_CHECKING:
    from pytest_nvfp4.sim.memory.globals import Region
    from pytest_nvfp4.sim.memory.pattern import Pattern
    from pytest_nvfp4.sim.memory.shared import SharedMemory
    from pytest_nvfp4.sim.tcgen05.copy_plan import CopyPlan
    from pytest_nvfp4.sim.tcgen05.mma_plan import MmaPlan
    from pytest_nvfp4.sim.tma.box import TmaBox


class Writer(NamedTuple):
    """An instruction that wrote, and its warp; ``rank`` is that of the warp's CTA in the cluster."""

    at: int
    warp: int
    rank: int


class CtaWrites:
    """The last writers of a CTA's memory: ``cta.unit(CtaWrites)``.

    Attributes:
        writers: By number; 0 stands for none.
        shared: Number of the writer of each byte of shared memory.
        tmem: Number of the writer of each word of TMEM, ``[column, lane]``.
    """

    def __init__(self, cta: Cta) -> None:
        self.writers: list[Writer | None] = [None]
        self.shared: NDArray[np.int32] = np.zeros(cta.shared.size, np.int32)
        self.tmem: NDArray[np.int32] = np.zeros((COLUMNS, LANES), np.int32)
        self._numbers: dict[Writer, int] = {}

    def number(self, w: Warp, at: int) -> int:
        """Return the number of a writer."""
        writer = Writer(at, w.index, w.cta.rank)
        if (found := self._numbers.get(writer)) is None:
            found = self._numbers[writer] = len(self.writers)
            self.writers.append(writer)
        return found


class WriteLog(Monitor):
    """Monitor that records writers.

    Attributes:
        uncommitted: By tcgen05 pipe, the operations since its last commit, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.uncommitted: dict[Hashable, list[Writer]] = {}

    @staticmethod
    def _shared(cta: Cta, w: Warp, at: int, where: slice | NDArray[np.intp]) -> None:
        writes = cta.unit(CtaWrites)
        writes.shared[where] = writes.number(w, at)

    def shared_accessed(
        self, w: Warp, at: int, shared: SharedMemory, index: int, where: Pattern | int, kind: int, mask: int = 0
    ) -> None:
        """Record a warp's store or atomic."""
        del mask
        if kind != READ:
            cta = w.cta if shared is w.cta.shared else w.cta.cluster.ctas[shared.rank]
            self._shared(cta, w, at, _bytes(index, where))

    def copy_in(
        self, w: Warp, at: int, targets: Sequence[CopyTarget], size: int, order: NDArray[np.intp] | None = None,
        box: TmaBox | None = None,
    ) -> None:  # fmt: skip
        """Record a copy to shared memory."""
        del box
        for target in targets:
            start = target.offset
            where: slice | NDArray[np.intp] = slice(start, start + size)
            if order is not None:
                where = (np.unique(order)[:, None] * 16 + np.arange(16)).ravel() + start
            self._shared(target.cta, w, at, where)

    def async_copied(
        self, w: Warp, at: int, index: int, target: Pattern, sources: Sequence[tuple[Region, int, Pattern | int]]
    ) -> None:
        """Record a ``cp.async``."""
        del sources
        self._shared(w.cta, w, at, _bytes(index, target))

    def stored_async(
        self, w: Warp, at: int, shared: SharedMemory, index: int, where: Pattern, barrier: Mbarrier
    ) -> None:
        """Record a ``st.async`` or ``red.async``."""
        del barrier
        self._shared(w.cta.cluster.ctas[shared.rank], w, at, _bytes(index, where))

    def tmem_accessed(self, w: Warp, at: int, boxes: tuple[TmemBox, ...], write: bool) -> None:
        """Record a ``tcgen05.st``."""
        if write:
            _tmem(w.cta, w, at, boxes)

    def tensor_issued(
        self, w: Warp, at: int, queue: Hashable, touched: tuple[CtaAccesses, ...], plan: MmaPlan | CopyPlan
    ) -> None:
        """Record an MMA or copy of a tcgen05 pipe."""
        del plan
        self.uncommitted.setdefault(queue, []).append(Writer(at, w.index, w.cta.rank))
        for cta, accesses in touched:
            _tmem(cta, w, at, accesses.writes)

    def tensor_committed(self, w: Warp, at: int, queue: Hashable, barriers: tuple[Mbarrier, ...]) -> None:
        """Record a commit."""
        del w, at, barriers
        self.uncommitted.pop(queue, None)


def _bytes(index: int, where: Pattern | int) -> slice | NDArray[np.intp]:
    if isinstance(where, int):
        return slice(index, index + where)
    return (where.offsets[:, None] + np.arange(where.size)).ravel() + index


def _tmem(cta: Cta, w: Warp, at: int, boxes: Sequence[TmemBox]) -> None:
    writes = cta.unit(CtaWrites)
    number = writes.number(w, at)
    for box in boxes:
        writes.tmem[box.column : box.column + box.columns, box.lane : box.lane + box.lanes] = number
