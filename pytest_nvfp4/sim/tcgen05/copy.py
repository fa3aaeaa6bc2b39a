"""``tcgen05.cp``: shared memory to TMEM (PTX ISA, "tcgen05.cp").

The source is a K-major matrix of rows of 128 or 256 bits, addressed by a matrix descriptor like an MMA operand (see
``operand``; without a swizzle, rows of 256 bits are two 16-byte columns that lie LBO apart). The words of row r go to
consecutive columns of these TMEM lanes:

- ``.128x256b`` and ``.128x128b``: 128 rows to lanes 0-127, 8 or 4 columns;
- ``.4x256b``: 4 rows to lanes 0, 32, 64 and 96 (source: CUTLASS's copy traits);
- ``.64x128b.warpx2::02_13``: rows 0-31 to quadrants 0 and 2, rows 32-63 to 1 and 3; ``::01_23``: rows 0-31 to 0 and 1,
  rows 32-63 to 2 and 3;
- ``.32x128b.warpx4``: 32 rows to each quadrant. NVIDIA's block-scaled kernels copy their scale factors this way.

With ``.cta_group::2`` each CTA of the pair copies from its own shared memory to its own TMEM. ``.b8x16.b6x16_p32`` and
``.b8x16.b4x16_p64`` decompress: each 16 bytes of a row are 16 elements and padding, which ``containers`` spreads to
bytes. One thread issues the copy; if several do with the same operands, that is reported, and it is executed once.

Counters: ``tcgen05.cp.instructions``, ``tcgen05.cp.bytes`` (read from shared memory).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import Bits, lanes, pick, uniform
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.monitor import CtaAccesses, PipeAccesses, TmemBox
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.tcgen05.column_use import ColumnUse
from pytest_nvfp4.sim.tcgen05.copy_plan import CopyPlan, CopyShape, CtaCopy
from pytest_nvfp4.sim.tcgen05.core import TensorCore
from pytest_nvfp4.sim.tcgen05.descriptor import MatrixDescriptor, decode_matrix
from pytest_nvfp4.sim.tcgen05.group import group_of, pair_of, repeated_copy, single_lane
from pytest_nvfp4.sim.tcgen05.operand import Geometry, first_chunk, geometry, units_of
from pytest_nvfp4.sim.tcgen05.tmem import LANES

_FIRST_LANES: NDArray[np.bool_] = np.equal(np.arange(LANES) % 32, 0)
"""The first lane of each quadrant, which ``.4x256b`` writes."""


def copy(w: Warp, mask: int, address: Bits, descriptor: Bits, shape: CopyShape, at: int) -> None:
    """Issue one copy.

    Raises:
        Fault: an illegal descriptor or address, several lanes with different operands, or memory that is not allocated
            or written.
        Unsupported: a descriptor that is not modelled.
    """
    what = shape.what
    if mask & (mask - 1):
        if uniform(address, mask) is None or uniform(descriptor, mask) is None:
            single_lane(w, mask, what=what)
        repeated_copy(w, mask, what=what)
    address, value = pick(address, mask), pick(descriptor, mask)
    core = w.cta.unit(TensorCore)
    key = (address, value, shape)
    plan = core.copies.get(key)
    if plan is None or plan.epoch != plan.current_epoch():
        plan = core.copies[key] = _plan(w, core, address, value, shape, at)
    elif shape.group == 2:
        pair_of(w.cta, 2, what=what)
    for lane in lanes(mask):
        core.issuers.issued(w, 1 << lane, at, mma=False)
    scales = shape.rows in (32, 64)
    for part in plan.parts:
        part.use.copied(plan.column, shape.columns, at, scales=scales)
    counters = core.counters
    w.does.add("scale-copy")
    counters["tcgen05.cp.instructions"] += 1
    counters["tcgen05.cp.bytes"] += plan.size
    if core.machine.monitor is not None:
        if plan.accesses is None:
            accesses = _accesses(address & 0xFFFF, value, shape)
            plan.accesses = tuple([CtaAccesses(part.tmem.cta, accesses) for part in plan.parts])
        core.machine.monitor.tensor_issued(w, at, core.pipe.queue, plan.accesses, plan)
    if not core.without_data:
        core.submit(core.pipe.queue, plan.execute, what=what)
    if core.machine.operands is not None:
        core.machine.operands.copied(at, plan)


@lru_cache(maxsize=4096)
def _accesses(column: int, value: int, shape: CopyShape) -> PipeAccesses:
    """Return what a copy reads and writes in a CTA, for the monitor."""
    decoded, table = _source(value, shape)
    written: tuple[TmemBox, ...] = (TmemBox(column, shape.columns, 0, LANES),)
    if shape.rows == 4:
        written = tuple(TmemBox(column, shape.columns, 32 * q, 1) for q in range(4))
    return PipeAccesses(units_of(table) + first_chunk(decoded.start), (), written)


def _source(value: int, shape: CopyShape) -> tuple[MatrixDescriptor, Geometry]:
    """Return the decoded source descriptor and the chunks of its rows. Raises Fault or Unsupported."""
    decoded = decode_matrix(value, shape.what)
    if decoded.then is not None:
        raise Fault("descriptor", f"{shape.what}: an absolute LBO (bit 52 of {value:#018x}) is for an MMA of K = 96")
    row_bytes = shape.bits // 8
    return decoded, geometry(
        decoded, rows=shape.rows, mn=False, element_bytes=1, what=shape.what, row_bytes=row_bytes
    )  # fmt: skip


def _plan(w: Warp, core: TensorCore, address: int, value: int, shape: CopyShape, at: int) -> CopyPlan:
    """Check a copy. Raises Fault or Unsupported.

    Words of which a byte was never written are undefined in TMEM, too; a copy of nothing else is a fault.
    """
    what, columns = shape.what, shape.columns
    if core.pipe.group != shape.group:
        core.pipe.set_group(shape.group, what=what)
    lane, column = address >> 16 & 0x3FFF, address & 0xFFFF
    if lane:
        raise Fault("tmem", f"{what}: TMEM address {address:#010x} has lane {lane}; a copy must start at lane 0")
    cores = (core,) if shape.group == 1 else tuple(c.unit(TensorCore) for c in pair_of(w.cta, 2, what=what))
    parts: list[CtaCopy] = []
    steady = True
    for each in cores:
        tmem = each.tmem
        tmem.claim(column, columns, what=what)
        decoded, table = _source(value, shape)
        first, unwritten = each.chunks.check(decoded.start, table, what=what)
        target = tmem.data[column : column + columns]
        if shape.rows == 32:
            tmem.wrote_replicated(column, columns)
        elif shape.rows == 4:
            tmem.wrote(column, columns, _FIRST_LANES)
            target = target[:, ::32]
        else:
            tmem.wrote(column, columns)
        source = each.chunks.chunks[first:].view(np.uint32)
        words = _words(shape, table)
        if unwritten is not None:
            written = each.chunks.written_words(4 * first + words)
            if shape.rows == 4 or shape.packed or not written.any():
                raise unwritten.fault
            unwritten.fault.where = w.cta.launch.where(w, at)
            tmem.undefine(column, ~written, unwritten.fault)
            steady = False
        parts.append(CtaCopy(tmem, each.cta.unit(ColumnUse), source, words, target))
    plan = CopyPlan(parts, shape, column)
    if not steady:
        plan.epoch = -1
    return plan


@lru_cache(maxsize=1024)
def _words(shape: CopyShape, table: Geometry) -> NDArray[np.intp]:
    """Return for each target word ``[column][lane]`` the number of its source word, from the pattern's start."""
    columns = shape.columns
    words = (table.table[:, :, None] * 4 + np.arange(4)).reshape(shape.rows, columns).T
    if shape.rows == 32:
        words = np.broadcast_to(words[:, None, :], (columns, 4, 32))
    elif shape.rows == 64:
        halves = words.reshape(columns, 2, 32)
        # 02_13 repeats the pair of halves, 01_23 repeats each half.
        halves = halves[:, None] if shape.multicast == "warpx2::02_13" else halves[:, :, None]
        words = np.broadcast_to(halves, (columns, 2, 2, 32))
    return np.ascontiguousarray(words).reshape(columns, -1)


_SHAPES = {
    ("128x256b", ""): (128, 256),
    ("4x256b", ""): (4, 256),
    ("128x128b", ""): (128, 128),
    ("64x128b", "warpx2::02_13"): (64, 128),
    ("64x128b", "warpx2::01_23"): (64, 128),
    ("32x128b", "warpx4"): (32, 128),
}
"""Lanes and bits of a lane by shape and multicast (PTX ISA, "tcgen05.cp")."""
_PACKED = {"": 0, "b6x16_p32": 6, "b4x16_p64": 4}
"""Bits of an element by the format of the source."""


def _lower(ins: Instruction, e: Emitter) -> None:
    group, read = group_of(ins)
    # Triton puts the multicast before the shape, NVCC and the DSL behind it; ptxas accepts both.
    multicast = read.maybe(*(multicast for _, multicast in _SHAPES if multicast), anywhere=True)
    name = read.one(*(name for name, _ in _SHAPES))
    target = read.maybe("b8x16")
    source = read.maybe(*(name for name in _PACKED if name))
    read.end(2)
    if bool(target) != bool(source):
        raise read.refuse("a decompressing copy has both .b8x16 and a format of its source")
    size = _SHAPES.get((name, multicast))
    if size is None:
        raise read.refuse(f"shape .{name} {f'with .{multicast}' if multicast else 'without multicast'}")
    what = f"tcgen05.cp.{name}.{multicast}".rstrip(".")
    shape = e.constant(CopyShape(*size, multicast, group, what, _PACKED[source]), "shape")
    address, descriptor = e.address(ins.operands[0]), e.value(ins.operands[1], 64)
    e.line(e.call(copy, "w", e.mask, address, descriptor, shape, str(e.at)))


LOWERINGS = {"tcgen05.cp": _lower}
