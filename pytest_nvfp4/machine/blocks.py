"""The device memory of a kernel's process: which blocks are live, whose they are, and tensors over their bytes."""

from __future__ import annotations

import bisect
import ctypes
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.driver.memory import POISON, DeviceMemory

_MOST_BLOCKS: Final = 1 << 18
_MOST_DIMENSIONS: Final = 64
_LARGEST: Final = 1 << 62
_MOST_ELEMENTS: Final = 1 << 48
_SPARSE: Final = 4 << 30
"""Bytes from which a block of the caller is address space, without memory until it is used."""
DTYPES: Final[dict[str, torch.dtype]] = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and not str(value).removeprefix("torch.").startswith(("q", "bits"))
}
"""Types of elements, by name."""


@dataclass(frozen=True, slots=True)
class Block:
    """An allocation; ``tensor`` has its bytes. The kernel's process may free it if it is ``owned`` by that.

    ``variable`` names the variable of a module that it holds, which lasts as long as the module.
    """

    address: int
    size: int
    owned: bool
    tensor: torch.Tensor
    variable: str = ""


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
        self._journal: list[Block] | None = None
        """Blocks allocated since ``keep_freed``, in order; None if they are not recorded."""
        self._freed: list[Block] = []
        self._freed_most = 0
        self._adopted: list[tuple[int, bytes]] = []
        """Variables adopted since ``keep_freed``, with their initial values."""
        self._script: Iterator[Block] | None = None
        """While requests are repeated, the blocks that their allocations return."""
        self.dropped = False

    def allocate(self, size: int, *, owned: bool = True) -> Block:
        """Allocate a block. Raises MemoryError: beyond the limits."""
        if self._script is not None:
            return self._repeat(size)
        if len(self._blocks) >= _MOST_BLOCKS:
            raise MemoryError(f"{_MOST_BLOCKS} live device allocations; free some")
        taken = _taken(size, owned=owned)
        if self._used + taken > self._most:
            raise MemoryError(
                f"a device allocation of {size} bytes beside {self._used}; the limit of this job is {self._most}, as "
                "host memory stands for the device's: allocate less"
            )
        address = self._memory.allocate(size)
        block = Block(address, size, owned, _tensor(address, size))
        self._used += taken
        self._add(block)
        if self._journal is not None:
            self._journal.append(block)
        return block

    def zero(self, address: int) -> None:
        """Fill a block with zeros."""
        self._memory.zero(address)

    def adopt(self, address: int, size: int, *, variable: str) -> None:
        """Add the block of a module's variable, which is allocated already. Nothing is done if it was added."""
        if address in self._blocks:
            return
        self._used += size
        self._add(Block(address, size, True, _tensor(address, size), variable))
        if self._journal is not None:
            self._adopted.append((address, ctypes.string_at(address, size)))

    def _add(self, block: Block) -> None:
        self._blocks[block.address] = block
        bisect.insort(self._starts, block.address)

    def _remove(self, block: Block) -> None:
        del self._blocks[block.address]
        self._starts.pop(bisect.bisect_left(self._starts, block.address))

    def free(self, address: int) -> None:
        """Free a block of the kernel's process; null is allowed. Raises HostSideError."""
        if not address or address in self._kept or self._script is not None:
            return
        block = self._blocks.get(address)
        if block is None:
            raise HostSideError(f"free of {address:#x}, which is not a live device allocation: freed twice?")
        if block.variable:
            raise HostSideError(f"free of {address:#x}, which is the variable {block.variable} of a module")
        if not block.owned:
            raise HostSideError(f"free of {address:#x}, which is a tensor of the caller")
        self._remove(block)
        self._used -= _taken(block.size, owned=block.owned)
        if self._journal is not None and not self.dropped:
            self._memory.retire(address)
            self._freed.append(block)
            self._freed_most -= block.size
            self.dropped = self._freed_most < 0
        else:
            self._memory.free(address)

    def keep(self, address: int) -> None:
        """Let the block that starts at an address live to the end: a later free of it does nothing."""
        if address in self._blocks:
            self._kept.add(address)

    def kept(self, address: int) -> bool:
        """Return whether the block that starts at an address lives to the end."""
        return address in self._kept

    # ---- repeated requests ---------------------------------------------------------------------------------------

    def keep_freed(self, *, most: int) -> None:
        """Keep the memory of blocks that are freed from now on, up to a number of bytes, and record new blocks."""
        self._journal, self._freed_most, self.dropped = [], most, False
        self._adopted = []

    def drop_freed(self) -> None:
        """Free the memory that was kept, and keep no more."""
        for block in self._freed:
            self._memory.drop(block.address)
        self._journal, self._freed, self._adopted, self.dropped = None, [], [], False

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Make freed blocks live again, return recorded blocks for allocations, and free nothing.

        Variables of modules that were loaded since ``keep_freed`` get their initial values.
        """
        for address, initial in self._adopted:
            ctypes.memmove(address, initial, len(initial))
        for block in self._freed:
            self._memory.revive(block.address)
            self._add(block)
        self._script = iter(self._journal or ())
        try:
            yield
        finally:
            self._script = None
            for block in self._freed:
                self._remove(block)
                self._memory.retire(block.address)

    def contents(self, *, most: int) -> list[tuple[int, bytes]]:
        """Return the bytes of the blocks of the kernel's process, by address; none if there are more than ``most``.

        Blocks that were freed and kept are among them.
        """
        blocks = [block for block in (*self._blocks.values(), *self._freed) if block.owned]
        return [] if sum(block.size for block in blocks) > most else _bytes_of(blocks)

    def kept_contents(self) -> list[tuple[int, bytes]]:
        """Return the bytes of the blocks that live to the end, by address."""
        return _bytes_of(self._blocks[address] for address in self._kept)

    def _repeat(self, size: int) -> Block:
        assert self._script is not None
        block = next((block for block in self._script if block.owned), None)
        if block is None or block.size != size:
            raise HostSideError(f"a repeated request allocates {size} bytes, unlike the first time")
        if size < _SPARSE:
            ctypes.memset(block.address, POISON, size)
        return block

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
        if math.prod(max(size, 1) for size in sizes) > _MOST_ELEMENTS:
            raise HostSideError(f"a device tensor of sizes {list(sizes)[:8]} has more elements than any device")
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


def _bytes_of(blocks: Iterable[Block]) -> list[tuple[int, bytes]]:
    return [(block.address, ctypes.string_at(block.address, block.size)) for block in blocks]


def _tensor(address: int, size: int) -> torch.Tensor:
    buffer = (ctypes.c_char * max(size, 1)).from_address(address)
    return torch.frombuffer(buffer, dtype=torch.uint8)[:size]


def _taken(size: int, *, owned: bool) -> int:
    """Return the bytes that count towards the limit of a job."""
    return size if owned or size < _SPARSE else 0
