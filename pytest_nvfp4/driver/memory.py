"""Device memory in this process: blocks at host addresses, aligned as by a CUDA allocator.

``HostBlocks`` allocates from the heap. The simulator uses its own allocator instead, which tracks blocks and gaps.
"""

from __future__ import annotations

import ctypes
from typing import Final, Protocol

from pytest_nvfp4.driver.launches import HostSideError

ALIGN: Final = 512
"""Alignment of a block: that of torch's CUDA allocator (``cuMemAlloc`` guarantees 256)."""
POISON: Final = 0xFF
"""Byte of uninitialised device memory: NaN in the floating-point formats, -1 in every integer type."""


class DeviceMemory(Protocol):
    """Device memory for the stand-ins of torch and the CUDA driver. Sizes are in bytes."""

    def allocate(self, size: int) -> int:
        """Allocate ``size`` bytes, filled with ``POISON``, and return their address, a multiple of ``ALIGN``."""

    def repeat(self, address: int, period: memoryview) -> None:
        """Fill a block with repetitions of some bytes, whole pages of them; nothing may write the block afterwards."""

    def free(self, address: int) -> None:
        """Free a block; null is allowed. Raises HostSideError for an address that is no allocated block."""

    def retire(self, address: int) -> None:
        """Free a block, and keep its bytes until ``drop``. Raises HostSideError like ``free``."""

    def revive(self, address: int) -> None:
        """Make a retired block live again."""

    def drop(self, address: int) -> None:
        """Release the bytes of a retired block."""


class HostBlocks:
    """Blocks of heap memory."""

    def __init__(self) -> None:
        self._blocks: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._retired: dict[int, ctypes.Array[ctypes.c_char]] = {}

    def allocate(self, size: int) -> int:
        """See ``DeviceMemory``."""
        block = ctypes.create_string_buffer(size + ALIGN)
        address = -(-ctypes.addressof(block) // ALIGN) * ALIGN
        ctypes.memset(address, POISON, size)
        self._blocks[address] = block
        return address

    def repeat(self, address: int, period: memoryview) -> None:
        """See ``DeviceMemory``."""
        block = self._blocks[address]
        size = ctypes.sizeof(block) - ALIGN
        source = period.tobytes()
        for start in range(0, size, len(source)):
            ctypes.memmove(address + start, source, min(len(source), size - start))

    def free(self, address: int) -> None:
        """See ``DeviceMemory``."""
        if address:
            self.retire(address)
            self.drop(address)

    def retire(self, address: int) -> None:
        """See ``DeviceMemory``."""
        block = self._blocks.pop(address, None)
        if block is None:
            raise HostSideError(f"free of {address:#x}, which is not a live device allocation: freed twice?")
        self._retired[address] = block

    def revive(self, address: int) -> None:
        """See ``DeviceMemory``."""
        self._blocks[address] = self._retired.pop(address)

    def drop(self, address: int) -> None:
        """See ``DeviceMemory``."""
        del self._retired[address]
