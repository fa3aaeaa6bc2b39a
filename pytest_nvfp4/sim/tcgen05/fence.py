"""``tcgen05.fence::before_thread_sync`` and ``::after_thread_sync``: order only, which the pipe keeps by itself.

PTX ISA, "tcgen05.fence". NVIDIA's kernels leave out many; a missing one is not reported.
"""

from __future__ import annotations

from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.tcgen05.group import expect

__all__ = ["LOWERINGS"]


def _lower(ins: Instruction, e: Emitter) -> None:
    if len(ins.parts) != 2:
        raise Unsupported(f"{ins.opcode}: modifiers {'.'.join(ins.parts[2:])}")
    expect(ins, 0)
    e.line("pass")


LOWERINGS = {"tcgen05.fence::before_thread_sync": _lower, "tcgen05.fence::after_thread_sync": _lower}
