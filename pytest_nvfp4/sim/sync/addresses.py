"""Which shared memory an address operand of a synchronising instruction means.

PTX ISA, "Generic Addressing" and "Shared State Space": ``.shared`` is ``.shared::cta``; ``.shared::cluster`` names the
shared memory of any CTA of the cluster; no state space is a generic address, which for these instructions must fall in
the window of the executing CTA's own shared memory.
"""

from __future__ import annotations

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.shared import SHARED_WINDOW
from pytest_nvfp4.sim.run.cta import Cta

__all__ = ["locate", "shared_address"]

_LOW = 0xFFFF_FFFF


def shared_address(address: int, *, generic: bool, what: str) -> int:
    """The 32-bit shared address of an address operand.

    Raises:
        Fault: a generic address that is not in shared memory, or a shared address wider than 32 bits.
    """
    if generic:
        if address & ~_LOW != SHARED_WINDOW:
            raise Fault(
                "out-of-bounds",
                f"{what}: generic address {address:#x} is not in shared memory",
                hint="the operand must be a shared address, or a generic one made by cvta.shared",
            )
        return address & _LOW
    if address > _LOW:
        raise Fault("out-of-bounds", f"{what}: {address:#x} is no shared address, which has 32 bits")
    return address


def locate(cta: Cta, address: int, size: int, *, cluster: bool, align: int, what: str) -> tuple[Cta, int]:
    """The CTA and the index in its shared memory of a shared address.

    Args:
        cluster: Whether the access is ``.shared::cluster``, so that the rank in bits 24 and up is followed.

    Raises:
        Fault: out of bounds, misaligned, no such CTA, or a CTA that has exited.
    """
    owner = cta.owner_of(address, what=what) if cluster else cta
    return owner, owner.shared.index(address, size, what=what, align=align)
