"""``tcgen05.mma``: checks when it is issued, copies of its operands, and a place in its accumulator's chain.

PTX ISA, "tcgen05.mma". ``D = A * B + D``, or ``A * B`` where ``enable-input-d`` is false, for the kinds f16, tf32,
f8f6f4, i8, mxf8f6f4, mxf4 and mxf4nvf4, ``.cta_group::1`` and ``::2``, A in shared memory or TMEM. One thread issues.
With ``.cta_group::2`` the descriptors and TMEM addresses hold for both CTAs of the pair: each has its M / 2 rows of A
and of D, N / 2 rows of B, and the scale factors of its rows of A and of all of B (rests on NVIDIA's kernels).

- ``.collector::a::{fill,use,lastuse,discard}``: the hardware may reload A at any time, so they have no effect.
- ``disable-output-lane``: a lane whose bit is set keeps D. Bits for a pair are unsupported where one is set.
- ``scale-input-d`` (f16, tf32): D times 2**-s first.
- ``.ws``, ``.sp``, ``.ashift`` and a zero-column mask are unsupported.

Checked at issue: descriptors and shapes (``descriptor``), that D, A and the scale factors lie in allocated columns that
were written as far as they are read, that every byte of A and B in shared memory was written, one lane.

Counters: ``mma.instructions``, ``mma.flops`` (2 M N K each, padding included), ``mma.rows`` and ``mma.columns`` (the
sums of M and of N, useful or not).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import Bits, Predicate, first, pick
from pytest_nvfp4.sim.tcgen05 import scales
from pytest_nvfp4.sim.tcgen05.accumulate import Chain
from pytest_nvfp4.sim.tcgen05.core import TensorCore
from pytest_nvfp4.sim.tcgen05.datapath import Datapath, datapath
from pytest_nvfp4.sim.tcgen05.descriptor import InstructionDescriptor, decode_instruction, decode_matrix
from pytest_nvfp4.sim.tcgen05.group import pair_of, single_lane
from pytest_nvfp4.sim.tcgen05.monitor import CtaAccesses, PipeAccesses
from pytest_nvfp4.sim.tcgen05.operand import Chunks, Geometry, geometry
from pytest_nvfp4.sim.tcgen05.operand_tiles import OperandEncoding
from pytest_nvfp4.sim.tcgen05.tmem import LANES

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["MmaForm", "MmaPlan", "issue"]

_SF_IDS = 3 << 4 | 3 << 29
"""The ids of SFB and SFA in a scaled kind's instruction descriptor: from which byte of a column an MMA takes them."""


@dataclass(frozen=True, slots=True, eq=False)
class MmaForm:
    """What an opcode says: kind, group, scale factors a row, whether A is in TMEM, ``scale-input-d``."""

    kind: str
    group: int
    vector: int
    a_in_tmem: bool
    shift: int
    what: str


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """What an instruction descriptor means for a form; made once for each. ``family`` is the same for all SF ids."""

    ins: InstructionDescriptor
    operands: tuple[OperandEncoding, OperandEncoding]
    family: InstructionDescriptor
    b_rows: int
    a_bytes: int
    b_bytes: int


@lru_cache(maxsize=4096)
def _work(value: int, kind: str, group: int, vector: int, a_in_tmem: bool, what: str) -> _Work:
    ins = decode_instruction(value, kind, group, vector, what)
    if a_in_tmem and ins.a_mn:
        raise Fault("descriptor", f"{what}: A in TMEM is K-major; the instruction descriptor transposes it (bit 15)")
    if a_in_tmem and ins.a in ("e2m3", "e3m2", "e2m1") and ins.kind.k != 64:
        raise Unsupported(f"{what}: A of {ins.a} in TMEM, in 8-bit containers")
    packed = ins.kind.k == 64
    a = OperandEncoding(ins.a, packed, ins.negate_a, ins.a_mn, ins.rows, ins.kind.k, ins.scale, vector)
    b = OperandEncoding(ins.b, packed, ins.negate_b, ins.b_mn, ins.n // group, ins.kind.k, ins.scale, vector)
    family = decode_instruction(value & ~_SF_IDS, kind, group, vector, what) if ins.vector else ins
    return _Work(ins, (a, b), family, ins.n // group, a.element_bytes, b.element_bytes)


def issue(
    w: Warp,
    mask: int,
    d: Bits,
    a: Bits,
    b: Bits,
    descriptor: Bits,
    enable: Predicate,
    disable: Sequence[Bits],
    sfa: Bits,
    sfb: Bits,
    form: MmaForm,
    at: int,
) -> None:
    """Issue one instruction (``at`` is its index). Raises Fault or Unsupported as the module says."""
    what = form.what
    if mask & (mask - 1):
        single_lane(w, mask, what=what)
    d, a, b = pick(d, mask), pick(a, mask), pick(b, mask)
    descriptor, sfa, sfb = pick(descriptor, mask), pick(sfa, mask), pick(sfb, mask)
    if enable.__class__ is not bool:
        enable = bool(enable[first(mask)])  # type: ignore[index]
    if disable:
        disable = tuple(pick(word, mask) for word in disable)
    core = w.cta.unit(TensorCore)
    key = (d, a, b, descriptor, sfa, sfb, enable, disable, form)
    plan: MmaPlan | None = core.plans.get(key)
    if plan is None or plan.epoch != plan.now():
        plan = core.plans[key] = _plan(w, core, d, a, b, descriptor, bool(enable), disable, sfa, sfb, form)
    elif form.group == 2:
        pair_of(w.cta, 2, what=what)
    core.issuers.issued(w, mask, at, mma=True)
    counters = core.counters
    counters["mma.instructions"] += 1
    counters["mma.flops"] += plan.ins.flops
    counters["mma.rows"] += plan.ins.m
    counters["mma.columns"] += plan.ins.n
    if core.machine.monitor is not None:
        core.machine.monitor.tensor_issued(w, at, core.pipe.queue, plan.touched())
    core.submit(core.pipe.queue, plan.execute, what=what)


class _Side:
    """One CTA's part of a checked instruction."""

    __slots__ = (
        "a_chunks", "a_column", "a_first", "a_geometry", "a_path", "a_table", "b_chunks", "b_first", "b_geometry",
        "b_table", "core", "sfa", "sfa_column", "sfb", "sfb_column", "tmem",
    )  # fmt: skip

    def __init__(self, core: TensorCore) -> None:
        self.core = core
        self.tmem = core.tmem
        self.a_chunks: Chunks | None = None
        self.a_geometry: Geometry | None = None
        self.a_table: NDArray[np.intp] | None = None
        self.a_path: Datapath | None = None
        self.a_column = 0
        self.a_first = self.b_first = 0
        self.sfa_column = self.sfb_column = 0
        self.b_chunks: Chunks
        self.b_geometry: Geometry
        self.b_table: NDArray[np.intp]
        self.sfa: scales.Words
        self.sfb: scales.Words


class MmaPlan:
    """A checked instruction: all that its execution needs. It holds while ``epoch`` is ``now()``."""

    __slots__ = ("_touched", "column", "enable", "enabled", "epoch", "form", "ins", "key", "path", "sides", "work")

    def __init__(
        self,
        work: _Work,
        path: Datapath,
        column: int,
        *,
        enable: bool,
        enabled: NDArray[np.bool_] | None,
        form: MmaForm,
    ) -> None:
        self.work = work
        self.ins = work.ins
        self.path = path
        self.column = column
        self.enable = enable
        self.enabled = enabled
        self.form = form
        self.sides: list[_Side] = []
        self.epoch = -1
        self._touched: tuple[CtaAccesses, ...] | None = None
        self.key = (column, work.family, path, form.group, enabled.tobytes() if enabled is not None else None)

    def now(self) -> int:
        """Grows when something changes in one of the CTAs."""
        sides = self.sides
        return sides[0].tmem.epoch if len(sides) == 1 else sides[0].tmem.epoch + sides[1].tmem.epoch

    def touched(self) -> tuple[CtaAccesses, ...]:
        """What is read and written, for the monitor."""
        if self._touched is None:
            self._touched = tuple([
                (
                    side.core.cta,
                    _touches(
                        self.work, self.path, self.column, self.enable, side.a_geometry, side.a_first, side.a_column,
                        side.b_geometry, side.b_first, side.sfa_column, side.sfb_column,
                    ),
                )
                for side in self.sides
            ])  # fmt: skip
        return self._touched

    def execute(self) -> None:
        """Read the operands and join the chain."""
        ins, sides = self.ins, self.sides
        in_tmem: list[Chunks] = []
        if self.form.a_in_tmem:
            # What A is computed from may be what the new chain writes: it is read first.
            for side in sides:
                side.tmem.settle(side.a_column, 8)
                in_tmem.append(side.a_path.read_a(side.tmem, side.a_column, what=self.form.what))  # type: ignore[union-attr]
        chain = self._chain()
        chain.length += 1
        for number, half in enumerate(chain.halves):
            side = sides[number]
            if in_tmem:
                half.a.add(in_tmem[number])
            else:
                half.a.gather(side.a_chunks, side.a_table)  # type: ignore[arg-type]
            half.b.gather(side.b_chunks, side.b_table)
            if ins.vector:
                half.sfa += side.sfa.tobytes()
                half.sfb += side.sfb.tobytes()
        if ins.vector:
            chain.a_ids.append(ins.a_id)
            chain.b_ids.append(ins.b_id)

    def _chain(self) -> Chain:
        """The chain to go on with, or a new one."""
        found = None
        for pending in self.sides[0].tmem.pending:
            if pending.first == self.column and isinstance(pending, Chain) and pending.key == self.key:
                found = pending
                break
        if found is not None:
            if not self.enable:
                found.forget()
            elif found.room and not self.form.shift:
                return found
        for side in self.sides:
            side.tmem.settle(self.column, self.path.columns)
        return Chain(
            self.key, self.work.family, self.path, self.column,
            tmems=[side.tmem for side in self.sides], cache=self.sides[0].core.cache,
            operands=self.work.operands, base=self.enable, shift=self.form.shift, enabled=self.enabled,
        )  # fmt: skip


@lru_cache(maxsize=4096)
def _touches(
    work: _Work, path: Datapath, column: int, enable: bool, a: Geometry | None, a_first: int, a_column: int,
    b: Geometry, b_first: int, sfa_column: int, sfb_column: int,
) -> PipeAccesses:  # fmt: skip
    """What an instruction reads and writes in a CTA, found once for all CTAs."""
    ins = work.ins
    shared = [b.table.ravel() + b_first]
    boxes = path.boxes(column, path.columns)
    reads = list(boxes) if enable else []
    if a is not None:
        shared.append(a.table.ravel() + a_first)
    else:
        reads.extend(path.boxes(a_column, 8))
    if ins.vector:
        reads.append((sfa_column, scales.columns(ins.rows), 0, LANES))
        reads.append((sfb_column, scales.columns(ins.n, halves=path.halves), 0, LANES))
    return PipeAccesses(np.unique(np.concatenate(shared)), tuple(reads), boxes)


def _plan(
    w: Warp, core: TensorCore, d: int, a: int, b: int, descriptor: int, enable: bool, disable: Sequence[Bits],
    sfa: int, sfb: int, form: MmaForm,
) -> MmaPlan:  # fmt: skip
    """Check an instruction. Raises Fault or Unsupported."""
    what = form.what
    work = _work(descriptor, form.kind, form.group, form.vector, form.a_in_tmem, what)
    ins = work.ins
    if core.pipe.group != form.group:
        core.pipe.set_group(form.group, what=what)
    path = datapath(work.family, d >> 16, what)
    column = d & 0xFFFF
    enabled = _enabled(disable, path, form) if disable else None
    plan = MmaPlan(work, path, column, enable=enable, enabled=enabled, form=form)
    cores = (core,) if form.group == 1 else tuple(c.unit(TensorCore) for c in pair_of(w.cta, 2, what=what))
    lanes = path.lanes if enabled is None else enabled
    steady = True
    for one in cores:
        tmem = one.tmem
        side = _Side(one)
        plan.sides.append(side)
        tmem.claim(column, path.columns, what=what)
        if enable:
            tmem.need(
                column, path.columns, lanes, what=f"{what} accumulates",
                hint="the first instruction must not accumulate (enable-input-d false), or TMEM must be set first",
            )  # fmt: skip
        if ins.vector:
            columns_a = scales.check(tmem, sfa, ins.rows, ins.a_id, name="SFA", what=what)
            columns_b = scales.check(tmem, sfb, ins.n, ins.b_id, name="SFB", what=what, halves=path.halves)
            count_a, count_b = scales.columns(ins.rows), scales.columns(ins.n, halves=path.halves)
            for name, start, count in (("SFA", columns_a, count_a), ("SFB", columns_b, count_b)):
                _disjoint(column, path.columns, name, start, count, what)
            side.sfa_column, side.sfb_column = columns_a, columns_b
            steady &= tmem.is_replicated(columns_a, count_a)
            steady &= not path.halves and tmem.is_replicated(columns_b, count_b)
            side.sfa = scales.words(tmem, columns_a, ins.rows)
            side.sfb = scales.words(tmem, columns_b, ins.n, halves=path.halves)
        if form.a_in_tmem:
            side.a_path, side.a_column = _tmem_a(one, a, work.family, path, what)
        else:
            side.a_first, side.a_geometry = _look(one, a, ins.rows, ins.a_mn, work.a_bytes, f"{what}: A")
            side.a_chunks, side.a_table = one.chunks.chunks[side.a_first :], side.a_geometry.table
        side.b_first, side.b_geometry = _look(one, b, work.b_rows, ins.b_mn, work.b_bytes, f"{what}: B")
        side.b_chunks, side.b_table = one.chunks.chunks[side.b_first :], side.b_geometry.table
        tmem.wrote(column, path.columns, lanes)
    # Quadrants that a warpx4 copy did not make equal may become different: they are compared each time.
    plan.epoch = plan.now() if steady else -1
    return plan


def _look(core: TensorCore, value: int, rows: int, mn: bool, size: int, what: str) -> tuple[int, Geometry]:
    """Check an operand in shared memory: its first chunk and geometry."""
    decoded = decode_matrix(value, what)
    found = geometry(decoded, rows=rows, mn=mn, element_bytes=size, what=what)
    return core.chunks.check(decoded.start, found, what=what), found


def _tmem_a(
    core: TensorCore, address: int, ins: InstructionDescriptor, path: Datapath, what: str
) -> tuple[Datapath, int]:
    """Check A in TMEM: its datapath and first column."""
    lane_path = datapath(ins, address >> 16, what)
    if lane_path.align != path.align:
        raise Fault("tmem", f"{what}: A starts at lane {address >> 16} and D does not; M = {ins.m} wants the same lane")
    column = address & 0xFFFF
    core.tmem.claim(column, 8, what=f"{what}: A")
    core.tmem.need(column, 8, lane_path.lanes, what=f"{what}: A")
    return lane_path, column


def _disjoint(d: int, columns: int, name: str, start: int, count: int, what: str) -> None:
    """Check that scale factors do not lie in the accumulator."""
    if start < d + columns and d < start + count:
        raise Fault(
            "tmem",
            f"{what}: {name} in TMEM columns [{start}, {start + count}) overlaps the accumulator in "
            f"[{d}, {d + columns})",
            hint="look at the column offsets of the accumulator and the scale factors",
        )


def _enabled(words: Sequence[Bits], path: Datapath, form: MmaForm) -> NDArray[np.bool_] | None:
    """Lanes that are updated, None for all of the datapath's."""
    if not any(words):
        return None
    if form.group == 2:
        raise Unsupported(f"{form.what}: disable-output-lane with a bit set for a pair of CTAs")
    bits = np.unpackbits(np.array(words, "<u4").view(np.uint8), bitorder="little").astype(np.bool_)
    return ~bits if path.lanes is None else path.lanes & ~bits
