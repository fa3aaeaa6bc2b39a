"""What the tensor core tells the machine's monitor (``machine.monitor``), so that it can find races.

Every call happens while the instruction is issued. The operations of a pipe (``Pipe.queue``) happen in order, after
what ordered their issue; loads and stores are the warp's own. ``tcgen05.commit`` is an arrival of the pipe at its
barriers: the barrier tells of it. Nothing is called without a monitor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.cta import Cta
    from pytest_nvfp4.sim.run.warp import Warp
    from pytest_nvfp4.sim.sync.mbarrier import Mbarrier

__all__ = ["CtaAccesses", "PipeAccesses", "TensorMonitor", "TmemBox"]

TmemBox = tuple[int, int, int, int]
"""A rectangle of TMEM: first column, number of columns, first lane, number of lanes."""


@dataclass(frozen=True, slots=True, eq=False)
class PipeAccesses:
    """What an operation of a pipe reads and writes in a CTA: the same object for what is the same, in all CTAs.

    Attributes:
        shared: Numbers of the 16-byte pieces of shared memory that are read (0 is the kernel's first byte), unique.
        reads, writes: Rectangles of TMEM.
    """

    shared: NDArray[np.intp]
    reads: tuple[TmemBox, ...]
    writes: tuple[TmemBox, ...]


CtaAccesses = tuple["Cta", PipeAccesses]
"""A CTA, and what is touched there."""


class TensorMonitor(Protocol):
    """The part of the monitor that hears of the tensor core."""

    def tensor_issued(self, w: Warp, at: int, queue: object, touched: tuple[CtaAccesses, ...]) -> None:
        """A warp gave an MMA or a copy to a pipe; ``touched`` has the CTAs that it works on."""

    def tensor_committed(self, w: Warp, at: int, queue: object, barriers: tuple[Mbarrier, ...]) -> None:
        """A commit: the barriers get their arrivals when the pipe has done all that it was given before."""

    def tmem_accessed(self, w: Warp, at: int, boxes: tuple[TmemBox, ...], write: bool) -> None:
        """A warp loads from or stores to its CTA's TMEM."""

    def tmem_allocated(self, w: Warp, at: int, column: int, count: int) -> None:
        """Columns of the warp's CTA now belong to an allocation."""

    def tmem_freed(self, w: Warp, at: int, column: int, count: int) -> None:
        """Columns of the warp's CTA are free."""

    def fence(self, w: Warp, mask: int, kind: str, at: int) -> None:
        """A tcgen05 fence or wait; ``kind`` is its opcode."""
