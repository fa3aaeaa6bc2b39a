"""The ``kernelParams`` of ``cuLaunchKernel`` as the Python bindings accept them, as the bytes of each parameter.

The forms are those that cuda-python documents: a pair of values and ctypes types; an array of pointers to the
parameters, as an address or an object with a buffer; nothing for a kernel without parameters.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from pytest_nvfp4.driver.launches import HostSideError, LaunchRejectedError


def parameters(given: Any, sizes: Sequence[int], *, kernel: str) -> list[bytes]:
    """Return the bytes of each parameter.

    Args:
        given: What host code passes.
        sizes: Size in bytes of each parameter of the kernel.
        kernel: Name of the kernel, for messages.

    Raises:
        HostSideError: The form is unknown, or a value does not fit its parameter.
        LaunchRejectedError: A pointer is null.
    """
    if isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(part, tuple | list) for part in given):
        return _of_values(given[0], given[1], sizes, kernel=kernel)
    if given is None or (isinstance(given, tuple | list | int) and not given):
        if sizes:
            raise LaunchRejectedError(f"CUDA_ERROR_INVALID_VALUE: {kernel} takes {len(sizes)} parameters, got none")
        return []
    if isinstance(given, tuple | list):
        raise HostSideError(
            f"kernelParams of {kernel} is a {type(given).__name__} of {len(given)} members: pass ((value, ...), "
            "(type, ...)), or an array of pointers"
        )
    return _of_pointers(_address(given, kernel), sizes, kernel=kernel)


def _of_values(values: Sequence[Any], types: Sequence[Any], sizes: Sequence[int], *, kernel: str) -> list[bytes]:
    if not len(values) == len(types) == len(sizes):
        raise HostSideError(
            f"{kernel} takes {len(sizes)} parameters, and kernelParams has {len(values)} values and {len(types)} types"
        )
    made = []
    for ordinal, (value, kind, size) in enumerate(zip(values, types, sizes, strict=True)):
        data = _value(value, kind, size, where=f"parameter {ordinal} of {kernel}")
        if len(data) != size:
            raise HostSideError(
                f"parameter {ordinal} of {kernel} has {size} bytes, and its type "
                f"{getattr(kind, '__name__', kind)} has {len(data)}: pass the type of the kernel's parameter"
            )
        made.append(data)
    return made


def _value(value: Any, kind: Any, size: int, *, where: str) -> bytes:
    if callable(get := getattr(value, "getPtr", None)):  # CUdeviceptr, CUtensorMap, CUstream, ...
        return ctypes.string_at(int(get()), size)
    if isinstance(value, ctypes.Structure | ctypes.Union | ctypes.Array | ctypes._SimpleCData):
        return bytes(value)
    if isinstance(kind, type) and issubclass(kind, ctypes._SimpleCData):
        plain = value.item() if hasattr(value, "item") and hasattr(value, "dtype") else value
        plain = int(plain) if kind in (ctypes.c_void_p, ctypes.c_uint64) and plain is not None else plain
        return bytes(kind(plain))
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):  # numpy: a scalar or a structured value
        return bytes(value.tobytes())
    raise HostSideError(f"{where} is {type(value).__name__} of type {kind!r}: pass a ctypes type, or a driver's object")


def _address(given: Any, kernel: str) -> int:
    if callable(get := getattr(given, "getPtr", None)):
        return int(get())
    if isinstance(given, ctypes.Array):
        return ctypes.addressof(given)
    interface = getattr(given, "__array_interface__", None)
    if interface is not None:
        return int(interface["data"][0])
    try:
        return int(given)
    except (TypeError, ValueError):
        pass
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(given))
    except (TypeError, ValueError, BufferError):
        raise HostSideError(f"kernelParams of {kernel} is {type(given).__name__}: pass an array of pointers") from None


def _of_pointers(address: int, sizes: Sequence[int], *, kernel: str) -> list[bytes]:
    pointers = (ctypes.c_void_p * len(sizes)).from_address(address) if sizes else ()
    made = []
    for ordinal, (pointer, size) in enumerate(zip(pointers, sizes, strict=True)):
        if not pointer:
            raise LaunchRejectedError(f"CUDA_ERROR_INVALID_VALUE: parameter {ordinal} of {kernel} is null")
        made.append(ctypes.string_at(pointer, size))
    return made
