"""Events that the tensor core reports to the machine's monitor (``machine.monitor``), which searches for races.

Every event is reported while its instruction is issued. The operations of a pipe (``Pipe.queue``) execute in order,
after whatever was ordered before their issue; loads and stores belong to the warp itself. ``tcgen05.commit`` makes the
pipe arrive at its barriers, and the barrier reports the arrival. Without a monitor nothing is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.mbarrier import Mbarrier


class TmemBox(NamedTuple):
    """A rectangle of TMEM."""

    column: int
    columns: int
    lane: int
    lanes: int


@dataclass(frozen=True, slots=True, eq=False)
class PipeAccesses:
    """Memory that an operation of a pipe reads and writes in a CTA.

    Equal operations share one object in all CTAs, so that a monitor can cache by identity.

    Attributes:
        shared: Numbers of the 16-byte units of shared memory that are read (0 is the kernel's first), unique.
        reads, writes: Rectangles of TMEM.
    """

    shared: NDArray[np.intp]
    reads: tuple[TmemBox, ...]
    writes: tuple[TmemBox, ...]


class CtaAccesses(NamedTuple):
    """A CTA, and the memory that an operation reads and writes there."""

    cta: Cta
    accesses: PipeAccesses


class TensorMonitor(Protocol):
    """The part of the monitor that receives the tensor core's events."""

    def tensor_issued(self, w: Warp, at: int, queue: object, touched: tuple[CtaAccesses, ...]) -> None:
        """A warp issued an MMA or a copy to a pipe; ``touched`` has an entry for each CTA that it works on."""

    def tensor_committed(self, w: Warp, at: int, queue: object, barriers: tuple[Mbarrier, ...]) -> None:
        """A warp issued a commit: the barriers get their arrivals once the pipe's earlier operations are done."""

    def tmem_accessed(self, w: Warp, at: int, boxes: tuple[TmemBox, ...], write: bool) -> None:
        """A warp loads from or stores to its CTA's TMEM."""

    def tmem_allocated(self, w: Warp, at: int, column: int, count: int) -> None:
        """Columns of the warp's CTA were allocated."""

    def tmem_freed(self, w: Warp, at: int, column: int, count: int) -> None:
        """Columns of the warp's CTA were freed."""

    def fence(self, w: Warp, mask: int, kind: str, at: int) -> None:
        """A warp executed a tcgen05 fence or wait; ``kind`` is its opcode."""
