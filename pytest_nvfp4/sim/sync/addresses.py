"""Resolution of the shared-memory address operands of synchronising instructions.

PTX ISA, "Generic Addressing" and "Shared State Space": ``.shared`` is ``.shared::cta``; ``.shared::cluster`` addresses
the shared memory of any CTA of the cluster; an address without a state space is generic and, for these instructions,
must be in the window of the executing CTA's own shared memory.
"""

from __future__ import annotations

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.shared import SHARED_WINDOW
from pytest_nvfp4.sim.run.cta import Cta

_LOW = 0xFFFF_FFFF


def shared_address(address: int, *, generic: bool, what: str, narrow: bool = False) -> int:
    """Return the 32-bit shared address of an address operand.

    Args:
        generic: Whether the operand has no state space.
        narrow: Whether a generic one may be a shared address, because the hardware takes the lower 32 bits.

    Raises:
        Fault: a generic address outside shared memory, or a shared address wider than 32 bits.
    """
    if generic:
        if address & ~_LOW not in (SHARED_WINDOW, *((0,) if narrow else ())):
            raise Fault(
                "out-of-bounds",
                f"{what}: generic address {address:#x} is not in shared memory",
                hint="the operand must be a shared address, or a generic one made by cvta.shared",
            )
        return address & _LOW
    if address > _LOW:
        raise Fault("out-of-bounds", f"{what}: {address:#x} is not a shared address, which has 32 bits")
    return address


def locate(cta: Cta, address: int, size: int, *, cluster: bool, align: int, what: str) -> tuple[Cta, int]:
    """Return the CTA of a shared address and the index in its shared memory.

    Args:
        cluster: Whether the access is ``.shared::cluster``, so that bits 24 and up select the CTA.

    Raises:
        Fault: out of bounds, misaligned, no such CTA, or a CTA that has exited.
    """
    owner = cta.owner_of(address, what=what) if cluster else cta
    return owner, owner.shared.index(address, size, what=what, align=align)
