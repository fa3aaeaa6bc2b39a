"""Inspect what a kernel returned without running any of its code, and send it to the parent."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from pytest_nvfp4.contracts.call import Tensor
from pytest_nvfp4.device.worker.buffers import Buffer, CallBuffers
from pytest_nvfp4.device.worker.events import Events
from pytest_nvfp4.device.worker.memory import DeviceMemory

_MODES: Final = {
    "torch.utils._device": ("DeviceContext",),
    "pytest_nvfp4.host.torch_cuda": ("_FunctionMode", "_DispatchMode"),
}
"""Modes of torch that may be active behind a call, by the modules that define them: that of a default device, and the
stand-ins for CUDA."""


class Returned(NamedTuple):
    """What a kernel returned for one output.

    Attributes:
        description: ``c`` (the tensor that it was given), ``other`` (a tensor of its own), or what is wrong with it.
        tensor: The kernel's own tensor, of the output's shape and a type that counts (``counts``); None otherwise.
    """

    description: str
    tensor: Any = None


def inspect_returned(
    torch: Any, returned: Any, given: list[Any], *, returns: str = "list", kind: type | None = None
) -> list[Returned]:
    """Return what a kernel returned for each output.

    Args:
        given: For each output, the tensor among the arguments; one without memory if the kernel allocates it.
        returns: See ``contracts.call.Call``.
        kind: Class of device tensors; that of torch by default.

    A tensor counts only if it is exactly ``torch.Tensor`` (or of the class of the tensor that was given): a subclass
    may compute its values when it is read, after the clock has stopped. So may a mode of torch that the kernel has left
    active, which sees every read of an attribute.
    """
    if (mode := _left_mode(torch)) is not None:
        problem = f"custom_kernel left {mode} active, a mode of torch that would run the kernel's code in its caller"
        return [Returned(problem)] * len(given)
    # A subclass may have methods of its own, which would run here: the length and the items are those of the base.
    base = next((base for base in (list, tuple) if issubclass(type(returned), base)), None)
    if returned is None and returns == "any" and not any(c.is_meta for c in given):
        return [Returned("c")] * len(given)
    if returns == "tensor" and (base is not None or returned is None):
        return [Returned(f"custom_kernel returned {type(returned).__name__}, not the tensor C")] * len(given)
    if returns == "tensor" or (returns == "any" and base is None and len(given) == 1):
        values: Sequence[Any] = [returned]
    elif base is None:
        what = "the list of C" if returns == "list" else f"its {len(given)} outputs"
        return [Returned(f"custom_kernel returned {type(returned).__name__}, not {what}")] * len(given)
    else:
        values = base.__getitem__(returned, slice(None))
    if len(values) != len(given):
        what = "groups" if returns == "list" else "of the contract"
        return [Returned(f"custom_kernel returned {len(values)} outputs for {len(given)} {what}")] * len(given)
    kind = kind or torch.Tensor
    return [_inspect(torch, value, c, kind, returns=returns) for value, c in zip(values, given, strict=True)]


def counts(torch: Any, own: Any, c: Any, *, returns: str) -> bool:
    """Return whether a tensor counts as an output by its type, which a contract of the user's names.

    GPU MODE compares in fp32, whatever type a kernel returns: sums of its own in fp32 are rounded here (`read_tensor`).
    """
    return own.dtype == c.dtype or (returns != "any" and (own.dtype, c.dtype) == (torch.float32, torch.float16))


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


def _inspect(torch: Any, value: Any, c: Any, kind: Any, *, returns: str) -> Returned:
    kind = kind if c.is_meta else type(c)
    if value is c:
        return Returned("c")
    if type(value) is torch.Tensor and value.device.type != "cuda":
        return Returned(f"an output is on {value.device}, not on the device")
    if type(value) is not kind:
        return Returned(f"an output is a {type(value).__module__}.{type(value).__name__}, not a tensor")
    if tuple(value.shape) != tuple(c.shape):
        return Returned(f"an output has shape {tuple(value.shape)}, not {tuple(c.shape)}")
    if not counts(torch, value, c, returns=returns):
        return Returned(f"an output is {value.dtype}, not {c.dtype}")
    if not c.is_meta and _place(value) == _place(c):
        return Returned("c")
    return Returned("other", value)


def _place(tensor: Any) -> tuple[int, tuple[int, ...]]:
    """Return address and strides of a tensor, by the methods of its class: an attribute of its own may replace them."""
    kind = type(tensor)
    return int(kind.data_ptr(tensor)), tuple(int(stride) for stride in kind.stride(tensor))


def read_tensor(memory: DeviceMemory, tensor: Any, like: Tensor) -> bytes:
    """Return the elements of a tensor in the order of the memory of an output of the same shape, read by address.

    Those of a tensor in fp32 for an output in fp16 are rounded.
    """
    shape = tuple(int(size) for size in tensor.shape)
    address, strides = _place(tensor)
    if 0 in shape:
        return b""
    item = int(type(tensor).element_size(tensor))
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    flat = np.frombuffer(memory.read(address, extent * item), dtype=np.dtype((np.void, item)))
    view = np.lib.stride_tricks.as_strided(flat, shape, [stride * item for stride in strides], writeable=False)
    # A dimension of one element has its place in no order.
    order = sorted(range(len(shape)), key=lambda dimension: -like.strides[dimension])
    bits = np.ascontiguousarray(view.transpose(order)).tobytes()
    if item == like.item:
        return bits
    with np.errstate(over="ignore"):
        return np.frombuffer(bits, np.float32).astype(np.float16).tobytes()


def _read_output(memory: DeviceMemory, tensor: Tensor, buffer: Buffer | None, own: Any | None) -> bytes:
    """Return the bytes of an output with its guard memory; ``own`` is the kernel's own tensor if it returned one."""
    if buffer is None:
        return b"" if own is None else read_tensor(memory, own, tensor)
    bits = buffer.read(memory)
    if own is None:
        return bits
    values = read_tensor(memory, own, tensor)
    return bits[: tensor.before] + values + bits[tensor.before + len(values) :]


def write_output(folder: Path, name: str, bits: bytes) -> dict[str, Any]:
    """Write an output to a file of a folder, and return the fields of its ``Blob``."""
    (folder / name).write_bytes(bits)
    return {"sha256": hashlib.sha256(bits).hexdigest(), "size": len(bits), "file": name}


class SentOutput(NamedTuple):
    """An output that was sent.

    Attributes:
        sha256: Its hash.
        tensor: What the output is.
        buffer: Its buffer; None if the arguments do not contain it.
        own: The kernel's own tensor, kept so that its memory is not used again; None for the one that was given.
    """

    sha256: str
    tensor: Tensor
    buffer: Buffer | None
    own: Any

    def digest(self, memory: DeviceMemory) -> str:
        """Return the hash of what the same memory holds now."""
        return hashlib.sha256(_read_output(memory, self.tensor, self.buffer, self.own)).hexdigest()


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
        """Send what a kernel returned for every output, with the fields of ``GroupOutput``."""
        sent = []
        for index, ((description, own), (tensor, buffer)) in enumerate(zip(returned, slot.results, strict=True)):
            bits = _read_output(self.memory, tensor, buffer, own)
            blob = write_output(self.folder, f"{self.prefix}{case}-{call}-{index}.bin", bits)
            self.events.send(
                "output",
                call=call,
                case=case,
                group=index,
                rows=tensor.all_rows,
                columns=tensor.columns,
                data=blob,
                returned=description,
                inputs=inputs,
            )
            sent.append(SentOutput(blob["sha256"], tensor, buffer, own))
        return sent
