"""A ``tcgen05.mma`` whose operands were checked, and its execution as part of an accumulator's chain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.monitor import CtaAccesses, PipeAccesses, TmemBox
from pytest_nvfp4.sim.tcgen05 import containers, scales
from pytest_nvfp4.sim.tcgen05.accumulate import Chain
from pytest_nvfp4.sim.tcgen05.column_use import ColumnUse
from pytest_nvfp4.sim.tcgen05.datapath import Datapath
from pytest_nvfp4.sim.tcgen05.descriptor import InstructionDescriptor, decode_instruction
from pytest_nvfp4.sim.tcgen05.operand import Chunks, Geometry
from pytest_nvfp4.sim.tcgen05.operand_tiles import OperandEncoding
from pytest_nvfp4.sim.tcgen05.tile_cache import OperandTileCache
from pytest_nvfp4.sim.tcgen05.tmem import LANES, Tmem

_SF_IDS = 3 << 4 | 3 << 29
"""SFB id and SFA id in a block-scaled instruction descriptor: the byte of a TMEM column that an MMA starts from."""


@dataclass(frozen=True, slots=True, eq=False)
class MmaForm:
    """One ``tcgen05.mma`` of the code: everything that its opcode and immediates determine.

    Attributes:
        kind: ``.kind``, such as ``mxf4nvf4``.
        group: ``.cta_group``: 1 or 2.
        vector: Scale factors for each row and instruction; 0 without block scaling.
        a_in_tmem: Whether A lies in TMEM instead of shared memory.
        shift: ``scale-input-d``: D is multiplied by 2**-shift first.
        what: The opcode, for messages.
        shifts_a: ``.ashift``: behind the product each row of A in TMEM but the last of each 32 becomes the next one.
        ws: ``.ws``: weight-stationary.
    """

    kind: str
    group: int
    vector: int
    a_in_tmem: bool
    shift: int
    what: str
    shifts_a: bool = False
    ws: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class DecodedMma:
    """An instruction descriptor decoded for a form.

    Attributes:
        family: The descriptor with both SF ids 0. Instructions of one k-loop differ in these ids alone, so that those
            of one family can share a chain.
        a_bytes, b_bytes: Bytes of an element's container.
    """

    ins: InstructionDescriptor
    operands: tuple[OperandEncoding, OperandEncoding]
    family: InstructionDescriptor
    b_rows: int
    a_bytes: int
    b_bytes: int


@lru_cache(maxsize=4096)
def decode_mma(
    value: int, kind: str, group: int, vector: int, a_in_tmem: bool, what: str, ws: bool = False
) -> DecodedMma:
    """Decode an instruction descriptor for a form. Raises Fault or Unsupported."""
    ins = decode_instruction(value, kind, group, vector, what, ws)
    if a_in_tmem and ins.a_mn:
        raise Fault("descriptor", f"{what}: A in TMEM is K-major; the instruction descriptor transposes it (bit 15)")
    packed = ins.kind.packed
    if a_in_tmem and ins.kind.k == 96:
        raise Unsupported(f"{what}: A in TMEM with K = 96")
    # Layout E has a block of A of its own in each half of the lanes.
    rows = LANES if ws and a_in_tmem and ins.rows == LANES // 2 else ins.rows
    a = OperandEncoding(ins.a, packed, ins.negate_a, ins.a_mn, rows, ins.kind.k, ins.scale, ins.vector)
    b = OperandEncoding(ins.b, packed, ins.negate_b, ins.b_mn, ins.n // group, ins.kind.k, ins.scale, ins.vector)
    family = decode_instruction(value & ~_SF_IDS, kind, group, vector, what) if ins.vector else ins
    return DecodedMma(ins, (a, b), family, ins.n // group, a.element_bytes, b.element_bytes)


@dataclass(slots=True, eq=False)
class CtaOperands:
    """Operands of a checked instruction in one CTA.

    A lies either in shared memory (``a_chunks``, ``a_table``, ``a_geometry``, ``a_first``) or in TMEM (``a_path``,
    ``a_column``). The scale factors are in ``sfa_count`` columns from ``sfa_column`` on, and likewise those of B.
    """

    tmem: Tmem
    use: ColumnUse
    a_chunks: Chunks | None = None
    a_geometry: Geometry | None = None
    a_table: NDArray[np.intp] | None = None
    a_path: Datapath | None = None
    a_column: int = 0
    a_first: int = 0
    b_first: int = 0
    sfa_column: int = 0
    sfa_count: int = 0
    sfb_column: int = 0
    sfb_count: int = 0
    b_chunks: Chunks = field(init=False)
    b_geometry: Geometry = field(init=False)
    b_table: NDArray[np.intp] = field(init=False)
    sfa: Callable[[], bytes] = field(init=False)
    sfb: Callable[[], bytes] = field(init=False)


class MmaPlan:
    """A checked instruction and all that its execution needs. It is valid while ``epoch == current_epoch()``.

    Attributes:
        parts: Its operands, by CTA.
        key: What instructions that share a chain have in common.
    """

    def __init__(
        self, decoded: DecodedMma, path: Datapath, column: int, *, enable: bool, enabled: NDArray[np.bool_] | None,
        form: MmaForm, cache: OperandTileCache,
    ) -> None:  # fmt: skip
        self.decoded = decoded
        self.ins = decoded.ins
        self.path = path
        self.column = column
        self.enable = enable
        self.enabled = enabled
        self.form = form
        self.cache = cache
        self.parts: list[CtaOperands] = []
        self.epoch = -1
        self._accesses: tuple[CtaAccesses, ...] | None = None
        self.key = (column, decoded.family, path, form.group, enabled.tobytes() if enabled is not None else None)

    def current_epoch(self) -> int:
        """Return a number that grows with every change that could invalidate the plan."""
        parts = self.parts
        return parts[0].tmem.epoch if len(parts) == 1 else parts[0].tmem.epoch + parts[1].tmem.epoch

    def accesses(self) -> tuple[CtaAccesses, ...]:
        """Return what is read and written, for the monitor."""
        if self._accesses is None:
            self._accesses = tuple([
                CtaAccesses(
                    part.tmem.cta,
                    _accesses(
                        self.decoded, self.path, self.column, self.enable, part.a_geometry, part.a_first,
                        part.a_column, part.b_geometry, part.b_first, part.sfa_column, part.sfb_column,
                        self.form.shifts_a,
                    ),
                )
                for part in self.parts
            ])  # fmt: skip
        return self._accesses

    def execute(self) -> None:
        """Copy the operands into the accumulator's chain."""
        ins, parts = self.ins, self.parts
        in_tmem: list[Chunks] = []
        if self.form.a_in_tmem:
            # A may depend on the accumulator that the new chain overwrites, so that it is read first.
            for part in parts:
                part.tmem.settle(part.a_column, 8)
                chunks = part.a_path.read_a(part.tmem, part.a_column, what=self.form.what)  # type: ignore[union-attr]
                bits = containers.ELEMENT_BITS.get(ins.a, 0)
                if bits and not self.decoded.operands[0].packed:
                    groups = containers.packed(chunks.view(np.uint8).reshape(-1, 16), bits)
                    chunks = groups.reshape(-1).view(np.complex128)
                in_tmem.append(chunks)
                if self.form.shifts_a:
                    columns = part.tmem.data[part.a_column : part.a_column + 8]
                    last = columns[:, 31::32].copy()
                    columns[:, :-1] = columns[:, 1:].copy()
                    columns[:, 31::32] = last
        chain = self._chain()
        chain.length += 1
        for number, recorded in enumerate(chain.parts):
            part = parts[number]
            if in_tmem:
                recorded.a.add(in_tmem[number])
            else:
                recorded.a.gather(part.a_chunks, part.a_table)  # type: ignore[arg-type]
            recorded.b.gather(part.b_chunks, part.b_table)
            if ins.vector:
                recorded.sfa += part.sfa()
                recorded.sfb += part.sfb()
        if ins.vector:
            chain.a_ids.append(ins.a_id)
            chain.b_ids.append(ins.b_id)

    def _chain(self) -> Chain:
        """Return the chain that the instruction extends, or start a new one."""
        open_chain = None
        for pending in self.parts[0].tmem.pending:
            if pending.first == self.column and pending.key == self.key:
                open_chain = pending
                break
        if open_chain is not None:
            if not self.enable:
                open_chain.forget()
            elif open_chain.room and not self.form.shift:
                return open_chain
        for part in self.parts:
            part.tmem.settle(self.column, self.path.columns)
        return Chain(
            self.key, self.decoded.family, self.path, self.column,
            tmems=[part.tmem for part in self.parts], cache=self.cache,
            operands=self.decoded.operands, base=self.enable, shift=self.form.shift, enabled=self.enabled,
        )  # fmt: skip


@lru_cache(maxsize=4096)
def _accesses(
    decoded: DecodedMma, path: Datapath, column: int, enable: bool, a: Geometry | None, a_first: int, a_column: int,
    b: Geometry, b_first: int, sfa_column: int, sfb_column: int, shifts_a: bool,
) -> PipeAccesses:  # fmt: skip
    """Return what an instruction reads and writes in a CTA. Cached, so that all CTAs share one object."""
    ins = decoded.ins
    shared = [b.table.ravel() + b_first]
    boxes = path.boxes(column, path.columns)
    reads = list(boxes) if enable else []
    if a is not None:
        shared.append(a.table.ravel() + a_first)
    else:
        reads.extend(path.boxes(a_column, 8))
    writes = boxes + path.boxes(a_column, 8) if shifts_a else boxes
    if ins.vector:
        reads.append(TmemBox(sfa_column, scales.span(ins.rows, ins.vector, ins.a_id), 0, LANES))
        reads.append(TmemBox(sfb_column, scales.span(ins.n, ins.vector, ins.b_id, halves=path.halves), 0, LANES))
    return PipeAccesses(np.unique(np.concatenate(shared)), tuple(reads), writes)
