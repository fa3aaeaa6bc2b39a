"""What the stand-ins of CUDA and torch need of a device, and the device whose memory is this process's own.

``remote`` has the device behind a socket, which is another process.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pytest_nvfp4.driver.launch_queue import LaunchQueue
from pytest_nvfp4.driver.launches import Launch
from pytest_nvfp4.driver.memory import DeviceMemory, HostBlocks
from pytest_nvfp4.driver.streams import Extent, Streams
from pytest_nvfp4.driver.variables import UnreadVariables, Variables

if TYPE_CHECKING:
    import torch


class DeviceWork(Protocol):
    """Allocations and copies of the CUDA driver. Sizes are in bytes; ``what`` names a call in messages."""

    def allocate(self, size: int, stream: int | None = None) -> int:
        """Allocate memory, in the order of a stream if one is given, and return its address."""

    def free(self, address: int, stream: int | None = None) -> None:
        """Free memory; null is allowed. Raises HostSideError for an address that is no allocated block."""

    def copy(self, to: int, source: int, size: int, *, what: str, stream: int, waits: bool) -> None:
        """Copy between any two addresses; with ``waits``, the host waits for a copy from its memory."""

    def fill(self, to: int, pattern: bytes, count: int, *, what: str, stream: int) -> None:
        """Fill memory with ``count`` repetitions of a pattern."""


class HeldMemory:
    """The bytes of device memory that the tensors of this process hold.

    Attributes:
        now, most: Their number now, and the greatest one since ``most`` was set.
    """

    def __init__(self) -> None:
        self.now = 0
        self.most = 0

    def hold(self, size: int, release: Callable[[], None]) -> Callable[[], None]:
        """Count a block of ``size`` bytes until the returned function is called, which calls ``release``."""
        self.now += size
        self.most = max(self.most, self.now)

        def freed() -> None:
            self.now -= size
            release()

        return freed


class DeviceOperators(Protocol):
    """Operators of torch. Device tensors come and go as CPU tensors over the addresses of their elements.

    Attributes:
        held: The memory of those that ``run`` has returned.
    """

    held: HeldMemory

    def run(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        *,
        on_device: Collection[int],
        generator: torch.Generator | None,
    ) -> tuple[Any, bool]:
        """Execute an operator; return its result, and whether tensors in it are on the device.

        Args:
            func, args, kwargs: The operator and its arguments.
            on_device: Identities of the arguments that are device tensors.
            generator: Replaces torch's default generator.
        """

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elements of a device tensor for the host, which waits for the device."""


@dataclass(frozen=True, slots=True)
class DeviceSide:
    """A device: its memory, the order of its work, its launches, and torch's operators on it."""

    work: DeviceWork
    streams: Streams
    launches: LaunchQueue
    operators: DeviceOperators


def local(
    on_launch: Callable[[Launch], None],
    *,
    memory: DeviceMemory | None = None,
    streams: Streams | None = None,
    variables: Variables | None = None,
) -> DeviceSide:
    """Return the device whose memory is this process's own.

    ``memory`` is the heap by default. Without ``variables``, those of modules have no initial values, because nothing
    executes what is launched.
    """
    memory, streams = memory or HostBlocks(), streams or Streams()
    queue = LaunchQueue(on_launch, streams, variables or UnreadVariables(memory))
    return DeviceSide(LocalWork(memory, streams), streams, queue, LocalOperators(memory, streams))


class LocalWork:
    """Implements ``DeviceWork``."""

    def __init__(self, memory: DeviceMemory, streams: Streams) -> None:
        self._memory = memory
        self._streams = streams

    def allocate(self, size: int, stream: int | None = None) -> int:
        """See ``DeviceWork``."""
        address = self._memory.allocate(size)
        self._streams.allocated(address, size, stream=stream)
        return address

    def free(self, address: int, stream: int | None = None) -> None:
        """See ``DeviceWork``."""
        self._streams.freed(address, stream=stream)
        self._memory.free(address)

    def copy(self, to: int, source: int, size: int, *, what: str, stream: int, waits: bool) -> None:
        """See ``DeviceWork``."""
        self._streams.copied(what, to, source, size, stream=stream, waits=waits)
        ctypes.memmove(to, source, size)

    def fill(self, to: int, pattern: bytes, count: int, *, what: str, stream: int) -> None:
        """See ``DeviceWork``."""
        size = len(pattern) * count
        self._streams.work(what, stream=stream, writes=[Extent(to, size)])
        if len(pattern) == 1:
            ctypes.memset(to, pattern[0], size)
        else:
            ctypes.memmove(to, pattern * count, size)


class LocalOperators:
    """Implements ``DeviceOperators`` by the machine's own execution (``machine.operators``)."""

    def __init__(self, memory: DeviceMemory, streams: Streams) -> None:
        self.held = HeldMemory()
        self._memory = memory
        self._streams = streams
        self._repeated: set[int] = set()
        """Addresses of tensors whose random numbers repeat (``large_random``)."""

    def run(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        *,
        on_device: Collection[int],
        generator: torch.Generator | None,
    ) -> tuple[Any, bool]:
        """See ``DeviceOperators``."""
        import torch

        from pytest_nvfp4.host import large_random
        from pytest_nvfp4.machine import operators
        from pytest_nvfp4.machine.torch_effects import report

        if (short := large_random.shortened(func, args, kwargs, on_device=on_device)) is not None:
            period = self.run(short.func, short.args, short.kwargs, on_device=on_device, generator=generator)[0]
            large = self._place(short.whole, initialised=False)
            self._memory.repeat(large.data_ptr(), memoryview(period.view(torch.uint8).numpy()))
            self._repeated.add(large.data_ptr())
            return large, True
        if self._repeated:
            self._check_writes(func, args, kwargs)
        ran = operators.run(func, args, kwargs, on_device=on_device, place=self._place, generator=generator)
        if ran.effects is not None and self._streams.watcher is not None:
            report(self._streams, func, ran.effects)
        return ran.result, ran.on_device

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """See ``DeviceOperators``."""
        from pytest_nvfp4.machine.torch_effects import extent

        self._streams.work("a read by the host", reads=[extent(tensor)], waits=True)
        return tensor

    def _check_writes(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Raise MemoryError if an operator writes a tensor whose random numbers repeat."""
        import torch

        for position, argument in enumerate(func._schema.arguments):
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() in self._repeated:
                raise MemoryError(
                    f"{func} writes a random tensor of {value.untyped_storage().nbytes()} bytes: one of 16 GiB or more "
                    "is read-only without a GPU, as its numbers repeat; draw a smaller one, or start from torch.empty"
                )

    def _place(self, tensor: torch.Tensor, initialised: bool) -> torch.Tensor:
        """Move a new result to a block of device memory, with its alignment."""
        size = int(tensor.untyped_storage().nbytes())
        address = self._memory.allocate(size) if size else 0
        block = over(
            address,
            size,
            dtype=tensor.dtype,
            sizes=tensor.size(),
            strides=tensor.stride(),
            offset=int(tensor.storage_offset()),
            release=self.held.hold(size, lambda: self._free(address)) if size else None,
        )
        if not size:
            return block
        self._streams.allocated(address, size, pooled=True)
        if initialised and tensor.is_meta:
            self._memory.zero(address)
        elif initialised:
            ctypes.memmove(address, tensor.untyped_storage().data_ptr(), size)
        return block

    def _free(self, address: int) -> None:
        self._repeated.discard(address)
        self._streams.freed(address, pooled=True)
        self._memory.free(address)


def over(
    address: int,
    size: int,
    *,
    dtype: torch.dtype,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int,
    release: Callable[[], None] | None = None,
) -> torch.Tensor:
    """Return a CPU tensor over a block of ``size`` bytes of device memory. No byte of the block is touched.

    ``release`` is called once nothing refers to its storage any more.
    """
    import torch

    if not size:
        return torch.empty_strided(tuple(sizes), tuple(strides), dtype=dtype, device="cpu")
    buffer = (ctypes.c_char * size).from_address(address)
    if release is not None:
        weakref.finalize(buffer, release).atexit = False
    block = torch.frombuffer(buffer, dtype=torch.uint8)
    return block.view(dtype).as_strided(tuple(sizes), tuple(strides), offset)
