"""Log of the operations on mbarriers in one launch, in the order of one legal execution.

``machine.barrier_log`` holds the log of the running launch; while it is None, nothing is recorded. ``sync.rings``
recovers the rings of mbarriers from a log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.grid import Grid
    from pytest_nvfp4.sim.run.warp import Warp
    from pytest_nvfp4.sim.sync.mbarrier import Actor, Mbarrier

EventKind = Literal["init", "wait", "refused", "arrive", "expect", "bytes", "copy", "commit", "complete"]
"""Operation on an mbarrier.

init      it was initialised; ``amount`` is the arrival count of a phase
wait      a wait succeeded; ``amount`` is the parity it waited for, or -1 for a wait on a state
refused   a wait returned False
arrive    ``amount`` arrivals
expect    ``amount`` bytes were announced
copy      a copy of ``amount`` bytes was issued that signals it; ``slot`` is the destination
commit    a commit was issued that arrives at it once earlier MMAs and copies of the issuer are complete
bytes     ``amount`` bytes arrived
complete  the phase is complete; ``amount`` is the number of bytes that arrived in it
"""


class BarrierEvent(NamedTuple):
    """One operation on one mbarrier.

    Attributes:
        kind: The operation.
        cta: Linear index of the CTA whose shared memory holds the mbarrier.
        barrier: Byte index of the mbarrier in that shared memory.
        phase: Completed phases of the mbarrier before the operation.
        by, warp, at: Linear index of the acting CTA, number of the warp, index of the instruction in the kernel; -1 if
            a unit acts (an arrival of a commit, bytes of a copy).
        amount: See ``EventKind``.
        slot: For a copy, byte index of the destination in shared memory of ``cta``; -1 otherwise.
    """

    kind: EventKind
    cta: int
    barrier: int
    phase: int
    by: int
    warp: int
    at: int
    amount: int
    slot: int = -1


class BarrierLog:
    """The operations on mbarriers in one launch.

    Attributes:
        grid: The launch.
        events: The operations, in order of execution; those of one warp are in program order.
        limit: Largest number of operations that are recorded.
    """

    def __init__(self, grid: Grid, *, limit: int = 1_000_000) -> None:
        self.grid = grid
        self.events: list[BarrierEvent] = []
        self.limit = limit

    @property
    def truncated(self) -> bool:
        """Whether later operations are missing."""
        return len(self.events) >= self.limit

    def add(self, kind: EventKind, barrier: Mbarrier, who: Actor, amount: int, *, slot: int = -1) -> None:
        """Record an operation of a unit, or of a warp and the index of its instruction."""
        if len(self.events) >= self.limit:
            return
        by, warp, at = (-1, -1, -1) if isinstance(who, str) else (who[0].cta.linear, who[0].index, who[1])
        self.events.append(
            BarrierEvent(kind, barrier.cta.linear, barrier.index, barrier.phase, by, warp, at, amount, slot)
        )

    def waited(self, kind: Literal["wait", "refused"], barrier: Mbarrier, warp: Warp, at: int, parity: int) -> None:
        """Record a wait of a warp."""
        self.add(kind, barrier, (warp, at), parity)
