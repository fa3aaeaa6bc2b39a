"""Inspect what a kernel returned without running any of its code, and send it to the parent."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from pytest_nvfp4.device.worker.buffers import CallBuffers, GroupBuffers
from pytest_nvfp4.device.worker.events import Events
from pytest_nvfp4.device.worker.memory import DeviceMemory

_MODES: Final = {
    "torch.utils._device": ("DeviceContext",),
    "pytest_nvfp4.host.torch_cuda": ("_FunctionMode", "_DispatchMode"),
}
"""Modes of torch that may be active behind a call, by the modules that define them: that of a default device, and the
stand-ins for CUDA."""


class Returned(NamedTuple):
    """What a kernel returned for one group.

    Attributes:
        description: ``c`` (the tensor that it was given), ``other`` (a tensor of its own), or what is wrong with it.
        tensor: The kernel's own tensor, of shape ``[m, n, 1]``; None otherwise.
    """

    description: str
    tensor: Any = None


def inspect_returned(torch: Any, returned: Any, given: list[Any]) -> list[Returned]:
    """Return what a kernel returned for each group.

    A tensor counts only if it is exactly ``torch.Tensor`` (or of the class of the tensor that was given): a subclass
    may compute its values when it is read, after the clock has stopped. So may a mode of torch that the kernel has left
    active, which sees every read of an attribute.
    """
    if (mode := _left_mode(torch)) is not None:
        problem = f"custom_kernel left {mode} active, a mode of torch that would run the kernel's code in its caller"
        return [Returned(problem)] * len(given)
    # A subclass may have methods of its own, which would run here: the length and the items are those of the base.
    base = next((base for base in (list, tuple) if issubclass(type(returned), base)), None)
    if base is None:
        return [Returned(f"custom_kernel returned {type(returned).__name__}, not the list of C")] * len(given)
    values = base.__getitem__(returned, slice(None))
    if len(values) != len(given):
        return [Returned(f"custom_kernel returned {len(values)} outputs for {len(given)} groups")] * len(given)
    return [_inspect(torch, value, c) for value, c in zip(values, given, strict=True)]


def _left_mode(torch: Any) -> str | None:
    """Return the name of an active mode of torch that is not one of ``_MODES``, or None."""
    native = torch._C
    allowed = [
        getattr(module, name)
        for where, names in _MODES.items()
        if (module := sys.modules.get(where)) is not None
        for name in names
    ]
    modes = [native._get_function_stack_at(at) for at in range(native._len_torch_function_stack())]
    modes += [native._get_dispatch_stack_at(at) for at in range(native._len_torch_dispatch_stack())]
    kinds = [type(mode) for mode in modes]
    return next((kind.__name__[:80] for kind in kinds if not any(kind is known for known in allowed)), None)


def _inspect(torch: Any, value: Any, c: Any) -> Returned:
    if value is c:
        return Returned("c")
    if type(value) is torch.Tensor and value.device.type != "cuda":
        return Returned(f"an output is on {value.device}, not on the device")
    if type(value) is not type(c):
        return Returned(f"an output is a {type(value).__module__}.{type(value).__name__}, not a tensor")
    if tuple(value.shape) != tuple(c.shape):
        return Returned(f"an output has shape {tuple(value.shape)}, not {tuple(c.shape)}")
    if value.dtype != torch.float16:
        return Returned(f"an output is {value.dtype}, not torch.float16")
    if _place(value) == _place(c):
        return Returned("c")
    return Returned("other", value)


def _place(tensor: Any) -> tuple[int, tuple[int, ...]]:
    """Return address and strides of a tensor, by the methods of its class: an attribute of its own may replace them."""
    kind = type(tensor)
    return int(kind.data_ptr(tensor)), tuple(int(stride) for stride in kind.stride(tensor))


def read_tensor(memory: DeviceMemory, tensor: Any) -> bytes:
    """Return the fp16 bits of a ``[m, n, 1]`` tensor, row-major, read by address."""
    m, n, _ = (int(size) for size in tensor.shape)
    address, (rows, columns, _) = _place(tensor)
    if m == 0 or n == 0:
        return b""
    extent = (m - 1) * rows + (n - 1) * columns + 1
    flat = np.frombuffer(memory.read(address, extent * 2), dtype=np.uint16)
    view = np.lib.stride_tricks.as_strided(flat, shape=(m, n), strides=(rows * 2, columns * 2), writeable=False)
    return np.ascontiguousarray(view).tobytes()


def _read_output(memory: DeviceMemory, buffers: GroupBuffers, tensor: Any | None) -> bytes:
    """Return the bits of a group's C with its guard rows; rows of C come from ``tensor`` if the kernel returned one."""
    bits = buffers.read_c(memory)
    if tensor is None:
        return bits
    values = read_tensor(memory, tensor)
    top = buffers.rows_before * buffers.columns * 2
    return bits[:top] + values + bits[top + len(values) :]


def write_output(folder: Path, name: str, bits: bytes) -> dict[str, Any]:
    """Write an output to a file of a folder, and return the fields of its ``Blob``."""
    (folder / name).write_bytes(bits)
    return {"sha256": hashlib.sha256(bits).hexdigest(), "size": len(bits), "file": name}


class SentOutput(NamedTuple):
    """An output that was sent.

    Attributes:
        sha256: Its hash.
        tensor: The kernel's own tensor, kept so that its memory is not used again; None for the C that was given.
    """

    sha256: str
    tensor: Any

    def digest(self, memory: DeviceMemory, buffers: GroupBuffers) -> str:
        """Return the hash of what the same memory holds now."""
        return hashlib.sha256(_read_output(memory, buffers, self.tensor)).hexdigest()


@dataclass(frozen=True, slots=True)
class OutputSender:
    """Sends whole outputs: the bits in a file of the folder that parent and worker share, the rest as an event."""

    memory: DeviceMemory
    events: Events
    folder: Path
    prefix: str = ""

    def send(
        self,
        returned: Sequence[Returned],
        slot: CallBuffers,
        *,
        call: int,
        case: int,
        inputs: tuple[int, int] | None,
    ) -> list[SentOutput]:
        """Send what a kernel returned for every group, with the fields of ``GroupOutput``; ``slot`` holds its C."""
        sent = []
        for index, (description, tensor) in enumerate(returned):
            group = slot.groups[index]
            bits = _read_output(self.memory, group, tensor)
            blob = write_output(self.folder, f"{self.prefix}{case}-{call}-{index}.bin", bits)
            self.events.send(
                "output",
                call=call,
                case=case,
                group=index,
                rows=group.rows,
                columns=group.columns,
                data=blob,
                returned=description,
                inputs=inputs,
            )
            sent.append(SentOutput(blob["sha256"], tensor))
        return sent
