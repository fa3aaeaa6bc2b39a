"""``tcgen05.shift.down``: rows of TMEM move down by one lane (PTX ISA, "tcgen05.shift"). Unsupported, by name.

The ISA moves 32-byte rows of all lanes but the last of those that the address names, without stating what the boundary
lanes of a quadrant hold; no kernel at hand uses it.
"""

from __future__ import annotations

from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.ptx.syntax import Instruction

__all__ = ["LOWERINGS"]


def _lower(ins: Instruction, e: Emitter) -> None:
    raise Unsupported(f"{ins.opcode}: tcgen05.shift")


LOWERINGS = {"tcgen05.shift": _lower}
