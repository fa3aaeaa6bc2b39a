"""The device memory of a kernel's process: which blocks are live, whose they are, and tensors over their bytes."""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.driver.memory import DeviceMemory

_MOST_BLOCKS: Final = 1 << 18
_MOST_DIMENSIONS: Final = 64
_LARGEST: Final = 1 << 62
_SPARSE: Final = 4 << 30
"""Bytes from which a block is address space, without memory until it is used."""
DTYPES: Final[dict[str, torch.dtype]] = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and not str(value).removeprefix("torch.").startswith(("q", "bits"))
}
"""Types of elements, by name."""


@dataclass(frozen=True, slots=True)
class Block:
    """An allocation; ``tensor`` has its bytes. The kernel's process may free it if it is ``owned`` by that."""

    address: int
    size: int
    owned: bool
    tensor: torch.Tensor


class Blocks:
    """Live allocations of a device.

    Args:
        memory: Their allocator.
        most: Limit on the bytes of all of them together.
    """

    def __init__(self, memory: DeviceMemory, *, most: int = _LARGEST) -> None:
        self._memory = memory
        self._most = most
        self._used = 0
        self._blocks: dict[int, Block] = {}
        self._kept: set[int] = set()
        self._starts: list[int] = []

    def allocate(self, size: int, *, owned: bool = True) -> Block:
        """Allocate a block. Raises MemoryError: beyond the limits."""
        if len(self._blocks) >= _MOST_BLOCKS:
            raise MemoryError(f"{_MOST_BLOCKS} live device allocations; free some")
        taken = size if size < _SPARSE else 0
        if self._used + taken > self._most:
            raise MemoryError(
                f"a device allocation of {size} bytes beside {self._used}; the limit of this job is {self._most}"
            )
        address = self._memory.allocate(size)
        buffer = (ctypes.c_char * max(size, 1)).from_address(address)
        block = Block(address, size, owned, torch.frombuffer(buffer, dtype=torch.uint8)[:size])
        self._used += taken
        self._blocks[address] = block
        bisect.insort(self._starts, address)
        return block

    def free(self, address: int) -> None:
        """Free a block of the kernel's process; null is allowed. Raises HostSideError."""
        if not address:
            return
        if address in self._kept:
            return
        block = self._blocks.get(address)
        if block is None:
            raise HostSideError(f"free of {address:#x}, which is not a live device allocation: freed twice?")
        if not block.owned:
            raise HostSideError(f"free of {address:#x}, which is a tensor of the caller")
        del self._blocks[address]
        self._starts.pop(bisect.bisect_left(self._starts, address))
        self._used -= block.size if block.size < _SPARSE else 0
        self._memory.free(address)

    def keep(self, address: int) -> None:
        """Let the block that starts at an address live to the end: a later free of it does nothing."""
        if address in self._blocks:
            self._kept.add(address)

    def kept(self, address: int) -> bool:
        """Return whether the block that starts at an address lives to the end."""
        return address in self._kept

    def within(self, address: int, size: int, *, what: str) -> Block:
        """Return the block that holds bytes [address, address + size). Raises HostSideError."""
        at = bisect.bisect_right(self._starts, address) - 1
        block = self._blocks[self._starts[at]] if at >= 0 else None
        if size < 0 or block is None or address + size > block.address + block.size:
            raise HostSideError(
                f"{what}: bytes [{address:#x}, {address + size:#x}) are not inside one live device allocation"
            )
        return block

    def at(self, address: int) -> Block | None:
        """Return the block that starts at an address."""
        return self._blocks.get(address)

    def tensor(self, base: int, dtype: str, sizes: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
        """Return a CPU tensor over a part of the block that starts at ``base``; 0 for a tensor without elements.

        Raises:
            HostSideError: no such block, a type that does not exist, or elements outside the block.
        """
        kind = DTYPES.get(dtype)
        dimensions = [*sizes, *strides, offset]
        if kind is None or len(sizes) != len(strides) or len(sizes) > _MOST_DIMENSIONS:
            raise HostSideError(f"a device tensor of type {dtype[:40]} with {len(sizes)} dimensions cannot be")
        if not all(type(number) is int and 0 <= number < _LARGEST for number in dimensions):
            raise HostSideError(f"a device tensor has sizes {list(sizes)[:8]} and strides {list(strides)[:8]}")
        result = torch.empty(0, dtype=kind)
        empty = 0 in sizes
        if not base and empty:
            return torch.empty_strided(list(sizes), list(strides), dtype=kind)
        block = self._blocks.get(base)
        if block is None:
            raise HostSideError(f"a device tensor at {base:#x}, where no live allocation starts: was it freed?")
        last = offset + (0 if empty else 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True)))
        if last * kind.itemsize > block.size:
            raise HostSideError(
                f"a device tensor ends {last * kind.itemsize - block.size} bytes outside its allocation"
            )
        set_: Any = result.set_
        return set_(block.tensor.untyped_storage(), offset, tuple(sizes), tuple(strides))  # type: ignore[no-any-return]
