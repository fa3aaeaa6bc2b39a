"""Device memory in this process: blocks at host addresses, aligned as by a CUDA allocator.

``HostBlocks`` allocates from the heap, and pages without memory for large blocks. The simulator uses its own allocator
instead, which tracks blocks and gaps.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Final, Protocol

from pytest_nvfp4.driver.launches import HostSideError

ALIGN: Final = 512
"""Alignment of a block: that of torch's CUDA allocator (``cuMemAlloc`` guarantees 256)."""
POISON: Final = 0xFF
"""Byte of uninitialised device memory: NaN in the floating-point formats, -1 in every integer type."""
SPARSE: Final = 4 << 30
"""Bytes of a block from which it is address space only: a page has memory once it is used."""
_NORESERVE: Final = 0x4000  # Linux: MAP_NORESERVE; the mmap module does not name it everywhere


class DeviceMemory(Protocol):
    """Device memory for the stand-ins of torch and the CUDA driver. Sizes are in bytes."""

    def allocate(self, size: int) -> int:
        """Allocate ``size`` bytes, filled with ``POISON``, and return their address, a multiple of ``ALIGN``."""

    def repeat(self, address: int, period: memoryview) -> None:
        """Fill a block with repetitions of some bytes, whole pages of them; nothing may write the block afterwards."""

    def zero(self, address: int) -> None:
        """Fill a block with zeros, if possible without memory for its pages."""

    def free(self, address: int) -> None:
        """Free a block; null is allowed. Raises HostSideError for an address that is no allocated block."""

    def retire(self, address: int) -> None:
        """Free a block, and keep its bytes until ``drop``. Raises HostSideError like ``free``."""

    def revive(self, address: int) -> None:
        """Make a retired block live again."""

    def drop(self, address: int) -> None:
        """Release the bytes of a retired block."""


class HostBlocks:
    """Blocks of heap memory; those of ``SPARSE`` bytes or more are zeros at first."""

    def __init__(self) -> None:
        self._blocks: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._retired: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._pages: dict[int, mmap.mmap] = {}
        """By address, the pages of a sparse block."""

    def allocate(self, size: int) -> int:
        """See ``DeviceMemory``."""
        if size >= SPARSE:
            # Shared pages, because a process's limit counts private ones (``RLIMIT_DATA``).
            pages = mmap.mmap(-1, size + ALIGN, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _NORESERVE)
            sparse = (ctypes.c_char * (size + ALIGN)).from_buffer(pages)
            address = ctypes.addressof(sparse)
            self._blocks[address], self._pages[address] = sparse, pages
            return address
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

    def zero(self, address: int) -> None:
        """See ``DeviceMemory``."""
        if (pages := self._pages.get(address)) is not None:
            pages.madvise(mmap.MADV_REMOVE)
        else:
            ctypes.memset(address, 0, ctypes.sizeof(self._blocks[address]) - ALIGN)

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
        self._pages.pop(address, None)
        del self._retired[address]
