"""Kernels as objects that libraries over the driver give to host code: compiled source, arguments, launches.

``cuda_core``, ``cupy_kernels`` and ``torch_kernels`` are these libraries' interfaces. What they make of a Python number
differs; one that is no value of its parameter is refused, because a GPU would read other bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pytest_nvfp4.driver.device_model import DeviceModel
from pytest_nvfp4.driver.launches import Dim3, HostSideError
from pytest_nvfp4.host import nvrtc
from pytest_nvfp4.host.loaded_modules import LoadedModules


class Library(NamedTuple):
    """What the interface of a library needs.

    Attributes:
        modules: The loaded modules.
        model: The device.
        current: Returns the handle of torch's current stream.
    """

    modules: LoadedModules
    model: DeviceModel
    current: Callable[[], int]

    @property
    def arch(self) -> str:
        """The device's compute capability: ``100``."""
        return f"{self.model.capability[0]}{self.model.capability[1]}"


def compiled(source: str, *, name: str, options: Sequence[str], expressions: Sequence[str] = ()) -> nvrtc.Compiled:
    """Compile source; its lines are those of the user's file (``nvrtc_calls``, which must be installed).

    Raises:
        nvrtc.CompileError: NVRTC refused it; the message is its log.
    """
    return nvrtc.compile_source(source, name=name, options=options, expressions=expressions)


def arguments(
    values: Sequence[Any], sizes: Sequence[int], *, kernel: str, integer_bytes: int, float_bytes: int = 8
) -> list[bytes]:
    """Return the bytes of each parameter.

    Args:
        values: Tensors, other objects with a device pointer, numbers, and objects of numpy and ctypes.
        sizes: Sizes of the kernel's parameters in bytes.
        kernel: Its name, for messages.
        integer_bytes, float_bytes: What the library makes of a number of Python.

    Raises:
        HostSideError: a value does not fit its parameter.
    """
    if len(values) != len(sizes):
        raise HostSideError(f"{kernel} takes {len(sizes)} parameters, got {len(values)} arguments")
    made = []
    for number, (value, size) in enumerate(zip(values, sizes, strict=True)):
        where = f"argument {number} of {kernel}"
        data = _bytes(value, integer_bytes, float_bytes, where)
        if len(data) < size or (len(data) > size and type(value) is not int):
            raise HostSideError(
                f"{where} is a {type(value).__name__} of {len(data)} bytes, and its parameter has {size}: pass a "
                "number of its type (numpy.float32, numpy.int64, ctypes)"
            )
        made.append(data[:size])
    return made


def _bytes(value: Any, integer_bytes: int, float_bytes: int, where: str) -> bytes:
    if isinstance(value, bool):
        return bytes([value])
    if type(value) is int:
        return (value & ((1 << 8 * integer_bytes) - 1)).to_bytes(integer_bytes, "little")
    if type(value) is float:
        return bytes(ctypes.c_double(value) if float_bytes == 8 else ctypes.c_float(value))
    if (address := pointer(value)) is not None:
        return address.to_bytes(8, "little")
    if isinstance(value, ctypes._SimpleCData | ctypes.Structure | ctypes.Union | ctypes.Array):
        return bytes(value)
    if hasattr(value, "dtype") and hasattr(value, "tobytes"):
        return bytes(value.tobytes())
    if callable(get := getattr(value, "getPtr", None)):
        return ctypes.string_at(int(get()), 128 if type(value).__name__ == "CUtensorMap" else 8)
    raise HostSideError(f"{where} is {type(value).__name__}: pass a tensor, a number, or an object of numpy or ctypes")


def pointer(value: Any) -> int | None:
    """Return the device address of an object; None if it has none."""
    for name in ("data_ptr", "ptr"):
        found = getattr(value, name, None)
        if found is not None and not hasattr(value, "tobytes"):
            return int(found()) if callable(found) else int(found)
    if hasattr(type(value), "handle") and type(value).__name__ == "Buffer":
        return int(value.handle)
    interface = getattr(value, "__cuda_array_interface__", None)
    return None if interface is None else int(interface["data"][0])


def dims(value: Any) -> Dim3:
    """Return a grid or block of one to three sizes."""
    sizes = [int(value)] if not isinstance(value, tuple | list) else [int(size) for size in value]
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"a grid or block has one to three sizes, got {value!r}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def stream_handle(stream: Any, default: int) -> int:
    """Return the handle of a stream: a number, or an object of torch, cupy or cuda.core; None for the default."""
    if stream is None:
        return default
    if callable(get := getattr(stream, "__cuda_stream__", None)):
        return int(get()[1])
    for name in ("cuda_stream", "ptr", "handle"):
        if (found := getattr(stream, name, None)) is not None:
            return int(found)
    return int(stream)
