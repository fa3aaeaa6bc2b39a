"""Relaxed arrives between two accesses: they show that the first was executed, and make nothing visible.

PTX ISA, "barrier.cluster" and "mbarrier.arrive": with ``.relaxed`` an arrive has no memory ordering, so that a write
before it is not visible behind the wait. The kernel lacks no barrier there, which a message without the arrive would
suggest.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from pytest_nvfp4.sim.races.access import Access
from pytest_nvfp4.sim.races.access_pair import Missing
from pytest_nvfp4.sim.races.clocks import Clock
from pytest_nvfp4.sim.races.cta_exit import PeerAccesses
from pytest_nvfp4.sim.races.names import WarpId
from pytest_nvfp4.sim.races.ticks import BEFORE
from pytest_nvfp4.sim.run.cta import Dim3
from pytest_nvfp4.sim.run.grid import Grid

_MOST: Final = 8
_MOST_WARPS: Final = 4096


class _Arrive(NamedTuple):
    tick: int
    at: int


class RelaxedArrives:
    """The relaxed arrives of a launch at barriers of the cluster and at mbarriers."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._last: dict[WarpId, deque[_Arrive]] = {}
        self._observed: WeakValueDictionary[Dim3, PeerAccesses] = WeakValueDictionary()

    def add(self, warp: WarpId, tick: int, at: int) -> None:
        """Record that a warp executes one at its tick; of a large grid, those of its last warps are kept."""
        known = self._last.get(warp)
        if known is None:
            known = self._last[warp] = deque(maxlen=_MOST)
            if len(self._last) > _MOST_WARPS:
                del self._last[next(iter(self._last))]
        known.append(_Arrive(tick, at))

    def observe(self, warp: WarpId, accesses: PeerAccesses, clock: Clock) -> None:
        """Record that a warp comes behind arrives, and what its CTA has observed as performed by that."""
        accesses.observe(clock)
        self._observed[warp.cta] = accesses

    def missing(self, old: Access, new: Access, *, threads: bool) -> Missing | None:
        """Return what two accesses lack if a relaxed arrive and a wait are between them; None otherwise.

        ``threads``: whether the earlier access is one of threads, so that its tick is their warp's.
        """
        observed = self._observed.get(new.warp.cta)
        performed = None if observed is None else observed.performed
        arrived = [warp for warp in self._last if warp.cta == old.warp.cta]
        if not arrived or performed is None or performed.ticks[BEFORE, old.agent] < old.tick:
            return None
        warp = min(arrived, key=lambda each: each is not old.warp)
        arrives = self._last[warp]
        behind = (each for each in arrives if threads and warp is old.warp and each.tick >= old.tick)
        place = self._grid.place(next(behind, arrives[-1]).at)
        return Missing(
            f"{place} in {warp} is .relaxed: who waits for it comes behind what was executed before, and need not see "
            "what that wrote",
            f"an arrive without .relaxed at {place.split(' (')[0]} (a <barrier.cluster>, or mbarrier.arrive.release), "
            "or <fence.acq_rel.cluster> before it",
        )
