"""FP8, FP6, FP4 and UE8M0 conversions (placeholder until written)."""

from __future__ import annotations

from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.syntax import Instruction

NARROW = frozenset({"e4m3x2", "e5m2x2", "e2m1x2", "e2m3x2", "e3m2x2", "ue8m0x2", "e4m3x4", "e5m2x4", "e2m1x4"})


def lower_narrow(ins: Instruction, e: Emitter) -> None:
    raise Unsupported(f"{ins.opcode}: not yet")
