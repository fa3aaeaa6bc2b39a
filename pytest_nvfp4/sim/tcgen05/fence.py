"""``tcgen05.fence::before_thread_sync`` and ``::after_thread_sync`` (PTX ISA, "tcgen05.fence").

They only order, and the simulated pipe is in order anyway: the monitor alone uses them. NVIDIA's kernels omit many;
``races.tensor_order`` defines what is reported for a missing one.
"""

from __future__ import annotations

from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.warp import Warp


def fence(w: Warp, mask: int, kind: str, at: int) -> None:
    """Report a fence to the monitor."""
    if w.cta.launch.machine.monitor is not None:
        w.cta.launch.machine.monitor.fence(w, mask, kind, at)


def _lower(ins: Instruction, e: Emitter) -> None:
    OpcodeReader(ins, 2).end(0)
    e.line(e.call(fence, "w", e.mask, repr(f"tcgen05.{ins.parts[1]}"), str(e.at)))


LOWERINGS = {"tcgen05.fence::before_thread_sync": _lower, "tcgen05.fence::after_thread_sync": _lower}
