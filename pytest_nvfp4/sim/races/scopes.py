"""Arrives and waits at an mbarrier whose scope leaves out a CTA of the cluster.

PTX ISA, "Scope" and "Moral strength": a release synchronises with an acquire only if the scope of each includes the
thread that executes the other. ``mbarrier.arrive`` without a scope has ``.cta`` ("mbarrier.arrive"), for a barrier of
another CTA too: only ``.release.cluster``, or a ``fence.acq_rel.cluster`` before it, makes the writes before it visible
to the threads that wait there.

What the arrive of ``.cta`` scope leaves is the count of the barrier, and CuTe DSL and CUTLASS rely on that: they arrive
so at a peer's empty barrier, after reads, and at the barrier of an accumulator. So it does order here

- what was *executed* before it: a read comes before a write behind the wait (a stage is overwritten after it was read),
- the writes of asynchronous copies and of the tensor core, which complete by rules of their own (``complete_tx`` and
  ``tcgen05.commit`` have cluster scope),

and not the *writes of the generic proxy* (``st``, ``cp.async``), that a thread or an MMA behind the wait then misses.

``mbarrier.try_wait`` without a scope counts as an acquire of the cluster: pipelines of CuTe DSL and CUTLASS have no
other wait, and it costs the waiting thread nothing to see what a release has made visible in shared memory. One with
``.acquire.cta`` written out, which is the default of the DSL's own primitives, does not acquire from other CTAs.

The scopes of accesses to memory are in ``sync_variables``.
"""

from __future__ import annotations

from typing import NamedTuple

from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.races.access import Access
from pytest_nvfp4.sim.races.access_pair import Missing
from pytest_nvfp4.sim.races.names import WarpId
from pytest_nvfp4.sim.races.ticks import BEFORE, VISIBLE, Ticks
from pytest_nvfp4.sim.run.grid import Grid


def arrives_in_cta(instruction: Instruction) -> bool:
    """Return whether an arrive has ``.cta`` scope, the default."""
    return "cluster" not in instruction.parts


def acquires_in_cta(instruction: Instruction) -> bool:
    """Return whether a wait has ``.cta`` scope written out."""
    return "cta" in instruction.parts


class NarrowScope(NamedTuple):
    """An arrive or a wait of ``.cta`` scope that meets other CTAs.

    Attributes:
        at, warp: Its instruction, and the warp that executed it.
        rank: The rank of the CTA that has the mbarrier.
        acquires: Whether it is a wait.
    """

    at: int
    warp: WarpId
    rank: int
    acquires: bool


class NarrowScopes:
    """The arrives and waits of a launch whose scope leaves out a CTA."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._known: dict[tuple[int, WarpId], NarrowScope] = {}

    def add(self, scope: NarrowScope) -> None:
        """Record one."""
        self._known[scope.at, scope.warp] = scope

    def missing(self, old: Access, new: Access, ticks: Ticks) -> Missing | None:
        """Return what a write lacks that was executed before an access and is not visible to it; None otherwise."""
        if not ticks[VISIBLE, old.agent] < old.tick <= ticks[BEFORE, old.agent]:
            return None
        candidates = [
            scope
            for scope in self._known.values()
            if scope.warp.cluster == old.warp.cluster
            and scope.warp.cta == (new.warp.cta if scope.acquires else old.warp.cta)
        ]
        if not candidates:
            return None
        scope = min(candidates, key=lambda each: each.warp is not (new.warp if each.acquires else old.warp))
        place = self._grid.place(scope.at)
        if scope.acquires:
            return Missing(
                f"{place} in {scope.warp} has scope .cta, and other CTAs of the cluster arrive at its barrier: it does "
                "not make their writes visible",
                f"<.acquire.cluster> at {place.split(' (')[0]}, or <fence.acq_rel.cluster> behind it",
            )
        return Missing(
            f"{place} in {scope.warp} has scope .cta, and its barrier belongs to CTA rank {scope.rank} of the cluster: "
            "it counts there, and orders no write",
            f"<.release.cluster> at {place.split(' (')[0]}, or <fence.acq_rel.cluster> before it",
        )
