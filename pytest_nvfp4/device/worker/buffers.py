"""The tensors of one call, inside larger buffers with guard memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_nvfp4.contracts.call import Call, Tensor, filled
from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.device.worker.memory import DeviceMemory
from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.numerics.arrays import Bytes

_OFFSETS = (1536, 2560, 512, 3584)
"""Storage offsets of inputs in bytes, in turn: different for neighbours, and multiples of 512 like the addresses of
whole tensors (c10/cuda/CUDACachingAllocator, kMinBlockSize), so that a kernel may rely on the same alignment."""


Allocate = Callable[[int], Any]
"""Returns a new tensor of as many bytes in device memory."""


@dataclass(slots=True)
class Buffer:
    """The device memory of one tensor, recorded before any kernel runs.

    Attributes:
        tensor: What lies in it, with its content for the current call.
        owner: The tensor of its bytes, a view if it begins at a storage offset.
        address: Its address, of the guard memory before an output.
        size: Its size in bytes, with guard memory.
        offset: Bytes of the same storage before it.
    """

    tensor: Tensor
    owner: Any
    address: int
    size: int
    offset: int = 0

    def content(self) -> Iterator[bytes | Bytes]:
        """Yield the bytes that fill it before a call, from its address on, in parts."""
        tensor = self.tensor
        if tensor.role == "output":
            yield tensor.poison * (self.size // tensor.item) if tensor.item else b""
            return
        around = bytes([tensor.guard]) if tensor.role == "input" else tensor.poison
        before, after = (around * (size // max(1, len(around))) for size in (tensor.before, tensor.after))
        yield before
        if tensor.data is not None:
            yield np.ascontiguousarray(tensor.data).view(np.uint8)
        yield after

    def fill(self, memory: DeviceMemory) -> None:
        """Write its content, and the guard byte before its offset."""
        at = self.address - self.offset
        for part in (bytes([self.tensor.guard]) * self.offset, *self.content()):
            memory.write(at, part)
            at += len(part)

    def read(self, memory: DeviceMemory) -> bytes:
        """Return its current bytes, with guard memory."""
        return memory.read(self.address, self.size)

    def bits(self, memory: DeviceMemory) -> bytes:
        """Return its current bytes without guard memory."""
        return memory.read(self.address + self.tensor.before, self.tensor.size)

    def view(self, torch: Any) -> Any:
        """Return the tensor over it that a kernel receives."""
        tensor = self.tensor
        flat = self.owner[tensor.before : tensor.before + tensor.size].view(getattr(torch, tensor.dtype))
        return torch.as_strided(flat, tensor.shape, tensor.strides)


class CallBuffers:
    """The buffers of all tensors of a call; with ``offset``, inputs begin at a storage offset.

    ``allocate`` is torch's on the device by default.
    """

    def __init__(self, torch: Any, inputs: Any, *, offset: bool = False, allocate: Allocate | None = None) -> None:
        def empty(size: int) -> Any:
            return torch.empty(size, dtype=torch.uint8, device="cuda")

        self._torch = torch
        self._allocate = allocate or empty
        self._call = _call_of(inputs)
        self._buffers: list[Buffer | None] = []
        for tensor in self._call.tensors:
            shift = _OFFSETS[len(self._buffers) % len(_OFFSETS)] if offset and tensor.role == "input" else 0
            self._buffers.append(self._buffer(tensor, shift) if tensor.device and tensor.passed else None)

    def _buffer(self, tensor: Tensor, offset: int) -> Buffer:
        size = tensor.before + tensor.size + tensor.after
        owner = self._allocate(offset + max(size, 1))[offset:]
        return Buffer(tensor, owner, int(owner.data_ptr()), size, offset)

    @property
    def buffers(self) -> list[Buffer]:
        """The buffers in device memory."""
        return [buffer for buffer in self._buffers if buffer is not None]

    @property
    def inputs(self) -> list[Buffer]:
        """Those of all inputs, the ones that outputs overwrite among them."""
        return [buffer for buffer in self.buffers if buffer.tensor.role != "output"]

    @property
    def constant(self) -> list[Buffer]:
        """Those of the inputs that the kernel must not change."""
        return [buffer for buffer in self.buffers if buffer.tensor.role == "input"]

    @property
    def outputs(self) -> list[Buffer]:
        """Those of the outputs that the kernel receives."""
        return [buffer for buffer in self.buffers if buffer.tensor.is_output]

    @property
    def results(self) -> list[tuple[Tensor, Buffer | None]]:
        """All outputs, each with its buffer if the kernel receives it."""
        pairs = zip(self._call.tensors, self._buffers, strict=True)
        return [(tensor, buffer) for tensor, buffer in pairs if tensor.is_output]

    def at(self, index: int) -> Buffer:
        """Return the buffer of a tensor of the call, which lies in device memory."""
        buffer = self._buffers[index]
        assert buffer is not None
        return buffer

    def fill(self, memory: DeviceMemory, inputs: Any, *, blank: bool = False) -> None:
        """Write inputs of the same shapes and poison the outputs; if ``blank``, write the other inputs only."""
        self._set(_call_of(inputs))
        for buffer in self.buffers:
            if not blank or not (buffer.tensor.blank or buffer.tensor.role == "output"):
                buffer.fill(memory)

    def overwrite(self, memory: DeviceMemory, inputs: Any) -> None:
        """Write other inputs of the same shapes and poison the outputs; the inputs of the call remain known."""
        own = self._call
        self.fill(memory, inputs)
        self._set(own)

    def _set(self, call: Call) -> None:
        self._call = call
        for buffer, tensor in zip(self._buffers, call.tensors, strict=True):
            if buffer is not None:
                buffer.tensor = tensor

    def poisoned(self) -> list[tuple[Buffer, bytes]]:
        """Return the inputs with bytes that spoil every output that is computed from them."""
        return [(buffer, bytes([buffer.tensor.spoil]) * buffer.size) for buffer in self.inputs]

    def poison_inputs(self, memory: DeviceMemory) -> None:
        """Overwrite all inputs by bytes that spoil every output."""
        for buffer, data in self.poisoned():
            memory.write(buffer.address, data)

    def extents(self) -> list[Extent]:
        """Return the extents of all buffers."""
        return [Extent(buffer.address, buffer.size) for buffer in self.buffers if buffer.size]

    @property
    def returns(self) -> str:
        """What the kernel returns (see ``contracts.call.Call``)."""
        return self._call.returns

    def arguments(self) -> tuple[tuple[Any, ...], list[Any]]:
        """Return the arguments of the kernel, of new objects, and what stands for each output.

        That is the tensor in the arguments, or else an empty one of its type in host memory with its shape.
        """
        tensors = [
            self._host(tensor) if buffer is None else buffer.view(self._torch)
            for tensor, buffer in zip(self._call.tensors, self._buffers, strict=True)
        ]
        given = [made for made, tensor in zip(tensors, self._call.tensors, strict=True) if tensor.is_output]
        return filled(self._call.arguments, tensors), given

    def _host(self, tensor: Tensor) -> Any:
        torch = self._torch
        kind = getattr(torch, tensor.dtype)
        if not tensor.passed:
            return torch.empty(tensor.shape, dtype=kind, device="meta")
        assert tensor.data is not None
        return torch.as_strided(torch.from_numpy(tensor.data.copy()).view(kind), tensor.shape, tensor.strides)

    def expected_digest(self) -> str:
        """Return the hash of the bytes with which the inputs were filled."""
        digest = hashlib.sha256()
        for buffer in self.constant:
            for part in buffer.content():
                digest.update(part if isinstance(part, bytes) else part.data)
        return digest.hexdigest()

    def digest(self, memory: DeviceMemory) -> str:
        """Return the hash of the current content of the inputs."""
        digest = hashlib.sha256()
        for buffer in self.constant:
            digest.update(buffer.read(memory))
        return digest.hexdigest()


def _call_of(inputs: Any) -> Call:
    return contract_of(inputs.problem).call(inputs)
