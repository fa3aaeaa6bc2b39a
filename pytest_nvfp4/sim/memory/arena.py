"""Allocator of the simulated device: every tensor has a mapping of its own with unmapped gaps around it.

An arena reserves address space without memory behind it (``PROT_NONE``) and maps every allocation into it. The gap on
each side is at least 1 MiB and at least the allocation's own size, so an address that runs past a tensor by less than
the tensor's size hits no other tensor, not even from native code. The exact end of a tensor is that of its ``Region``.
Pages are created on first touch.

``shared`` mappings (``MAP_SHARED``) hold the same bytes in processes forked later. New memory is filled with ``poison``
(0xFF: a NaN in every floating-point format except fp4), but only ``poison_bound`` bytes per allocation, because filling
a page makes it resident; bytes beyond the bound read as zero.

The module calls libc's ``mmap`` through ``ctypes``, because Python's ``mmap`` cannot map at a given address.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
from dataclasses import dataclass

_PAGE = mmap.PAGESIZE
_LEAST_GAP = 1 << 20
_NONE, _READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE
_PRIVATE, _SHARED, _ANONYMOUS = mmap.MAP_PRIVATE, mmap.MAP_SHARED, mmap.MAP_ANONYMOUS
_FIXED, _NORESERVE = 0x10, 0x4000  # Linux: MAP_FIXED, MAP_NORESERVE; the mmap module names neither everywhere
_FAILED = ctypes.c_void_p(-1).value


@dataclass(frozen=True, slots=True)
class Allocation:
    """``size`` bytes at ``address``, the first ``poisoned`` of them filled. Mapping and gaps occupy [low, high)."""

    name: str
    address: int
    size: int
    low: int
    high: int
    poisoned: int


class Arena:
    """Allocations with gaps around them.

    Args:
        shared: Whether processes forked later share the mappings.
        reserve: Bytes of address space reserved at a time (more for a larger tensor).
        poison: Byte that fills new memory.
        poison_bound: Largest number of bytes filled in an allocation.
        room: Address space that is already reserved (``reserve``), from an address to another. There is no other then.
    """

    def __init__(
        self,
        *,
        shared: bool = False,
        reserve: int = 1 << 38,
        poison: int = 0xFF,
        poison_bound: int = 64 << 20,
        room: tuple[int, int] | None = None,
    ) -> None:
        self._shared = shared
        self._reserve = reserve
        self._poison = poison
        self._poison_bound = poison_bound
        libc = ctypes.CDLL(None, use_errno=True)
        self._mmap = libc.mmap
        self._mmap.restype = ctypes.c_void_p
        self._mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
        )  # fmt: skip
        self._munmap = libc.munmap
        self._munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self._owner = os.getpid()
        self._reservations: list[tuple[int, int]] = []
        self._next, self._limit = room or (0, 0)
        self._bounded = room is not None
        self._live: dict[int, Allocation] = {}
        self._free: list[tuple[int, int]] = []
        """Freed address ranges, ascending; reused once the reservation is exhausted."""

    def allocate(self, size: int, *, name: str, align: int = 256) -> int:
        """Allocate ``size`` bytes at a multiple of ``align`` (a power of two). Raises OSError or ValueError."""
        if size < 0 or align < 1 or align & (align - 1):
            raise ValueError(f"{name}: {size} bytes aligned to {align}")
        length = max(1, -(-size // _PAGE)) * _PAGE
        gap = max(_LEAST_GAP, length)
        step = max(align, _PAGE)
        low, high = self._take(gap + length + gap + step, name)
        address = -(-(low + gap) // step) * step
        self._map_zeros(address, length, name)
        poisoned = min(size, self._poison_bound)
        if poisoned:
            ctypes.memset(address, self._poison, poisoned)
        self._live[address] = Allocation(name, address, size, low, high, poisoned)
        return address

    def zero(self, address: int) -> None:
        """Fill an allocation with zeros, which take no memory. Raises KeyError if none starts there."""
        live = self._live[address]
        self._map_zeros(address, max(1, -(-live.size // _PAGE)) * _PAGE, live.name)

    def repeat(self, address: int, period: memoryview) -> None:
        """Fill an allocation with repetitions of some bytes, whole pages that are stored once; it is read-only then.

        Raises:
            KeyError: No allocation starts there.
            ValueError: The bytes are no whole pages.
        """
        size = self._live[address].size
        if not period.nbytes or period.nbytes % _PAGE:
            raise ValueError(f"{period.nbytes} bytes to repeat are no whole pages")
        file = os.memfd_create("period")
        try:
            rest = period
            while rest:
                rest = rest[os.write(file, rest) :]
            for start in range(0, size, period.nbytes):
                length = -(-min(period.nbytes, size - start) // _PAGE) * _PAGE
                self._map(address + start, length, mmap.PROT_READ, _SHARED | _FIXED, "a period", file=file)
        finally:
            os.close(file)

    def free(self, address: int) -> None:
        """Free an allocation; a later access is a segmentation fault. Raises KeyError if none starts there."""
        freed = self._live.pop(address)
        length = max(1, -(-freed.size // _PAGE)) * _PAGE
        self._map(address, length, _NONE, _PRIVATE | _ANONYMOUS | _NORESERVE | _FIXED, freed.name)
        self._put(freed.low, freed.high)

    def reserve(self, length: int, *, at: int = 0) -> tuple[int, int]:
        """Reserve address space without memory, which processes forked later have too; return both its ends.

        It begins at an address if one is given and nothing is there (mmap(2) takes it as a hint).
        """
        start = self._map(at, length, _NONE, _PRIVATE | _ANONYMOUS | _NORESERVE, "a reservation")
        return start, start + length

    def find(self, address: int) -> Allocation | None:
        """Return the allocation whose bytes or gaps contain an address."""
        return next((a for a in self._live.values() if a.low <= address < a.high), None)

    def close(self) -> None:
        """Unmap all address space, in the process that reserved it. No view of its bytes may exist any more."""
        if os.getpid() == self._owner:
            for start, length in self._reservations:
                self._munmap(start, length)
        self._reservations.clear()
        self._live.clear()
        self._free.clear()
        self._next = self._limit = 0

    def _take(self, length: int, name: str) -> tuple[int, int]:
        """Take ``length`` bytes of address space: new ones first, so that use after free is noticed for long."""
        if self._next + length > self._limit:
            for position, (low, high) in enumerate(self._free):
                if high - low >= length:
                    self._free[position : position + 1] = [(low + length, high)] if high - low > length else []
                    return low, low + length
            if self._bounded:
                raise MemoryError(f"{name}: no address space for {length} bytes is left")
            room = max(self._reserve, length)
            if self._next < self._limit:
                self._put(self._next, self._limit)
            self._next = self._map(0, room, _NONE, _PRIVATE | _ANONYMOUS | _NORESERVE, name)
            self._limit = self._next + room
            self._reservations.append((self._next, room))
        low = self._next
        self._next += length
        return low, self._next

    def _put(self, low: int, high: int) -> None:
        position = bisect.bisect(self._free, (low, high))
        if position < len(self._free) and self._free[position][0] == high:
            high = self._free.pop(position)[1]
        if position and self._free[position - 1][1] == low:
            low = self._free.pop(position - 1)[0]
            position -= 1
        self._free.insert(position, (low, high))

    def _map_zeros(self, address: int, length: int, name: str) -> None:
        """Map pages that can be written at an address, anew if they are mapped."""
        flags = (_SHARED if self._shared else _PRIVATE) | _ANONYMOUS | _NORESERVE
        self._map(address, length, _READ_WRITE, flags | _FIXED, name)

    def _map(self, address: int, length: int, protection: int, flags: int, name: str, *, file: int = -1) -> int:
        mapped = self._mmap(address, length, protection, flags, file, 0)
        if mapped is None or mapped == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, f"{name}: cannot map {length} bytes: {os.strerror(code)}")
        return int(mapped)
