"""Look at what a kernel returned without asking it to compute anything."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_nvfp4.device.worker.buffers import GroupBuffers
from pytest_nvfp4.device.worker.memory import DeviceMemory


def describe(torch: Any, returned: Any, given: list[Any]) -> list[tuple[str, Any]]:
    """For each group ``("c", None)``, ``("other", tensor)`` or ``(what is wrong, None)``.

    A tensor counts only if it is exactly ``torch.Tensor`` (or the class of the tensor it was given): a subclass may
    compute its values when it is read, after the clock has stopped.
    """
    if not isinstance(returned, list | tuple):
        return [(f"custom_kernel returned {type(returned).__name__}, not the list of C", None)] * len(given)
    if len(returned) != len(given):
        return [(f"custom_kernel returned {len(returned)} outputs for {len(given)} groups", None)] * len(given)
    return [_one(torch, value, c) for value, c in zip(returned, given, strict=True)]


def _one(torch: Any, value: Any, c: Any) -> tuple[str, Any]:
    if value is c:
        return "c", None
    if type(value) is torch.Tensor and value.device.type != "cuda":
        return f"an output is on {value.device}, not on the device", None
    if type(value) is not type(c):
        return f"an output is a {type(value).__module__}.{type(value).__name__}, not a tensor", None
    if tuple(value.shape) != tuple(c.shape):
        return f"an output has shape {tuple(value.shape)}, not {tuple(c.shape)}", None
    if value.dtype != torch.float16:
        return f"an output is {value.dtype}, not torch.float16", None
    if value.data_ptr() == c.data_ptr() and tuple(value.stride()) == tuple(c.stride()):
        return "c", None
    return "other", value


def read_tensor(memory: DeviceMemory, tensor: Any) -> bytes:
    """The fp16 bits of a ``[m, n, 1]`` tensor, row-major, read by address."""
    m, n, _ = (int(size) for size in tensor.shape)
    rows, columns, _ = (int(stride) for stride in tensor.stride())
    if m == 0 or n == 0:
        return b""
    extent = (m - 1) * rows + (n - 1) * columns + 1
    flat = np.frombuffer(memory.read(int(tensor.data_ptr()), extent * 2), dtype=np.uint16)
    view = np.lib.stride_tricks.as_strided(flat, shape=(m, n), strides=(rows * 2, columns * 2), writeable=False)
    return np.ascontiguousarray(view).tobytes()


def with_values(memory: DeviceMemory, buffers: GroupBuffers, tensor: Any | None) -> bytes:
    """The bits of a group's C with its guard rows; the rows of C from ``tensor`` where the kernel returned its own."""
    bits = buffers.read_c(memory)
    if tensor is None:
        return bits
    values = read_tensor(memory, tensor)
    top = buffers.rows_before * buffers.columns * 2
    return bits[:top] + values + bits[top + len(values) :]
