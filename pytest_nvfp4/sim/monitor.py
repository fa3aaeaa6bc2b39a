"""Arguments of the events that a launch reports to the monitor (``machine.monitor``), which orders memory accesses.

The race detector (``races.detector.Detector``) is the monitor; its hooks are the events. Each is called while the
instruction executes, before other warps can observe its effect; asynchronous work is reported when it is issued. The
operations of a tcgen05 pipe execute in order, after whatever was ordered before their issue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.sync.mbarrier import Mbarrier


class CopyTarget(NamedTuple):
    """A CTA that receives a copy's data, their offset in its shared memory, and the barrier that counts them."""

    cta: Cta
    offset: int
    barrier: Mbarrier


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
