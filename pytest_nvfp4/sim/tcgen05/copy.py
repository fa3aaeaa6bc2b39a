"""``tcgen05.cp``: shared memory to TMEM (PTX ISA, "tcgen05.cp").

The source is a K-major matrix of rows of 128 or 256 bits, addressed by a matrix descriptor as an operand is (see
``operand``; without a swizzle rows of 256 bits are two 16-byte columns, LBO apart). Row r goes to TMEM lane r, its
words to consecutive columns:

- ``.128x256b`` and ``.128x128b``: 128 rows, 8 or 4 columns;
- ``.4x256b``: 4 rows to lanes 0, 32, 64 and 96 (rests on CUTLASS's copy traits);
- ``.64x128b.warpx2::02_13``: rows 0-31 to quadrants 0 and 2, rows 32-63 to 1 and 3; ``::01_23``: rows 0-31 to 0 and 1,
  rows 32-63 to 2 and 3;
- ``.32x128b.warpx4``: 32 rows to each quadrant. NVIDIA's block-scaled kernels copy their scale factors so.

With ``.cta_group::2`` each CTA of the pair copies from its own shared memory to its own TMEM. Decompression
(``.b8x16.b6x16_p32``, ``.b8x16.b4x16_p64``) is unsupported. One thread issues.

Counters: ``tcgen05.cp.instructions``, ``tcgen05.cp.bytes`` (read from shared memory).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import Bits, pick
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.tcgen05.core import TensorCore
from pytest_nvfp4.sim.tcgen05.descriptor import decode_matrix
from pytest_nvfp4.sim.tcgen05.group import expect, group_of, pair_of, single_lane
from pytest_nvfp4.sim.tcgen05.monitor import CtaAccesses, PipeAccesses, TmemBox
from pytest_nvfp4.sim.tcgen05.operand import Geometry, first_chunk, geometry, units_of
from pytest_nvfp4.sim.tcgen05.tmem import LANES, Tmem

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["LOWERINGS", "CopyPlan", "CopyShape", "copy"]

_Move = tuple[Tmem, NDArray[np.uint32], NDArray[np.intp], NDArray[np.uint32]]

_CORNERS: NDArray[np.bool_] = np.equal(np.arange(LANES) % 32, 0)


@dataclass(frozen=True, slots=True, eq=False)
class CopyShape:
    """A copy: ``rows`` rows of ``bits`` bits; ``multicast`` as the opcode has it."""

    rows: int
    bits: int
    multicast: str
    group: int
    what: str

    @property
    def columns(self) -> int:
        """TMEM columns written."""
        return self.bits // 32


def copy(w: Warp, mask: int, address: Bits, descriptor: Bits, shape: CopyShape, at: int) -> None:
    """Issue one copy. Raises Fault or Unsupported."""
    what = shape.what
    if mask & (mask - 1):
        single_lane(w, mask, what=what)
    address, value = pick(address, mask), pick(descriptor, mask)
    core = w.cta.unit(TensorCore)
    key = (address, value, shape)
    plan = core.copies.get(key)
    if plan is None or plan.epoch != _epochs(plan.cores):
        plan = core.copies[key] = _plan(w, core, address, value, shape)
    elif shape.group == 2:
        pair_of(w.cta, 2, what=what)
    core.issuers.issued(w, mask, at, mma=False)
    counters = core.counters
    counters["tcgen05.cp.instructions"] += 1
    counters["tcgen05.cp.bytes"] += plan.size
    if core.machine.monitor is not None:
        touched = plan.touched
        if touched is None:
            touches = _touches(address & 0xFFFF, value, shape)
            touched = plan.touched = tuple([(one.cta, touches) for one in plan.cores])
        core.machine.monitor.tensor_issued(w, at, core.pipe.queue, touched)
    core.submit(core.pipe.queue, plan.execute, what=what)


class CopyPlan:
    """A checked copy. It holds while ``epoch`` is that of its tensor cores.

    Args:
        moves: By CTA its TMEM, the words of shared memory from the source's pattern on, the number of the word that
            goes to each place, and the places.
        size: Bytes read.
    """

    __slots__ = ("column", "columns", "cores", "epoch", "moves", "size", "touched")

    def __init__(
        self, cores: tuple[TensorCore, ...], moves: list[_Move], column: int, columns: int, size: int
    ) -> None:  # fmt: skip
        self.cores = cores
        self.moves = moves
        self.column = column
        self.columns = columns
        self.size = size
        self.epoch = _epochs(cores)
        self.touched: tuple[CtaAccesses, ...] | None = None

    def execute(self) -> None:
        """Copy."""
        for tmem, words, table, places in self.moves:
            if tmem.pending:
                tmem.settle(self.column, self.columns)
            words.take(table, out=places, mode="clip")


def _epochs(cores: tuple[TensorCore, ...]) -> int:
    """Grows when something changes in one of the CTAs."""
    return cores[0].tmem.epoch if len(cores) == 1 else cores[0].tmem.epoch + cores[1].tmem.epoch


@lru_cache(maxsize=4096)
def _touches(column: int, value: int, shape: CopyShape) -> PipeAccesses:
    """What a copy reads and writes in a CTA, for the monitor."""
    decoded = decode_matrix(value, shape.what)
    table = geometry(
        decoded, rows=shape.rows, mn=False, element_bytes=1, what=shape.what, row_bytes=shape.bits // 8
    )  # fmt: skip
    columns = shape.bits // 32
    written: tuple[TmemBox, ...] = ((column, columns, 0, LANES),)
    if shape.rows == 4:
        written = tuple((column, columns, 32 * q, 1) for q in range(4))
    return PipeAccesses(units_of(table) + first_chunk(decoded.start), (), written)


def _plan(w: Warp, core: TensorCore, address: int, value: int, shape: CopyShape) -> CopyPlan:
    """Check a copy. Raises Fault."""
    what = shape.what
    if core.pipe.group != shape.group:
        core.pipe.set_group(shape.group, what=what)
    lane, column = address >> 16 & 0x3FFF, address & 0xFFFF
    if lane:
        raise Fault("tmem", f"{what}: TMEM address {address:#010x} has lane {lane}; a copy starts at lane 0")
    columns = shape.bits // 32
    cores = (core,) if shape.group == 1 else tuple(c.unit(TensorCore) for c in pair_of(w.cta, 2, what=what))
    moves: list[_Move] = []
    for one in cores:
        tmem = one.tmem
        tmem.claim(column, columns, what=what)
        decoded = decode_matrix(value, what)
        table = geometry(decoded, rows=shape.rows, mn=False, element_bytes=1, what=what, row_bytes=shape.bits // 8)
        first = one.chunks.check(decoded.start, table, what=what)
        if shape.rows == 32:
            tmem.wrote_replicated(column, columns)
        else:
            tmem.wrote(column, columns, _CORNERS if shape.rows == 4 else None)
        words = one.chunks.chunks[first:].view(np.uint32)
        moves.append((tmem, words, _words(shape, table), _places(shape, tmem.data[column : column + columns])))
    return CopyPlan(cores, moves, column, columns, shape.rows * shape.bits // 8 * shape.group)


def _places(shape: CopyShape, target: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The words of TMEM that are written, of ``[column][lane]``."""
    return target[:, ::32] if shape.rows == 4 else target


@lru_cache(maxsize=1024)
def _words(shape: CopyShape, table: Geometry) -> NDArray[np.intp]:
    """By place, the number of the word that goes there, from the start of the source's pattern."""
    columns = shape.columns
    words = (table.table[:, :, None] * 4 + np.arange(4)).reshape(shape.rows, columns).T
    if shape.rows == 32:
        found = np.broadcast_to(words[:, None, :], (columns, 4, 32))
    elif shape.rows == 64:
        halves = words.reshape(columns, 2, 32)
        one = halves[:, None] if shape.multicast == "warpx2::02_13" else halves[:, :, None]
        found = np.broadcast_to(one, (columns, 2, 2, 32))
    else:
        found = words
    return np.ascontiguousarray(found).reshape(columns, -1)


_SHAPES = {
    ("128x256b",): (128, 256, ""),
    ("4x256b",): (4, 256, ""),
    ("128x128b",): (128, 128, ""),
    ("64x128b", "warpx2::02_13"): (64, 128, "warpx2::02_13"),
    ("64x128b", "warpx2::01_23"): (64, 128, "warpx2::01_23"),
    ("32x128b", "warpx4"): (32, 128, "warpx4"),
}


def _lower(ins: Instruction, e: Emitter) -> None:
    group, rest = group_of(ins)
    found = _SHAPES.get(rest)
    if found is None:
        raise Unsupported(f"{ins.opcode}: {'.'.join(rest)} of tcgen05.cp")
    expect(ins, 2)
    shape = e.constant(CopyShape(*found, group, f"tcgen05.cp.{'.'.join(rest)}"), "shape")
    address, descriptor = e.address(ins.operands[0]), e.value(ins.operands[1], 64)
    e.line(e.call(copy, "w", e.mask, address, descriptor, shape, str(e.at)))


LOWERINGS = {"tcgen05.cp": _lower}
