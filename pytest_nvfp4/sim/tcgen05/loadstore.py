"""``tcgen05.ld`` and ``tcgen05.st``: TMEM to and from the registers of a warp; ``tcgen05.wait`` and ``fence``.

PTX ISA, "tcgen05.ld", "tcgen05.st", "Data Movement Shape", "Access restrictions", "Packing and Unpacking". A warp can
access the lanes 32 * (warp % 4) to 32 * (warp % 4) + 31 only. For lane t of the warp, with the address's lane and
column as origin:

| shape | register | lane of TMEM | column |
|---|---|---|---|
| .32x32b | i | t | i |
| .16x64b | i | t / 4 + 8 (t % 2) | 2 i + t / 2 % 2 |
| .16x128b | 2 i + h | t / 4 + 8 h | 4 i + t % 4 |
| .16x256b | 4 i + 2 h + j | t / 4 + 8 h | 8 i + 2 (t % 4) + j |
| .16x32bx2 | i | t % 16 | i, plus the immediate for t >= 16 |

(Source of the .16 shapes: CUTLASS's copy traits, which agree with the DSL's.) ``.pack::16b`` takes the low halves of
columns 2 c and 2 c + 1 for column c above; ``.unpack::16b`` writes them, with the high halves 0.

All lanes must give the same address, in the warp's quadrant, with exceptions that the ISA leaves open and kernels that
run on B200s depend on:

- Lane t of a .32x32b may give the address of the row that it accesses, t lanes above the warp's first (a store through
  the partition of a load).
- An address without a quadrant (lanes 0 to 31) means the warp's own quadrant; DeepGEMM depends on this too.
- A lane from 128 up counts modulo 128: kernels of CTA pairs add 128 lanes for each rank, as in an accumulator of 256
  rows.

The last two are reported as ``own-quadrant``, which is not an error. Any other quadrant is a fault.

A ``.32x32b`` load of an accumulator of M = 64, of which 16 of every 32 lanes are written, gives NaN in the other lanes.
NVIDIA's kernels do not use them. A use of a word that was never written is a finding, its load alone is none
(``run.undefined``).

Results are available when the instruction is issued. Registers may be used before ``tcgen05.wait::ld``, because true
dependencies are respected (PTX ISA, "Register dependencies, same thread"); ``races`` can warn of such a use.
``load_reduce`` has ``tcgen05.ld.red``.

``tcgen05.fence`` only orders, and the simulated pipe is in order anyway: the monitor alone uses it. NVIDIA's kernels
omit many; ``races.tensor_order`` defines what is reported for a missing one.

Counters: ``tcgen05.ld.instructions``, ``tcgen05.ld.words``, ``tcgen05.st.instructions``, ``tcgen05.st.words``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import FULL, Bits, bits_of, spread, uniform
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.monitor import TmemBox
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.undefined import loaded_undefined
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.tcgen05.column_use import ColumnUse
from pytest_nvfp4.sim.tcgen05.tmem import Tmem

_ROWS = np.arange(32, dtype=np.uint32) << np.uint32(16)
"""By lane of the warp the TMEM lane that it accesses with .32x32b, relative to the first, as part of an address."""
_LANES = 128
_NAN = np.uint32(0x7FFF_FFFF)
"""NaN as an f32 and as two f16."""
_WIDTHS = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 1}
"""Columns of a shape."""
_REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
"""Registers of a shape."""
_UNWRITTEN = (
    "nothing was accumulated, copied or stored there yet: wait for the mbarrier of the tcgen05.commit behind the MMA "
    "or copy (consumer_wait of the accumulator's pipeline) before the load, or correct the columns"
)


@dataclass(frozen=True, slots=True, eq=False)
class Movement:
    """TMEM words that the registers of a warp move to or from, relative to the instruction's address.

    Attributes:
        name: Shape and ``.num``.
        lanes: ``[register][32]``.
        columns: ``[register][32]``: the first of two columns where ``packed``.
        packed: Whether a register holds the low halves of two columns.
        plain: Whether register i of lane t is column i of lane t: .32x32b, not packed.
        rows: Number of TMEM lanes accessed.
        spans: Ranges of columns accessed: first, count.
    """

    name: str
    registers: int
    lanes: NDArray[np.intp]
    columns: NDArray[np.intp]
    packed: bool
    plain: bool
    rows: int
    spans: tuple[tuple[int, int], ...]


def movement(shape: str, repeat: int, *, packed: bool = False, split: int = 0) -> Movement:
    """Return the movement of a shape and ``.num``; ``split`` is the immediate of .16x32bx2."""
    registers = _REGISTERS[shape] * repeat
    r = np.arange(registers)[:, None]
    t = np.arange(32)[None, :]
    offset = np.zeros((registers, 32), np.intp)
    if shape == "32x32b":
        lanes, columns = t + 0 * r, r + 0 * t
    elif shape == "16x64b":
        lanes, columns = t // 4 + 8 * (t % 2) + 0 * r, 2 * r + t // 2 % 2
    elif shape == "16x128b":
        lanes, columns = t // 4 + 8 * (r % 2), 4 * (r // 2) + t % 4
    elif shape == "16x256b":
        lanes, columns = t // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (t % 4) + r % 2
    else:
        lanes, columns = t % 16 + 0 * r, r + 0 * t
        offset = np.where(t >= 16, split, 0) + 0 * r
    width = _WIDTHS[shape] * repeat * (2 if packed else 1)
    spans = ((0, width),) if shape != "16x32bx2" else ((0, width), (split, width))
    columns = columns * (2 if packed else 1) + offset
    name = f"{shape}.x{repeat}"
    return Movement(
        name, registers, lanes.astype(np.intp), columns.astype(np.intp), packed, shape == "32x32b" and not packed,
        32 if shape == "32x32b" else 16, spans,
    )  # fmt: skip


def load(w: Warp, mask: int, address: Bits, move: Movement, what: str, at: int) -> tuple[NDArray[np.uint32], ...]:
    """Return the registers that a warp loads. Raises Fault."""
    tmem, use = w.cta.unit(Tmem), w.cta.unit(ColumnUse)
    lane, column = _origin(w, mask, address, move, what)
    reached = slice(lane, lane + move.rows)
    undefined: slice | None = None
    unwritten: Fault | None = None
    for first, count in move.spans:
        start = column + first
        tmem.claim_to_read(start, count, what=what)
        if move.rows == 32:
            undefined = tmem.unwritten_half(start, count, reached)
        try:
            tmem.need(start, count, reached, what=what, hint=_UNWRITTEN)
        except Fault as fault:
            if undefined is not None:
                loaded_undefined(w, at, sum(1 << lane for lane in range(32)[undefined]), fault, shows=True)
            else:
                unwritten = unwritten or fault
        if tmem.pending:
            tmem.settle(start, count)
        use.loaded(w, at, start, count)
    counters = w.cta.launch.counters
    w.does.add("tmem")
    counters["tcgen05.ld.instructions"] += 1
    counters["tcgen05.ld.words"] += 32 * move.registers
    if w.cta.launch.machine.monitor is not None:
        w.cta.launch.machine.monitor.tmem_accessed(w, at, _boxes(move, lane, column), write=False)
    if w.cta.launch.machine.operands is not None:
        w.cta.launch.machine.operands.loaded_from_tmem(w.cta, at, _boxes(move, lane, column))
    words = _words(tmem, move, lane, column)
    if undefined is not None:
        words[:, undefined] = _NAN
    if unwritten is not None:
        bad = _unwritten(tmem, move, lane, column)
        words[bad] = _NAN
        registers = frozenset(np.flatnonzero(bad.any(axis=1)).tolist())
        lanes = bits_of(np.asarray(bad.any(axis=0)))
        loaded_undefined(w, at, lanes, unwritten, registers=registers, ends=True)
    return tuple(words)


def _unwritten(tmem: Tmem, move: Movement, lane: int, column: int) -> NDArray[np.bool_]:
    """Return which registers of which lanes hold words that were never written."""
    bad = tmem.unwritten(move.columns + column, move.lanes + lane)
    if move.packed:
        bad |= tmem.unwritten(move.columns + (column + 1), move.lanes + lane)
    return bad


def _words(tmem: Tmem, move: Movement, lane: int, column: int) -> NDArray[np.uint32]:
    if move.plain:
        return tmem.data[column : column + move.registers, lane : lane + move.rows].copy()
    words: NDArray[np.uint32] = tmem.data[move.columns + column, move.lanes + lane]
    if move.packed:
        words = words & np.uint32(0xFFFF) | tmem.data[move.columns + (column + 1), move.lanes + lane] << np.uint32(16)
    return words


def store(w: Warp, mask: int, address: Bits, values: tuple[Bits, ...], move: Movement, what: str, at: int) -> None:
    """Write a warp's registers to TMEM. Raises Fault."""
    tmem, use = w.cta.unit(Tmem), w.cta.unit(ColumnUse)
    lane, column = _origin(w, mask, address, move, what)
    reached = slice(lane, lane + move.rows)
    for first, count in move.spans:
        start = column + first
        tmem.claim(start, count, what=what)
        if tmem.pending:
            tmem.settle(start, count)
        tmem.wrote(start, count, reached)
        use.copied(start, count, at, scales=False)
    counters = w.cta.launch.counters
    w.does.add("tmem")
    counters["tcgen05.st.instructions"] += 1
    counters["tcgen05.st.words"] += 32 * move.registers
    if w.cta.launch.machine.monitor is not None:
        w.cta.launch.machine.monitor.tmem_accessed(w, at, _boxes(move, lane, column), write=True)
    words = np.stack([spread(value, 32) for value in values])
    if move.packed:
        tmem.data[move.columns + column, move.lanes + lane] = words & 0xFFFF
        tmem.data[move.columns + (column + 1), move.lanes + lane] = words >> 16
    else:
        tmem.data[move.columns + column, move.lanes + lane] = words


def wait(w: Warp, mask: int, what: str, at: int) -> None:
    """Execute ``tcgen05.wait``. Loads and stores complete at their issue, so that only the monitor needs it."""
    _check_whole_warp(w, mask, what)
    fence(w, mask, what, at)


def fence(w: Warp, mask: int, what: str, at: int) -> None:
    """Report a fence or wait to the monitor."""
    if w.cta.launch.machine.monitor is not None:
        w.cta.launch.machine.monitor.fence(w, mask, what, at)


def _boxes(move: Movement, lane: int, column: int) -> tuple[TmemBox, ...]:
    return tuple(TmemBox(column + first, count, lane, move.rows) for first, count in move.spans)


def _check_whole_warp(w: Warp, mask: int, what: str) -> None:
    if mask != FULL:
        raise Fault(
            "divergence",
            f"{what}: {mask.bit_count()} of the 32 lanes of warp {w.index} execute it (mask {mask:#010x})",
            hint="tcgen05.ld, .st and .wait are .aligned: all 32 threads of the warp must execute them",
        )


class _QuadrantReport:
    """The reasons for which a launch has reported ``own-quadrant``, each once."""

    def __init__(self, _launch: Grid) -> None:
        self.reasons: set[str] = set()


def _origin(w: Warp, mask: int, address: Bits, move: Movement, what: str) -> tuple[int, int]:
    """Check an address and return its lane and column. Raises Fault."""
    if mask != FULL:
        _check_whole_warp(w, mask, what)
    common = address if address.__class__ is int else uniform(address, mask)
    if common is None and move.rows == 32:
        common = uniform(address - _ROWS, mask)
    if common is None:
        raise Fault("tmem", f"{what}: the address differs between the lanes of the warp")
    given, column = common >> 16, common & 0xFFFF
    low = 32 * (w.index % 4)
    lane = given % _LANES
    if lane < 32 <= low and lane + move.rows <= 32:
        lane += low
    if not low <= lane or lane + move.rows > low + 32:
        raise Fault(
            "lane-quadrant",
            f"{what}: TMEM lanes [{given}, {given + move.rows}) by warp {w.index}, which can access lanes "
            f"[{low}, {low + 32})",
            hint="warp i of the CTA can access quadrant i % 4: check the warp index in the address, and which warps "
            "run the epilogue",
        )
    if lane != given:
        _report_quadrant(w, given, lane, low, what)
    if move.rows == 16 and lane % 16:
        raise Fault("tmem", f"{what}: shape {move.name} at lane {lane}, which is not a multiple of 16")
    return lane, column


def _report_quadrant(w: Warp, given: int, lane: int, low: int, what: str) -> None:
    reason, hint = "omits the quadrant", f"add {low} << 16 (32 lanes times warp index % 4) to the address"
    if given >= _LANES:
        reason = f"exceeds lane {_LANES - 1}"
        hint = f"TMEM has {_LANES} lanes in each CTA, of both CTAs of a pair: take lane {lane}, without the CTA's rank"
    reasons = w.cta.launch.unit(_QuadrantReport).reasons
    if reason not in reasons:
        reasons.add(reason)
        w.cta.launch.report(
            "own-quadrant",
            f"{what}: TMEM lane {given} by warp {w.index}, which can access lanes [{low}, {low + 32}): taken for "
            f"lane {lane}, here and wherever else this launch {reason}. The PTX ISA leaves the meaning open; kernels "
            "that run on B200s depend on it",
            hint=hint,
        )


def _movement_of(ins: Instruction, pack: str, *, registers: int, split: int) -> Movement:
    """Return the movement of ``.sync.aligned.shape.num{.pack}.b32``. Raises Unsupported.

    Args:
        pack: The modifier of packed forms.
        registers, split: Indices of the operands that hold the registers and, for .16x32bx2, immHalfSplitoff.
    """
    read = OpcodeReader(ins, 2)
    read.each("sync", "aligned")
    shape = read.one(*_REGISTERS)
    repeat = int(read.one(*(f"x{1 << n}" for n in range(8)))[1:])
    packed = read.has(pack)
    read.one("b32")
    has_split = shape == "16x32bx2"
    operands = read.end(2 + has_split)
    if _REGISTERS[shape] * repeat > 128:
        raise read.refuse(f".{shape}.x{repeat} is {_REGISTERS[shape] * repeat} registers, 128 at most")
    half_split = read.immediate(operands[split], "immHalfSplitoff") if has_split else 0
    move = movement(shape, repeat, packed=packed, split=half_split)
    read.items(operands[registers], move.registers, "registers")
    return move


def _lower_ld(ins: Instruction, e: Emitter) -> None:
    move = _movement_of(ins, "pack::16b", registers=0, split=2)
    what = repr(f"tcgen05.ld.{move.name}")
    loaded = e.call(load, "w", e.mask, e.address(ins.operands[1]), e.constant(move, "move"), what, str(e.at))
    e.assign_all(ins.operands[0], loaded, 32)


def _lower_st(ins: Instruction, e: Emitter) -> None:
    move = _movement_of(ins, "unpack::16b", registers=-1, split=1)
    what = repr(f"tcgen05.st.{move.name}")
    address, values = e.address(ins.operands[0]), e.tuple(ins.operands[-1], 32)
    e.line(e.call(store, "w", e.mask, address, values, e.constant(move, "move"), what, str(e.at)))


def _lower_wait(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins, 2)
    read.each("sync", "aligned")
    read.end(0)
    e.line(e.call(wait, "w", e.mask, repr(f"tcgen05.{ins.parts[1]}"), str(e.at)))


def _lower_fence(ins: Instruction, e: Emitter) -> None:
    OpcodeReader(ins, 2).end(0)
    e.line(e.call(fence, "w", e.mask, repr(f"tcgen05.{ins.parts[1]}"), str(e.at)))


LOWERINGS = {
    "tcgen05.fence::after_thread_sync": _lower_fence,
    "tcgen05.fence::before_thread_sync": _lower_fence,
    "tcgen05.ld": _lower_ld,
    "tcgen05.st": _lower_st,
    "tcgen05.wait::ld": _lower_wait,
    "tcgen05.wait::st": _lower_wait,
}
