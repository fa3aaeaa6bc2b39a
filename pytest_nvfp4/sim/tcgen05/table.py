"""Lowerings of all tcgen05 instructions by opcode prefix, and the prefixes of those that may block."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.tcgen05 import allocate, commit, copy, load_reduce, loadstore, mma


def _shift(ins: Instruction, _e: Emitter) -> None:
    # PTX ISA, "tcgen05.shift", moves 32-byte rows down by one lane without stating what the boundary lanes of a
    # quadrant hold; no kernel at hand uses it.
    raise Unsupported(f"{ins.opcode}: tcgen05.shift")


LOWERINGS: Mapping[str, Lowering] = {
    **allocate.LOWERINGS,
    **commit.LOWERINGS,
    **copy.LOWERINGS,
    **loadstore.LOWERINGS,
    **mma.LOWERINGS,
    "tcgen05.ld.red": load_reduce.lower,
    "tcgen05.shift": _shift,
}
BLOCKING: frozenset[str] = allocate.BLOCKING
