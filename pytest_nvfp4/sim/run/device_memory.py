"""Allocations of the simulated device: each has a mapping of its own and a named region."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.driver.memory import ALIGN, POISON, SPARSE
from pytest_nvfp4.sim.memory.arena import Arena
from pytest_nvfp4.sim.memory.globals import FreedMemory, GlobalMemory, Region

ALLOCATION = "device allocation"
"""First words of the name of an allocation that has no other one."""


class SimulatedMemory:
    """Allocator of the stand-ins for torch and the driver (implements ``driver.memory.DeviceMemory``).

    Args:
        memory: The regions that kernels see.
        room: Reserved address space for all allocations, from an address to another; None to reserve some as needed.

    Attributes:
        most: Largest number of bytes of an allocation.
        allocating: Returns where the user's code allocates, for the allocation's name, if that is known here.
        poison: Byte that new allocations are filled with.
        watched: Bytes of an element by size of an allocation: the writers of new ones are recorded (``Region.watch``).
        tracks_writes: Whether new allocations record which of their bytes were written (``Region.initialised``).
    """

    def __init__(self, memory: GlobalMemory, *, room: tuple[int, int] | None = None) -> None:
        self._memory = memory
        self._arena = Arena(shared=True, room=room)
        self._regions: dict[int, Region] = {}
        self._retired: dict[int, Region] = {}
        self._sizes: dict[int, int] = {}
        self._count = 0
        self.most = 1 << 46  # any
        self.allocating: Callable[[], str | None] | None = None
        self.poison = POISON
        self.tracks_writes = False
        self.watched: Mapping[int, int] = {}

    def allocate(self, size: int) -> int:
        """Allocate ``size`` bytes at a multiple of ``ALIGN``, filled with ``poison``.

        From ``SPARSE`` bytes on only the first are filled. Raises MemoryError: more than ``most`` bytes.
        """
        if size > self.most:
            raise MemoryError(f"an allocation of {size} bytes; the limit is {self.most}")
        name = f"{ALLOCATION} {self._count} of {size} bytes"
        if self.allocating is not None and (made := self.allocating()) is not None:
            name = f"{name} ({made})"
        self._count += 1
        address = self._arena.allocate(size, name=name, align=ALIGN)
        if size < SPARSE:
            ctypes.memset(address, self.poison, size)
        region = self._regions[address] = self._memory.add(Region(name, address, size))
        if self.tracks_writes and size < SPARSE:
            region.track_writes()
        if size in self.watched:
            region.watch(self.watched[size])
        self._sizes[address] = size
        return address

    def repeat(self, address: int, period: memoryview) -> None:
        """Fill an allocation with repetitions of some bytes, whole pages of them; a kernel that writes it faults."""
        self._arena.repeat(address, period)
        self.name(address, f"{self._regions[address].name}, random numbers that repeat", writable=False)

    def zero(self, address: int) -> None:
        """Fill an allocation with zeros; its pages have no memory until they are used."""
        self._arena.zero(address)

    def free(self, address: int) -> None:
        """Release an allocation; null is allowed. Raises HostSideError: no live allocation starts at the address."""
        if not address:
            return
        self.retire(address)
        self.drop(address)

    def retire(self, address: int) -> None:
        """Release an allocation like ``free``, and keep its bytes for ``revive`` until ``drop``."""
        region = self._regions.pop(address, None)
        if region is None:
            raise HostSideError(f"free of {address:#x}, which is not a live device allocation: freed twice?")
        self._memory.freed.append(FreedMemory(address, self._sizes[address], region.name))
        self._memory.remove(region)
        self._retired[address] = region

    def revive(self, address: int) -> None:
        """Make a retired allocation live again."""
        self._regions[address] = self._memory.add(self._retired.pop(address))

    def drop(self, address: int) -> None:
        """Free the bytes of a retired allocation."""
        del self._retired[address], self._sizes[address]
        self._arena.free(address)

    def name(
        self,
        address: int,
        name: str,
        *,
        describe: Callable[[int], str] | None = None,
        start: int = 0,
        size: int | None = None,
        writable: bool = True,
    ) -> Region:
        """Name the allocation that starts at an address, and describe its bytes in the user's terms.

        Args:
            describe: Returns the description of a byte offset from ``start``.
            start, size: Bytes that kernels may access; an access to the rest of the allocation is out of bounds.
            writable: Whether kernels may write it.

        Raises:
            HostSideError: no allocation starts there, or it is smaller.
        """
        old = self._regions.get(address)
        if old is None:
            raise HostSideError(f"no device allocation starts at {address:#x}")
        whole = self._sizes[address]
        size = whole - start if size is None else size
        if start < 0 or start + size > whole:
            raise HostSideError(f"bytes [{start}, {start + size}) of an allocation of {whole} bytes")
        self._memory.remove(old)
        region = Region(name, address + start, size, writable, describe)
        self._regions[address] = self._memory.add(region)
        return region
