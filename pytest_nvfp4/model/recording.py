"""Recordings: what every warp of a launch issues and waits for, as plain data.

A recording holds what decides a launch's time and nothing of its values. It distinguishes five actions of a warp:

- ``RUN``: it executes instructions, counted by class;
- ``ISSUE``: it starts an *operation* of a unit (a copy of TMA, an MMA, a load of tensor memory ...);
- ``SIGNAL``: it arrives at a *phase*;
- ``WAIT``: it cannot go on before a phase is complete;
- ``MARK``: it passes a place that the author named.

A **phase** stands for everything that is waited for: a phase of an mbarrier, of a named or cluster barrier, a group of
bulk stores or of ``wgmma``, the result of a load. It is complete when it has received its number of signals, from warps
(``SIGNAL``) and from operations (when they complete, or when they have read their source). Phases and operations belong
to a cluster; clusters that differ only in addresses share a ``Program``, and each has its own ``Cluster`` with the
footprints of its operations in global memory.

Arrays are numpy structured arrays with the types below, so that a recording of a large launch stays small and can be
stored (``numpy.savez``) without pickle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.ptx.marks import Mark


class Does(IntEnum):
    """What a warp does in an event."""

    RUN = 0
    """Executes ``count`` rows of instructions: ``item`` is the index of a row of ``Program.mixes``."""
    ISSUE = 1
    """Starts operation ``item``."""
    SIGNAL = 2
    """Arrives ``count`` times at phase ``item``."""
    WAIT = 3
    """Waits for phase ``item``."""
    MARK = 4
    """Passes a place that the author named: ``item`` is an index into ``Recording.marks``. It takes no time."""


class Unit(IntEnum):
    """The unit of a device that executes an operation."""

    TMA_LOAD = 0
    TMA_STORE = 1
    """Tensor and bulk stores and reductions: reads shared memory, then writes global memory."""
    TENSOR = 2
    """One tcgen05.mma of a CTA or a pair, a wgmma, or an mma.sync."""
    TMEM_COPY = 3
    """tcgen05.cp: shared memory to tensor memory, in the tensor core's pipe."""
    COMMIT = 4
    """tcgen05.commit: completes when the operations before it in its pipe are complete."""
    TMEM_LOAD = 5
    TMEM_STORE = 6
    GLOBAL_LOAD = 7
    """Loads of a warp's lanes, and copies with ``cp.async``."""
    GLOBAL_STORE = 8
    ATOMIC = 9
    MAP_CHANGE = 10
    """tensormap.replace, tensormap.cp_fenceproxy."""
    MAP_ACQUIRE = 11
    """fence.proxy.tensormap.acquire."""
    FENCE = 12
    """Other fences that wait for memory (fence.proxy.async, membar, fence.acq_rel ...)."""
    SHARED_REMOTE = 13
    """Stores, copies and arrives to another CTA's shared memory."""
    LAUNCH_DEPENDENTS = 14
    GRID_WAIT = 15
    """griddepcontrol.wait."""
    TMEM_ALLOCATE = 16
    FLAG_WAIT = 17
    """Loads of a word of global memory, until a comparison holds: the warp's last one, once the word has its value."""
    FLAG_WRITE = 18
    """An ordered store to such a word, or an addition to it."""


FLAGS = (Unit.FLAG_WAIT, Unit.FLAG_WRITE)
"""Units of operations with a row of ``Cluster.flags``; the kind of their shape is one of ``flags``."""


INSTRUCTION_CLASSES = (
    "alu",
    "fma",
    "special",
    "shared_load",
    "shared_store",
    "branch",
    "convert",
    "move",
    "other",
    "shared_wavefronts",
)
"""Columns of ``Program.mixes``: instructions by class, and last the passes of shared memory that they need."""

EVENT = np.dtype([("does", np.uint8), ("count", np.uint16), ("site", np.int32), ("item", np.int32)])
"""``site``: index into ``Recording.sites``."""

OPERATION = np.dtype(
    [
        ("unit", np.uint8),
        ("shape", np.int32),
        ("slot", np.int32),
        ("pipe", np.int32),
        ("done", np.int32),
        ("read", np.int32),
    ]
)
"""An operation of a program.

``shape``: index into ``Program.shapes``.
``slot``: index into ``Cluster.footprints``, -1 without global memory.
``pipe``: operations of one pipe execute in order (the tensor core of a CTA or pair); -1 for none.
``done``, ``read``: index into ``Program.signals`` of the phases signalled at completion, and when the source in shared
memory has been read; -1 for none.
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """What an operation works on, the same in all clusters.

    Attributes:
        rows: TMA: rows of at most 128 B delivered to shared memory, at each destination.
        bytes: Bytes moved at each destination; for GLOBAL_*, those of all lanes.
        ctas: Ranks of the CTAs that receive the data (multicast), or that work on an MMA.
        m, n, k: Shape of one matrix instruction, in elements; 0 for other units.
        kind: Type of the operands: ``mxf4nvf4``, ``mxf8f6f4``, ``f8f6f4``, ``f16``, ``tf32``, ``i8`` ...
        a_tmem: Whether A is in tensor memory (tcgen05) or in registers (wgmma).
        shared_bytes: Bytes of shared memory that a matrix instruction or copy reads in each CTA.
        columns: TMEM columns of 32 bits that a load or store moves in each lane.
        lanes: Lanes that take part.
        sectors: 32-byte sectors of global memory that lanes touch.
    """

    rows: int = 0
    bytes: int = 0
    ctas: tuple[int, ...] = ()
    m: int = 0
    n: int = 0
    k: int = 0
    kind: str = ""
    a_tmem: bool = False
    shared_bytes: int = 0
    columns: int = 0
    lanes: int = 0
    sectors: int = 0


@dataclass(frozen=True, slots=True)
class WarpEvents:
    """The events of one warp, in program order."""

    cta: int
    """Rank of its CTA in the cluster."""
    index: int
    """Number in the CTA."""
    role: str
    """What it does, as ``cost`` names it: ``load``, ``mma``, ``tmem+store`` ..."""
    events: NDArray[np.void]
    """Array of ``EVENT``."""


@dataclass(frozen=True, slots=True)
class Program:
    """What the warps of a cluster do, without addresses."""

    warps: tuple[WarpEvents, ...]
    operations: NDArray[np.void]
    """Array of ``OPERATION``."""
    shapes: tuple[Shape, ...]
    mixes: NDArray[np.int32]
    """Instruction counts: one row a mix, one column an item of ``INSTRUCTION_CLASSES``."""
    phases: NDArray[np.int32]
    """Signals that each phase needs."""
    signals: tuple[tuple[int, ...], ...]
    """Lists of phases that operations signal once each."""
    slots: int
    """Number of footprints of each cluster."""


NO_FLAGS = np.zeros((0, 2), np.int64)


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster of the grid, in launch order."""

    index: int
    """Linear number in the grid."""
    program: int
    footprints: NDArray[np.int32]
    """Index into ``Recording.footprints`` for each slot; -1 for none (a box wholly outside its tensor)."""
    flags: NDArray[np.int64] = field(default_factory=lambda: NO_FLAGS)
    """For each operation of ``FLAGS``, in the order of the program's operations: the index into ``Recording.cells``,
    and the operand of the comparison or of the write."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Global memory that an operation touches: lines of 128 B, numbered over all regions of the launch."""

    lines: NDArray[np.int32]
    """Unique lines, ascending."""
    sectors: int
    """32-byte sectors within these lines that are touched."""


@dataclass(frozen=True, slots=True)
class Site:
    """An instruction of the kernel."""

    at: int
    opcode: str
    source: str
    """``file:line`` of the author's source; empty if the PTX does not say."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One launch.

    Attributes:
        kernel: Name of the kernel.
        grid, block, cluster: Dimensions; a grid counts CTAs.
        ctas_per_sm: Resident CTAs an SM, limited by shared memory, threads, registers and TMEM.
        dependent: Whether it is a programmatic dependent launch.
        cells: Values, before the launch, of the words of global memory by which its clusters wait for each other.
        marks: The places that the author named: begins and ends of regions (``sim.ptx.marks``).
        refused: Why no time may be modelled from it (control flow that depends on order ...); empty if one may.
    """

    kernel: str
    arch: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int
    ctas_per_sm: int
    dependent: bool
    sites: tuple[Site, ...]
    programs: tuple[Program, ...]
    clusters: tuple[Cluster, ...]
    footprints: tuple[Footprint, ...]
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    marks: tuple[Mark, ...] = ()
    cells: tuple[int, ...] = ()
