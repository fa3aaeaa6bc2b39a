"""``tcgen05.fence::before_thread_sync`` and ``::after_thread_sync``: order only, which the pipe keeps by itself.

PTX ISA, "tcgen05.fence". NVIDIA's kernels leave out many; what the monitor says of a missing one is in
``races.tensor_order``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.tcgen05.group import expect

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["LOWERINGS", "fence"]


def fence(w: Warp, mask: int, kind: str, at: int) -> None:
    """Tell the monitor."""
    if w.cta.launch.machine.monitor is not None:
        w.cta.launch.machine.monitor.fence(w, mask, kind, at)


def _lower(ins: Instruction, e: Emitter) -> None:
    if len(ins.parts) != 2:
        raise Unsupported(f"{ins.opcode}: modifiers {'.'.join(ins.parts[2:])}")
    expect(ins, 0)
    e.line(e.call(fence, "w", e.mask, repr(f"tcgen05.{ins.parts[1]}"), str(e.at)))


LOWERINGS = {"tcgen05.fence::before_thread_sync": _lower, "tcgen05.fence::after_thread_sync": _lower}
