"""``tcgen05.ld`` and ``tcgen05.st``: TMEM to and from the registers of a warp; ``tcgen05.wait``.

PTX ISA, "tcgen05.ld", "tcgen05.st", "Data Movement Shape", "Access restrictions", "Packing and Unpacking". A warp
reaches lanes 32 * (warp % 4) to + 31 only. For lane t of the warp, with the address's lane and column as origin:

| shape | register | lane of TMEM | column |
|---|---|---|---|
| .32x32b | i | t | i |
| .16x64b | i | t / 4 + 8 (t % 2) | 2 i + t / 2 % 2 |
| .16x128b | 2 i + h | t / 4 + 8 h | 4 i + t % 4 |
| .16x256b | 4 i + 2 h + j | t / 4 + 8 h | 8 i + 2 (t % 4) + j |
| .16x32bx2 | i | t % 16 | i, plus the immediate for t >= 16 |

(The .16 shapes as CUTLASS's copy traits state them, which agree with the DSL's.) ``.pack::16b`` takes the low halves of
columns 2 c and 2 c + 1 for column c above; ``.unpack::16b`` writes them, with the high halves 0.

All lanes give the same address. That lane t of a .32x32b may give the address of the row that it reaches, t lanes above
the warp's, rests on NVIDIA's kernels (a store through the partition of a load). So does it, and on DeepGEMM, that an
address without a quadrant (lanes 0 to 31) means the warp's own: the ISA leaves it open, and it is reported as
``own-quadrant``, which is worth a word and no error. Any other quadrant is a fault.

Results are there when the instruction is issued: registers may be used before ``tcgen05.wait::ld``, for the true
dependency is respected (PTX ISA, "Register dependencies, same thread"); ``races`` can warn of such a use. ``.red`` is
sm_103's: unsupported.

Counters: ``tcgen05.ld.instructions``, ``tcgen05.ld.words``, ``tcgen05.st.instructions``, ``tcgen05.st.words``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import FULL, Bits, spread, uniform
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.syntax import Address, Immediate, Instruction, TensorAddress, Vector
from pytest_nvfp4.sim.tcgen05.group import expect
from pytest_nvfp4.sim.tcgen05.monitor import TmemBox
from pytest_nvfp4.sim.tcgen05.tmem import Tmem

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.grid import Grid
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["LOWERINGS", "Movement", "load", "movement", "store"]

_ROWS = np.arange(32, dtype=np.uint32) << np.uint32(16)
"""The lane of TMEM that each lane of the warp reaches with .32x32b, relative to the first, as part of an address."""
_WIDTHS = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 1}
_REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}


@dataclass(frozen=True, slots=True, eq=False)
class Movement:
    """A shape, repeated: for each register and lane of the warp a lane and column of TMEM, relative to the address."""

    name: str
    registers: int
    lanes: NDArray[np.intp]
    """``[register][32]``."""
    columns: NDArray[np.intp]
    """``[register][32]``, in words before packing."""
    packed: bool
    plain: bool
    """The .32x32b shape: register i is column i."""
    rows: int
    """Lanes of TMEM reached."""
    spans: tuple[tuple[int, int], ...]
    """Ranges of columns of TMEM reached: first, count."""


def movement(shape: str, repeat: int, *, packed: bool = False, split: int = 0) -> Movement:
    """The movement of a shape and ``.num``. ``split`` is the immediate of .16x32bx2."""
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
    """The registers. Raises Fault."""
    tmem = w.cta.unit(Tmem)
    lane, column = _origin(w, mask, address, move, what)
    reached = slice(lane, lane + move.rows)
    for first, count in move.spans:
        start = column + first
        tmem.claim_to_read(start, count, what=what)
        tmem.need(start, count, reached, what=what, hint="nothing was accumulated, copied or stored there")
        if tmem.pending:
            tmem.settle(start, count)
    counters = w.cta.launch.counters
    counters["tcgen05.ld.instructions"] += 1
    counters["tcgen05.ld.words"] += 32 * move.registers
    if w.cta.launch.machine.monitor is not None:
        w.cta.launch.machine.monitor.tmem_accessed(w, at, _boxes(move, lane, column), write=False)
    if move.plain:
        return tuple(tmem.data[column : column + move.registers, reached].copy())
    words: NDArray[np.uint32] = tmem.data[move.columns + column, move.lanes + lane]
    if move.packed:
        words = words & np.uint32(0xFFFF) | tmem.data[move.columns + (column + 1), move.lanes + lane] << np.uint32(16)
    return tuple(words)


def store(w: Warp, mask: int, address: Bits, values: tuple[Bits, ...], move: Movement, what: str, at: int) -> None:
    """Write the registers. Raises Fault."""
    tmem = w.cta.unit(Tmem)
    lane, column = _origin(w, mask, address, move, what)
    reached = slice(lane, lane + move.rows)
    for first, count in move.spans:
        start = column + first
        tmem.claim(start, count, what=what)
        if tmem.pending:
            tmem.settle(start, count)
        tmem.wrote(start, count, reached)
    counters = w.cta.launch.counters
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
    """``tcgen05.wait``: nothing to wait for, as loads and stores happen when issued."""
    _whole(w, mask, what)
    if w.cta.launch.machine.monitor is not None:
        w.cta.launch.machine.monitor.fence(w, mask, what, at)


def _boxes(move: Movement, lane: int, column: int) -> tuple[TmemBox, ...]:
    """The rectangles of TMEM reached."""
    return tuple((column + first, count, lane, move.rows) for first, count in move.spans)


def _whole(w: Warp, mask: int, what: str) -> None:
    if mask != FULL:
        raise Fault(
            "divergence",
            f"{what}: {mask.bit_count()} of the 32 lanes of warp {w.index} execute it (mask {mask:#010x})",
            hint="tcgen05.ld, .st and .wait are .aligned: all 32 threads of the warp execute them",
        )


class _Said:
    """What has been said of a launch."""

    def __init__(self, _launch: Grid) -> None:
        self.own_quadrant = False


def _origin(w: Warp, mask: int, address: Bits, move: Movement, what: str) -> tuple[int, int]:
    """Lane and column of the address, checked."""
    if mask != FULL:
        _whole(w, mask, what)
    one = address if address.__class__ is int else uniform(address, mask)
    if one is None and move.rows == 32:
        one = uniform(address - _ROWS, mask)
    if one is None:
        raise Fault("tmem", f"{what}: the address differs between the lanes of the warp")
    lane, column = one >> 16, one & 0xFFFF
    low = 32 * (w.index % 4)
    if lane < 32 <= low and lane + move.rows <= 32:
        said = w.cta.launch.unit(_Said)
        if not said.own_quadrant:
            said.own_quadrant = True
            w.cta.launch.report(
                "own-quadrant",
                f"{what}: lane {lane} of TMEM by warp {w.index}, which reaches lanes [{low}, {low + 32}): taken for "
                f"lane {low + lane}, here and wherever else this launch leaves the quadrant out, as kernels that run "
                "on B200s rely on it; the PTX ISA leaves it open",
                hint=f"adding {low} << 16, 32 lanes times warp index % 4, to the address says it",
            )
        lane += low
    if not low <= lane or lane + move.rows > low + 32:
        raise Fault(
            "lane-quadrant",
            f"{what}: lanes [{lane}, {lane + move.rows}) of TMEM by warp {w.index}, which reaches lanes "
            f"[{low}, {low + 32})",
            hint="warp i of the CTA reaches the quadrant i % 4: look at the warp index in the address and at which "
            "warps run the epilogue",
        )
    if move.rows == 16 and lane % 16:
        raise Fault("tmem", f"{what}: shape {move.name} at lane {lane}, which is not a multiple of 16")
    return lane, column


def _parse(ins: Instruction, pack: str) -> tuple[str, int, bool]:
    rest = ins.parts[2:]
    if len(rest) not in (5, 6) or rest[:2] != ("sync", "aligned") or rest[-1] != "b32":
        raise Unsupported(f"{ins.opcode}: modifiers {'.'.join(rest)}")
    shape, times = rest[2], rest[3]
    packed = len(rest) == 6
    repeat = int(times[1:]) if times[:1] == "x" and times[1:].isdigit() else 0
    legal = repeat in (1, 2, 4, 8, 16, 32, 64, 128) and _REGISTERS.get(shape, 129) * repeat <= 128
    if not legal or (packed and rest[4] != pack):
        raise Unsupported(f"{ins.opcode}: modifiers {'.'.join(rest)}")
    return shape, repeat, packed


def _registers(ins: Instruction, operand: object, move: Movement) -> None:
    count = len(operand.items) if isinstance(operand, Vector) else 1
    if count != move.registers:
        raise Unsupported(f"{ins.opcode}: {count} registers; .{move.name} has {move.registers}")


def _lower_ld(ins: Instruction, e: Emitter) -> None:
    if "red" in ins.parts:
        raise Unsupported(f"{ins.opcode}: tcgen05.ld.red, which sm_103 has and sm_100a has not")
    shape, repeat, packed = _parse(ins, "pack::16b")
    expect(ins, 3 if shape == "16x32bx2" else 2)
    move = movement(shape, repeat, packed=packed, split=_split(ins, 2) if shape == "16x32bx2" else 0)
    _registers(ins, ins.operands[0], move)
    text = repr(f"tcgen05.ld.{move.name}")
    address = e.address(ins.operands[1])
    found = e.call(load, "w", e.mask, address, e.constant(move, "move"), text, str(e.at))
    e.assign_all(ins.operands[0], found, 32)


def _lower_st(ins: Instruction, e: Emitter) -> None:
    shape, repeat, packed = _parse(ins, "unpack::16b")
    expect(ins, 3 if shape == "16x32bx2" else 2)
    move = movement(shape, repeat, packed=packed, split=_split(ins, 1) if shape == "16x32bx2" else 0)
    source = ins.operands[-1]
    _registers(ins, source, move)
    text = repr(f"tcgen05.st.{move.name}")
    address = e.address(ins.operands[0])
    e.line(e.call(store, "w", e.mask, address, e.tuple(source, 32), e.constant(move, "move"), text, str(e.at)))


def _split(ins: Instruction, which: int) -> int:
    operand = ins.operands[which]
    if not isinstance(operand, Immediate) or isinstance(operand, (Address, TensorAddress)):
        raise Unsupported(f"{ins.opcode}: immHalfSplitoff {operand!r} is not an immediate")
    return operand.value


def _lower_wait(ins: Instruction, e: Emitter) -> None:
    if ins.parts[1:] not in (("wait::ld", "sync", "aligned"), ("wait::st", "sync", "aligned")):
        raise Unsupported(f"{ins.opcode}: modifiers")
    expect(ins, 0)
    e.line(e.call(wait, "w", e.mask, repr(f"tcgen05.{ins.parts[1]}"), str(e.at)))


LOWERINGS = {
    "tcgen05.ld": _lower_ld,
    "tcgen05.st": _lower_st,
    "tcgen05.wait::ld": _lower_wait,
    "tcgen05.wait::st": _lower_wait,
}
