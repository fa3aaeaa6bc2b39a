"""``tcgen05.ld.red`` (sm_103): a load, and the least or greatest of what each thread has loaded.

PTX ISA, "tcgen05.ld": shapes ``.32x32b`` and ``.16x32bx2``, at least two registers; ``.min`` or ``.max`` of f32, u32 or
s32. f32 follows ``redux.sync`` of f32, whose qualifiers it has: -0 is less than +0, ``.abs`` takes magnitudes, NaN is
ignored unless all are NaN or ``.NaN`` is given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.alu.floating import INFINITY, extreme_of
from pytest_nvfp4.sim.alu.numbers import NAN
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import Bits
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction, Vector
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.tcgen05.loadstore import Movement, load, movement

_CAPABILITIES = ((10, 3), (11, 0))
_MAGNITUDE = np.uint32(0x7FFF_FFFF)


@dataclass(frozen=True, slots=True)
class Reduction:
    """``root`` is min or max, ``kind`` f32, u32 or s32; ``magnitude`` and ``propagates`` are ``.abs`` and ``.NaN``."""

    root: str
    kind: str
    magnitude: bool
    propagates: bool

    def of(self, words: tuple[NDArray[np.uint32], ...]) -> NDArray[np.uint32]:
        """Return the reduced word of each lane."""
        if self.kind == "f32":
            patterns = tuple(word & _MAGNITUDE for word in words) if self.magnitude else words
            return np.asarray(extreme_of(self.root, patterns, INFINITY["f32"], NAN["f32"], self.propagates))
        together = np.stack(words).view(np.int32 if self.kind == "s32" else np.uint32)
        reduced = together.min(axis=0) if self.root == "min" else together.max(axis=0)
        return np.asarray(reduced).view(np.uint32)


def load_reduced(
    w: Warp, mask: int, address: Bits, move: Movement, how: Reduction, what: str, at: int
) -> tuple[NDArray[np.uint32], ...]:
    """Return the registers that a warp loads, and the reduced one. Raises Fault."""
    if w.cta.launch.machine.model.capability not in _CAPABILITIES:
        raise Fault("unsupported", f"{what}: the device has no tcgen05.ld.red, which exists on sm_103 and sm_110")
    words = load(w, mask, address, move, what, at)
    return *words, how.of(words)


def lower(ins: Instruction, e: Emitter) -> None:
    """Lower ``tcgen05.ld.red.sync.aligned.shape.num.redOp{.abs}{.NaN}.type r, redval, [taddr]{, immHalfSplitoff}``."""
    read = OpcodeReader(ins, 2)
    read.each("red", "sync", "aligned")
    shape = read.one("32x32b", "16x32bx2")
    repeat = int(read.one(*(f"x{1 << n}" for n in range(1, 8)))[1:])
    root = read.one("min", "max")
    magnitude, propagates = read.has("abs"), read.has("NaN")
    kind = read.one("f32") if magnitude or propagates else read.one("f32", "u32", "s32")
    operands = read.end(3 + (shape == "16x32bx2"))
    move = movement(shape, repeat, split=read.immediate(operands[3], "immHalfSplitoff") if len(operands) > 3 else 0)
    read.items(operands[0], move.registers, "registers")
    loaded, reduced = operands[:2]
    targets = Vector(((*loaded.items, reduced)) if isinstance(loaded, Vector) else (loaded, reduced))
    how = e.constant(Reduction(root, kind, magnitude, propagates), "how")
    what = repr(f"tcgen05.ld.red.{move.name}")
    words = e.call(load_reduced, "w", e.mask, e.address(operands[2]), e.constant(move, "move"), how, what, str(e.at))
    e.assign_all(targets, words, 32)
