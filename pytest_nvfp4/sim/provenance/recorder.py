"""Record of what each ``tcgen05.mma`` reads: the cells of each operand, and the loads and copies that brought them.

Set ``machine.operands = OperandRecorder(tags)`` before a launch on tagged inputs (``tags``), with the eager schedule
and in one process. Then:

- ``recorder.loads``: every TMA tensor load and bulk copy: statement, coordinates, and the bytes of shared memory that
  it fills in each CTA;
- ``recorder.copies``: every ``tcgen05.cp``: statement, first column and number of columns, bytes of shared memory;
- ``recorder.mmas``: every MMA in order of issue, and in it for each CTA the operands A, B, SFA and SFB.

A statement is the index of an instruction in the kernel (``grid.place``). Only ``.kind::mxf4nvf4`` with
``scale_vec::4X`` and K-major operands is followed; ``unfollowed`` counts the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.monitor import CopyTarget, TmemBox
from pytest_nvfp4.sim.provenance.origins import CtaOrigins, Numbers
from pytest_nvfp4.sim.provenance.tags import NO_TAG, ZERO, Cells, Tags
from pytest_nvfp4.sim.ptx.syntax import Kernel
from pytest_nvfp4.sim.run.cta import Cta, Dim3
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.tcgen05 import scales
from pytest_nvfp4.sim.tcgen05.copy_plan import CopyPlan
from pytest_nvfp4.sim.tcgen05.descriptor import InstructionDescriptor
from pytest_nvfp4.sim.tcgen05.mma_plan import CtaOperands, MmaPlan
from pytest_nvfp4.sim.tcgen05.operand import Geometry
from pytest_nvfp4.sim.tma.box import TmaBox
from pytest_nvfp4.sim.tma.box_order import BoxOrder

_MOST = 20_000
"""MMAs that are recorded; the rest of a larger problem repeats them."""
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Load:
    """A copy from global to shared memory.

    Attributes:
        at: Its statement.
        coordinates, extents: The box's coordinates and the tensor map's dimensions; None for a bulk copy.
        outside: Whether the box lies wholly outside its tensor.
        tensor: Name of the memory that it reads.
        targets: For each CTA, its index and the bytes [start, stop) of its shared memory.
    """

    at: int
    coordinates: tuple[int, ...] | None
    extents: tuple[int, ...] | None
    outside: bool
    tensor: str
    targets: tuple[tuple[Dim3, Range], ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """A ``tcgen05.cp``: its statement, its TMEM columns [start, stop), and the bytes of shared memory, by CTA."""

    at: int
    columns: Range
    sources: tuple[tuple[Dim3, Range], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """One operand in one CTA, by row of the tile: A and SFA by row of D, B and SFB by column of D.

    Attributes:
        cells: What each row read: for A and B the first of two consecutive cells.
        loads: Number of the load in ``recorder.loads``, -1 if unknown.
        copies: Number of the copy in ``recorder.copies``, -1 if unknown; None for an operand in shared memory.
        shared: Bytes [start, stop) of shared memory; None for an operand in TMEM.
        columns: TMEM columns [start, stop); None for an operand in shared memory.
    """

    name: str
    cells: Cells
    loads: Numbers
    copies: Numbers | None
    shared: Range | None
    columns: Range | None


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """An MMA's part in one CTA, and the operands there; B is that of the whole pair."""

    cta: Dim3
    linear: int
    operands: dict[str, Operand]


@dataclass(frozen=True, slots=True, eq=False)
class Mma:
    """One ``tcgen05.mma``: its statement, whether D is added to, and D's TMEM columns [start, stop).

    Attributes:
        otherwise: What its instruction descriptor makes of the operands that NVFP4 does not; empty for nothing.
    """

    launch: int
    at: int
    accumulates: bool
    columns: Range
    parts: tuple[Part, ...]
    otherwise: str


@dataclass(slots=True)
class OperandRecorder:
    """Records the operands of MMAs.

    Attributes:
        launched: Called with each launch before it runs.
        listen: Called with each MMA and the origins of its CTAs, while memory is as the MMA finds it.
        read: Called with a CTA, and the statement and the columns of a ``tcgen05.ld``.
        truncated: Whether MMAs were left out.
        unfollowed: Number of MMAs whose form is not followed.
    """

    tags: Tags
    loads: list[Load] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    mmas: list[Mma] = field(default_factory=list)
    launched: Callable[[Grid], None] | None = None
    listen: Callable[[Mma, Sequence[CtaOrigins]], None] | None = None
    read: Callable[[Cta, int, Range], None] | None = None
    truncated: bool = False
    unfollowed: int = 0
    grid: Grid | None = None
    """The launch that runs."""
    kernels: dict[int, Kernel] = field(default_factory=dict)
    """The kernel of each launch."""
    _interned: dict[bytes, Cells] = field(default_factory=dict)

    def begin(self, grid: Grid) -> None:
        """Begin a launch."""
        self.grid = grid
        self.kernels[grid.ordinal] = grid.kernel
        if self.launched is not None:
            self.launched(grid)

    def loaded(
        self, w: Warp, at: int, targets: Sequence[CopyTarget], order: BoxOrder, boxes: Sequence[TmaBox],
        coordinates: tuple[int, ...],
    ) -> None:  # fmt: skip
        """Record a tensor load whose data have arrived."""
        region = w.cta.launch.machine.memory.find(boxes[0].tile.map.address)
        outside = all(box.region is None for box in boxes)
        name = region.name if region is not None else ""
        units = order.units if order.source is None else np.arange(order.footprint // 16)
        extents = tuple(boxes[0].tile.map.dims)
        self._load(at, targets, units, order.footprint, coordinates, extents, name, outside=outside)

    def filled(self, w: Warp, at: int, targets: Sequence[CopyTarget], size: int, address: int) -> None:
        """Record a bulk copy from global memory whose data have arrived."""
        region = w.cta.launch.machine.memory.find(address)
        name = region.name if region is not None else ""
        self._load(at, targets, np.arange(size // 16), size, None, None, name, outside=False)

    def _load(
        self, at: int, targets: Sequence[CopyTarget], units: NDArray[np.intp], size: int,
        coordinates: tuple[int, ...] | None, extents: tuple[int, ...] | None, name: str, *, outside: bool,
    ) -> None:  # fmt: skip
        where = tuple([(target.cta.index, (target.offset, target.offset + size)) for target in targets])
        self.loads.append(Load(at, coordinates, extents, outside, name, where))
        for target in targets:
            target.cta.unit(CtaOrigins).loaded(target.offset, units, len(self.loads) - 1)

    def copied(self, at: int, plan: CopyPlan) -> None:
        """Record a ``tcgen05.cp`` that has been executed."""
        sources: list[tuple[Dim3, Range]] = []
        for part in plan.parts:
            cta = part.tmem.cta
            units = (part.words.ctypes.data - cta.shared.data.ctypes.data) // 16 + part.table // 4
            sources.append((cta.index, _bytes(units)))
            if plan.shape.rows != 4:
                cta.unit(CtaOrigins).copied(plan.column, units, len(self.copies))
        self.copies.append(Copy(at, (plan.column, plan.column + plan.shape.columns), tuple(sources)))

    def loaded_from_tmem(self, cta: Cta, at: int, boxes: Sequence[TmemBox]) -> None:
        """Report the columns that a ``tcgen05.ld`` reads."""
        if self.read is not None:
            for box in boxes:
                self.read(cta, at, (box.column, box.column + box.columns))

    def multiplied(self, w: Warp, at: int, plan: MmaPlan) -> None:
        """Record an MMA, while its operands are as it reads them."""
        form, ins = plan.form, plan.ins
        if ins.vector != 4 or form.a_in_tmem or ins.a_mn or ins.b_mn:
            self.unfollowed += 1
            return
        if len(self.mmas) >= _MOST:
            self.truncated = True
            return
        origins = [part.tmem.cta.unit(CtaOrigins) for part in plan.parts]
        b = self._joined(
            [self._matrix("B", o, p.b_first, p.b_geometry) for o, p in zip(origins, plan.parts, strict=True)]
        )
        parts = tuple([
            Part(each.cta.index, each.cta.linear, self._operands(each, part, plan, b))
            for each, part in zip(origins, plan.parts, strict=True)
        ])  # fmt: skip
        columns = (plan.column, plan.column + plan.path.columns)
        mma = Mma(w.cta.launch.ordinal, at, plan.enable, columns, parts, _otherwise(ins))
        self.mmas.append(mma)
        if self.listen is not None:
            self.listen(mma, origins)

    def _operands(self, origins: CtaOrigins, part: CtaOperands, plan: MmaPlan, b: Operand) -> dict[str, Operand]:
        halves = plan.path.halves
        assert part.a_geometry is not None
        return {
            "A": self._matrix("A", origins, part.a_first, part.a_geometry),
            "B": b,
            "SFA": self._scales("SFA", origins, part.sfa_column, plan.ins.rows, halves=False),
            "SFB": self._scales("SFB", origins, part.sfb_column, plan.ins.n, halves=halves),
        }

    def _matrix(self, name: str, origins: CtaOrigins, first: int, geometry: Geometry) -> Operand:
        units = geometry.table + first
        words = origins.units[units]
        cells = self.tags.of_chunks(words)
        low, high = cells[:, 0], cells[:, 1]
        zero = (low == ZERO) & (high == ZERO)
        cells = np.where(zero, ZERO, np.where((high == low + 1) & (low > ZERO), low, NO_TAG))
        loads = origins.shared.statements(units[:, 0], words[:, 0])
        return Operand(name, self._intern(cells), loads, None, _bytes(units), None)

    def _joined(self, parts: Sequence[Operand]) -> Operand:
        if len(parts) == 1:
            return parts[0]
        cells = np.concatenate([part.cells for part in parts])
        loads = np.concatenate([part.loads for part in parts])
        return Operand(parts[0].name, self._intern(cells), loads, None, parts[0].shared, None)

    def _scales(self, name: str, origins: CtaOrigins, column: int, rows: int, *, halves: bool) -> Operand:
        where = scales.places(column, rows, halves=halves)
        words = origins.columns[where]
        copies = origins.tmem.statements(where, words)
        loads = np.where(copies >= 0, origins.tmem_loads[where], copies)
        columns = (column, column + scales.columns(rows, halves=halves))
        return Operand(name, self._intern(self.tags.of_words(words)), loads, copies, None, columns)

    def _intern(self, cells: Cells) -> Cells:
        """Return one array for equal cells: the tiles of a row or column of C read the same."""
        return self._interned.setdefault(cells.tobytes(), cells)


def _otherwise(ins: InstructionDescriptor) -> str:
    """Return what a descriptor makes of the operands that NVFP4 does not, in words."""
    changes = [
        ("reads scale factors as UE8M0 (bit 23), and they are UE4M3", ins.scale == "ue8m0"),
        ("negates A (bit 13)", ins.negate_a),
        ("negates B (bit 14)", ins.negate_b),
    ]
    return " and ".join(words for words, holds in changes if holds)


def _bytes(units: NDArray[np.intp]) -> Range:
    return 16 * int(units.min()), 16 * int(units.max()) + 16
