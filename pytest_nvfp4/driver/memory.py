"""Memory of a device that is this process: blocks at host addresses, aligned as a CUDA allocator aligns them.

``HostBlocks`` takes ordinary heap memory; a simulator puts its own in its place, so that it knows every block and what
lies between them.
"""

from __future__ import annotations

import ctypes
from typing import Final, Protocol

from pytest_nvfp4.driver.launches import HostSideError

__all__ = ["ALIGN", "POISON", "DeviceMemory", "HostBlocks"]

ALIGN: Final = 512
"""torch's CUDA allocator starts every block on such a boundary (``cuMemAlloc`` promises 256)."""
POISON: Final = 0xFF
"""What uninitialised device memory holds here: NaN in every float format, -1 in every integer."""


class DeviceMemory(Protocol):
    """What the stand-ins for torch and the CUDA driver ask of a device's memory. Sizes are in bytes."""

    def allocate(self, size: int) -> int:
        """Reserve ``size`` bytes, filled with ``POISON``; their address, a multiple of ``ALIGN``."""

    def free(self, address: int) -> None:
        """Release a block; null is allowed. Raises HostSideError for what is not a live block."""


class HostBlocks:
    """Blocks of the heap."""

    def __init__(self) -> None:
        self._blocks: dict[int, ctypes.Array[ctypes.c_char]] = {}

    def allocate(self, size: int) -> int:
        """Reserve ``size`` bytes, filled with ``POISON``, and return their address."""
        block = ctypes.create_string_buffer(size + ALIGN)
        address = -(-ctypes.addressof(block) // ALIGN) * ALIGN
        ctypes.memset(address, POISON, size)
        self._blocks[address] = block
        return address

    def free(self, address: int) -> None:
        """Release a block; freeing null is allowed, as in CUDA.

        Raises:
            HostSideError: the address was not allocated here, or was freed before.
        """
        if address and self._blocks.pop(address, None) is None:
            raise HostSideError(f"free of {address:#x}, which is not a live device allocation: freed twice?")
