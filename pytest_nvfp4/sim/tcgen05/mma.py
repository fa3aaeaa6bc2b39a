"""``tcgen05.mma``: its lowering, and the checks at its issue.

PTX ISA, "tcgen05.mma". ``D = A * B + D``, or ``A * B`` where ``enable-input-d`` is false, for the kinds f16, tf32,
f8f6f4, i8, mxf8f6f4, mxf4 and mxf4nvf4, ``.cta_group::1`` and ``::2``, A in shared memory or TMEM. One thread issues.
With ``.cta_group::2`` the descriptors and TMEM addresses hold for both CTAs of the pair: each has its M / 2 rows of A
and of D, N / 2 rows of B, and the scale factors of its rows of A and of all of B (source: NVIDIA's kernels).

- ``.collector::a::{fill,use,lastuse,discard}`` have no effect, because the hardware may reload A at any time.
- ``disable-output-lane``: a lane whose bit is set keeps D. Set bits are unsupported for a pair of CTAs.
- ``scale-input-d`` (f16, tf32): D is multiplied by 2**-s first.
- ``.ashift`` (A in TMEM, M = 128 for each CTA): behind the product row i of A becomes row i + 1, but for the last row
  of each 32. The ISA says that it shifts the rows down by one, but for the last. NVIDIA's examples of it depend on that
  the product sees A as it was, and the next one the shifted A (``slicek_m32n8k128``); ``1cta_mma_a_from_tmem`` states
  that on a B200 each 32 rows keep their last one, and compares with that.
- ``.ws`` (f16, tf32, f8f6f4 and i8 of one CTA): M = 32, 64 or 128 in layouts of its own (``datapath``).
  ``.collector::b0`` to ``::b3`` have no effect, because the hardware may reload B at any time. A zero-column mask or a
  maximum shift that is not 0 is unsupported.
- ``.sp`` is unsupported.

Checked at issue: descriptors and shapes (kind ``descriptor``); that D, A and the scale factors lie in allocated columns
whose lanes were written as far as they are read; that a row of A and of B in shared memory was written, and of each
scale factor matrix; that one lane issues. Kernels load no rows behind the last one of a problem and store no results of
them: rows of which a byte was never written make their part of D *undefined*, and only a use of that is a finding.

Counters: ``mma.instructions``, the same by kind and CTA group (``mma.mxf4nvf4.2cta``), ``mma.flops`` (2 M N K each,
padding included), ``mma.rows`` and ``mma.columns`` (the sums of M and of N, padding included).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.finding import Where
from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import Bits, Predicate, first, pick
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Address, Immediate, Instruction, TensorAddress, Vector
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.tcgen05 import scales
from pytest_nvfp4.sim.tcgen05.column_use import ColumnUse
from pytest_nvfp4.sim.tcgen05.core import TensorCore
from pytest_nvfp4.sim.tcgen05.datapath import Datapath, datapath
from pytest_nvfp4.sim.tcgen05.descriptor import KINDS, InstructionDescriptor, decode_matrix
from pytest_nvfp4.sim.tcgen05.group import group_of, pair_of, single_lane
from pytest_nvfp4.sim.tcgen05.mma_plan import CtaOperands, MmaForm, MmaPlan, decode_mma
from pytest_nvfp4.sim.tcgen05.operand import Geometry, UnwrittenRows, geometry
from pytest_nvfp4.sim.tcgen05.tmem import LANES, UndefinedWords

_VECTORS = {
    "mxf8f6f4": {"": 1, "scale_vec::1X": 1, "block32": 1},
    "mxf4": {"": 2, "scale_vec::2X": 2, "block32": 2},
    "mxf4nvf4": {"scale_vec::2X": 2, "scale_vec::4X": 4, "block32": 2, "block16": 4},
}
_WIDE = (10, 3)
"""Compute capability that multiplies 96 elements of K at once."""
_COLLECTORS = tuple(f"collector::a::{use}" for use in ("fill", "use", "lastuse", "discard"))
_WS_KINDS = ("f16", "tf32", "f8f6f4", "i8")
_WS_COLLECTORS = tuple(
    f"collector::b{buffer}::{use}" for buffer in range(4) for use in ("fill", "use", "lastuse", "discard")
)
_KEPT = ("collector::a::fill", "collector::a::use")


def issue_ws(
    w: Warp, mask: int, d: Bits, a: Bits, b: Bits, descriptor: Bits, enable: Predicate, zeroed: Bits, form: MmaForm,
    at: int,
) -> None:  # fmt: skip
    """Issue one instruction with ``.ws``; ``zeroed`` is its zero-column mask. Raises Fault or Unsupported."""
    if pick(zeroed, mask):
        raise Unsupported(f"{form.what}: a zero-column mask that is not 0")
    issue(w, mask, d, a, b, descriptor, enable, (), 0, 0, form, at)


def issue(
    w: Warp, mask: int, d: Bits, a: Bits, b: Bits, descriptor: Bits, enable: Predicate, disable: Sequence[Bits],
    sfa: Bits, sfb: Bits, form: MmaForm, at: int,
) -> None:  # fmt: skip
    """Issue one instruction, whose index in the kernel is ``at``. Raises Fault or Unsupported: see the module."""
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
    plan = core.plans.get(key)
    if plan is None or plan.epoch != plan.current_epoch():
        plan = core.plans[key] = _plan(w, core, d, a, b, descriptor, bool(enable), disable, sfa, sfb, form, at)
    elif form.group == 2:
        pair_of(w.cta, 2, what=what)
    core.issuers.issued(w, mask, at, mma=True)
    for part in plan.parts:
        _use_columns(w, at, part, plan)
    counters = core.counters
    w.does.add("mma")
    counters["mma.instructions"] += 1
    counters[f"mma.{form.kind}.{form.group}cta"] += 1
    counters["mma.flops"] += plan.ins.flops
    counters["mma.rows"] += plan.ins.m
    counters["mma.columns"] += plan.ins.n
    if core.machine.monitor is not None:
        core.machine.monitor.tensor_issued(w, at, core.pipe.queue, plan.accesses(), plan)
    if not core.without_data:
        core.submit(core.pipe.queue, plan.execute, what=what)
    if core.machine.operands is not None:
        core.machine.operands.multiplied(w, at, plan)


def _plan(
    w: Warp, core: TensorCore, d: int, a: int, b: int, descriptor: int, enable: bool, disable: Sequence[Bits],
    sfa: int, sfb: int, form: MmaForm, at: int,
) -> MmaPlan:  # fmt: skip
    """Check an instruction. Raises Fault or Unsupported."""
    what = form.what
    decoded = decode_mma(descriptor, form.kind, form.group, form.vector, form.a_in_tmem, what, form.ws)
    ins = decoded.ins
    if ins.kind.k == 96 and core.machine.model.capability != _WIDE:
        raise Fault("descriptor", f"{what}: K = 96 (bit 31 of {descriptor:#010x}), which exists on sm_103 only")
    if core.pipe.group != form.group:
        core.pipe.set_group(form.group, what=what)
    path = datapath(decoded.family, d >> 16, what)
    column = d & 0xFFFF
    enabled = _enabled(disable, path, form) if disable else None
    plan = MmaPlan(decoded, path, column, enable=enable, enabled=enabled, form=form, cache=core.cache)
    cores = (core,) if form.group == 1 else tuple(c.unit(TensorCore) for c in pair_of(w.cta, 2, what=what))
    lanes = path.lanes if enabled is None else enabled
    row_bytes = 16 * decoded.operands[0].chunks
    steady = True
    lost: list[_Lost] = []
    for number, each in enumerate(cores):
        tmem = each.tmem
        if enable and tmem.undefined:
            lost.append(_Lost(number, words=tmem.undefined_words(column, path.columns)))
        part = CtaOperands(tmem, each.cta.unit(ColumnUse))
        plan.parts.append(part)
        tmem.claim(column, path.columns, what=what)
        if enable:
            tmem.need(
                column, path.columns, lanes, what=f"{what} accumulates", undefined=True,
                hint="the first MMA must not accumulate: clear its enable-input-d, or store to TMEM first",
            )  # fmt: skip
        if ins.vector:
            columns_a = scales.check(tmem, sfa, ins.rows, ins.a_id, vector=ins.vector, name="SFA", what=what)
            columns_b = scales.check(
                tmem, sfb, ins.n, ins.b_id, vector=ins.vector, name="SFB", what=what, halves=path.halves
            )
            count_a = scales.span(ins.rows, ins.vector, ins.a_id)
            count_b = scales.span(ins.n, ins.vector, ins.b_id, halves=path.halves)
            for name, start, count in (("SFA", columns_a, count_a), ("SFB", columns_b, count_b)):
                _disjoint(column, path.columns, name, start, count, what)
            part.sfa_column, part.sfb_column = columns_a, columns_b
            part.sfa_count, part.sfb_count = count_a, count_b
            steady &= tmem.is_replicated(columns_a, count_a)
            steady &= not path.halves and tmem.is_replicated(columns_b, count_b)
            part.sfa = scales.reader(tmem, columns_a, ins.rows, vector=ins.vector, sf_id=ins.a_id)
            part.sfb = scales.reader(tmem, columns_b, ins.n, vector=ins.vector, sf_id=ins.b_id, halves=path.halves)
            if tmem.undefined:
                sfa_rows = scales.undefined_rows(tmem, columns_a, ins.rows, vector=ins.vector, sf_id=ins.a_id)
                sfb_rows = scales.undefined_rows(tmem, columns_b, ins.n, vector=ins.vector, sf_id=ins.b_id)
                lost += [_Lost(number, rows=sfa_rows)] * (sfa_rows is not None)
                lost += [_Lost(number, columns=sfb_rows)] * (sfb_rows is not None)
        if form.a_in_tmem:
            part.a_path, part.a_column = _tmem_a(each, a, decoded.family, path, what)
            if form.shifts_a and (part.a_path.lanes is not None or ins.rows != LANES):
                raise Fault("descriptor", f"{what}: .ashift with M = {ins.m}, which is not 128 for each CTA")
        else:
            part.a_first, part.a_geometry, unwritten = _shared_operand(
                each, a, ins.rows, ins.a_mn, decoded.a_bytes, row_bytes, f"{what}: A"
            )
            lost += [_Lost(number, rows=unwritten)] * (unwritten is not None)
            part.a_chunks, part.a_table = each.chunks.chunks[part.a_first :], part.a_geometry.table
        part.b_first, part.b_geometry, unwritten = _shared_operand(
            each, b, decoded.b_rows, ins.b_mn, decoded.b_bytes, row_bytes, f"{what}: B"
        )
        if unwritten is not None:
            lost += [_Lost(other, columns=unwritten, first=number * decoded.b_rows) for other in range(len(cores))]
        part.b_chunks, part.b_table = each.chunks.chunks[part.b_first :], part.b_geometry.table
        tmem.wrote(column, path.columns, lanes)
        if path.lanes is not None:
            tmem.halved[column : column + path.columns] = bytes([1]) * path.columns
    if lost:
        steady = False
        _undefine(plan, lost, w.cta.launch.where(w, at))
    # No epoch covers quadrants that a warpx4 copy did not make equal: a later store may make them differ, so that
    # such a plan is checked anew at every issue.
    plan.epoch = plan.current_epoch() if steady else -1
    return plan


class _Lost(NamedTuple):
    """What makes a part of D undefined in a CTA: rows, columns from ``first`` on, or words of D as it was."""

    cta: int
    rows: UnwrittenRows | None = None
    columns: UnwrittenRows | None = None
    first: int = 0
    words: UndefinedWords | None = None


def _undefine(plan: MmaPlan, lost: Sequence[_Lost], where: Where) -> None:
    """Record which words of D depend on what nothing has written. Raises Fault where this is not modelled."""
    path = plan.path
    for number, part in enumerate(plan.parts):
        values = np.zeros((path.n, path.rows), np.bool_)
        words = np.zeros((path.columns, LANES), np.bool_)
        fault: Fault | None = None
        for one in lost:
            if one.cta != number:
                continue
            for unwritten in (one.rows, one.columns):
                if unwritten is not None:
                    if path.banks > 1:
                        raise unwritten.fault
                    unwritten.fault.where = unwritten.fault.where or where
                    fault = fault or unwritten.fault
            if one.rows is not None:
                values[:, one.rows.rows] = True
            if one.columns is not None:
                values[one.first + np.flatnonzero(one.columns.rows)] = True
        path.view(words)[...] = values.reshape(path.shape)  # type: ignore[arg-type]  # of any element
        if plan.enabled is not None:
            words[:, ~plan.enabled] = False
        for one in lost:
            if one.cta == number and one.words is not None and one.words.fault is not None:
                words |= one.words.words
                fault = fault or one.words.fault
        if fault is not None:
            part.tmem.undefine(plan.column, words, fault)


def _use_columns(w: Warp, at: int, part: CtaOperands, plan: MmaPlan) -> None:
    """Record the TMEM columns that an instruction uses in one CTA."""
    ins, use = plan.ins, part.use
    if ins.vector:
        same = not plan.form.a_in_tmem and part.a_first == part.b_first
        use.scaled(w, at, "SFA", part.sfa_column, part.sfa_count, ins.a_id, same=same)
        use.scaled(w, at, "SFB", part.sfb_column, part.sfb_count, ins.b_id, same=same)
    half = plan.path.align if plan.path.layout == "F" else None
    use.accumulated(w, at, plan.column, plan.path.columns, adds=plan.enable, half=half)


def _shared_operand(
    core: TensorCore, value: int, rows: int, mn: bool, size: int, row_bytes: int, what: str
) -> tuple[int, Geometry, UnwrittenRows | None]:  # fmt: skip
    """Check an operand in shared memory and return its first chunk, its geometry, and its rows that are not written."""
    decoded = decode_matrix(value, what)
    if decoded.then is not None and row_bytes != 48:
        raise Fault("descriptor", f"{what}: an absolute LBO (bit 52 of {value:#018x}) is for K = 96 on sm_103 only")
    table = geometry(decoded, rows=rows, mn=mn, element_bytes=size, what=what, row_bytes=row_bytes)
    first_chunk, unwritten = core.chunks.check(decoded.lowest, table, what=what)
    if unwritten is not None and unwritten.rows.all():
        raise unwritten.fault
    return first_chunk, table, unwritten


def _tmem_a(
    core: TensorCore, address: int, ins: InstructionDescriptor, path: Datapath, what: str
) -> tuple[Datapath, int]:
    """Check A in TMEM and return its datapath and first column."""
    lane_path = datapath(ins, address >> 16, what)
    if lane_path.align != path.align:
        raise Fault(
            "tmem",
            f"{what}: A starts at TMEM lane {address >> 16} and D at lane {16 * path.align}; with M = {ins.m} both "
            "must start at the same lane",
        )
    column = address & 0xFFFF
    core.tmem.claim(column, 8, what=f"{what}: A")
    core.tmem.need(column, 8, lane_path.lanes, what=f"{what}: A")
    return lane_path, column


def _disjoint(d: int, columns: int, name: str, start: int, count: int, what: str) -> None:
    """Raise Fault if scale factors overlap the accumulator."""
    if start < d + columns and d < start + count:
        raise Fault(
            "tmem",
            f"{what}: {name} in TMEM columns [{start}, {start + count}) overlaps the accumulator in "
            f"[{d}, {d + columns})",
            hint="check the column offsets of the accumulator and of the scale factors",
        )


def _enabled(words: Sequence[Bits], path: Datapath, form: MmaForm) -> NDArray[np.bool_] | None:
    """Return the lanes that ``disable-output-lane`` leaves enabled, None for all of the datapath's."""
    if not any(words):
        return None
    if form.group == 2:
        raise Unsupported(f"{form.what}: disable-output-lane with a bit set for a pair of CTAs")
    bits = np.unpackbits(np.array(words, "<u4").view(np.uint8), bitorder="little").astype(np.bool_)
    return ~bits if path.lanes is None else path.lanes & ~bits


def _form(ins: Instruction) -> tuple[OpcodeReader, str, int, int, bool, bool]:
    """Parse an opcode: its reader, kind, group, scale factors per row, whether it shifts A, and whether it has .ws."""
    group, read = group_of(ins, ordered=False)
    ws = read.has("ws")
    kind = read.one(*(f"kind::{kind}" for kind in KINDS)).removeprefix("kind::")
    if ws:
        if group == 2 or kind not in _WS_KINDS:
            raise read.refuse(f".ws with .kind::{kind} and .cta_group::{group}")
        read.maybe(*_WS_COLLECTORS)
        read.done()
        return read, kind, group, 0, False, True
    scaled = read.has("block_scale")
    vector = read.maybe("scale_vec::1X", "scale_vec::2X", "scale_vec::4X", "block16", "block32")
    shifts_a = read.has("ashift")
    if read.maybe(*_COLLECTORS) in _KEPT and shifts_a:
        raise read.refuse(".ashift with an A that stays in the collector")
    read.done()
    if scaled != KINDS[kind].scaled:
        raise read.refuse(".block_scale is required with the mx kinds and allowed with no others")
    if not scaled:
        if vector:
            raise read.refuse(f".{vector} without .block_scale")
        return read, kind, group, 0, shifts_a, False
    count = _VECTORS[kind].get(vector)
    if count is None:
        raise read.refuse(f"scale vector size {vector or '(none)'} for .kind::{kind}")
    return read, kind, group, count, shifts_a, False


def _lower(ins: Instruction, e: Emitter) -> None:
    read, kind, group, vector, shifts_a, ws = _form(ins)
    operands = list(ins.operands)
    if len(operands) < 5:
        raise read.refuse(f"{len(operands)} operands")
    a_in_tmem = isinstance(operands[1], (Address, TensorAddress))
    if shifts_a and not a_in_tmem:
        raise read.refuse(".ashift with A in shared memory")
    d = e.address(operands[0])
    a = e.address(operands[1]) if a_in_tmem else e.value(operands[1], 64)
    b, descriptor = e.value(operands[2], 64), e.value(operands[3], 32)
    rest = operands[4:]
    if ws:
        if len(rest) > 2:
            raise read.refuse(f"{len(operands)} operands")
        enable = e.predicate(rest[0])
        zeroed = e.value(rest[1], 64) if len(rest) == 2 else "0"
        weights = e.constant(MmaForm(kind, 1, 0, a_in_tmem, 0, f"tcgen05.mma.ws.kind::{kind}", ws=True), "form")
        e.line(e.call(issue_ws, "w", e.mask, d, a, b, descriptor, enable, zeroed, weights, str(e.at)))
        return
    sfa = sfb = "0"
    disable: list[str] = []
    shift = 0
    if vector:
        if len(rest) != 3:
            raise read.refuse(f"{len(operands)} operands; 7 are known")
        sfa, sfb = e.address(rest[0]), e.address(rest[1])
        rest = rest[2:]
    elif isinstance(rest[0], Vector):
        disable = e.values(rest[0], 32)
        if len(disable) != 4 * group:
            raise read.refuse(f"disable-output-lane of {len(disable)} words; it has {4 * group}")
        rest = rest[1:]
    if not rest:
        raise read.refuse("enable-input-d is missing")
    enable = e.predicate(rest[0])
    if len(rest) == 2:
        if kind not in ("f16", "tf32") or not isinstance(rest[1], Immediate) or not 0 <= rest[1].value <= 15:
            raise read.refuse(f"scale-input-d {rest[1]}; an immediate 0 to 15 of f16 and tf32")
        shift = rest[1].value
    elif len(rest) > 2:
        raise read.refuse(f"{len(operands)} operands")
    form = e.constant(MmaForm(kind, group, vector, a_in_tmem, shift, f"tcgen05.mma.kind::{kind}", shifts_a), "form")
    lanes = "(" + "".join(f"{word}, " for word in disable) + ")"
    e.line(e.call(issue, "w", e.mask, d, a, b, descriptor, enable, lanes, sfa, sfb, form, str(e.at)))


LOWERINGS = {"tcgen05.mma": _lower}
