"""Resolution of shared-memory address operands.

PTX ISA, "Generic Addressing" and "Shared State Space": ``.shared`` is ``.shared::cta``; ``.shared::cluster`` addresses
the shared memory of any CTA of the cluster; an address without a state space is generic and, for synchronising
instructions, must be in the window of the executing CTA's own shared memory. An address with a state space is cut to
the 32 bits of a shared address if its register is wider (PTX ISA, "ld"), so that a generic pointer to shared memory is
a shared address, too.
"""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import Bits
from pytest_nvfp4.sim.lower.emitter import Emitter
from pytest_nvfp4.sim.memory.shared import SHARED_WINDOW
from pytest_nvfp4.sim.ptx.syntax import Address, Operand, Register
from pytest_nvfp4.sim.run.cta import Cta

_LOW = 0xFFFF_FFFF


def shared_address(address: int, *, generic: bool, what: str, narrow: bool = False) -> int:
    """Return the 32-bit shared address of an address operand.

    Args:
        generic: Whether the operand has no state space.
        narrow: Whether a generic one may be a shared address, because the hardware takes the lower 32 bits.

    Raises:
        Fault: a generic address outside shared memory.
    """
    if generic:
        if address & ~_LOW not in (SHARED_WINDOW, *((0,) if narrow else ())):
            raise Fault(
                "out-of-bounds",
                f"{what}: generic address {address:#x} is not in shared memory",
                hint="the operand must be a shared address, or a generic one made by cvta.shared",
            )
        return address & _LOW
    return address & _LOW


def shared_operand(e: Emitter, operand: Operand) -> str:
    """Return the expression of the 32-bit shared address in ``[...]``, which has a shared state space."""
    address = e.address(operand)
    base = operand.base if isinstance(operand, Address) else None
    return e.call(_cut, address) if isinstance(base, Register) and base.bits > 32 else address


def _cut(address: Bits) -> Bits:
    return address & _LOW if isinstance(address, int) else address.astype(np.uint32)


def locate(cta: Cta, address: int, size: int, *, cluster: bool, align: int, what: str) -> tuple[Cta, int]:
    """Return the CTA of a shared address and the index in its shared memory.

    Args:
        cluster: Whether the access is ``.shared::cluster``, so that bits 24 and up select the CTA.

    Raises:
        Fault: out of bounds, misaligned, no such CTA, or a CTA that has exited.
    """
    owner = cta.owner_of(address, what=what) if cluster else cta
    return owner, owner.shared.index(address, size, what=what, align=align)
