"""Read, write and wait for device memory below torch, through the CUDA driver.

A kernel's Python code shares this process and may have replaced any function of torch. Everything that is checked is
therefore read by address through a separate libcuda handle. Source: CUDA Driver API, "Memory Management", "Context
Management".
"""

from __future__ import annotations

import ctypes
from typing import ClassVar, Final, Protocol

from pytest_nvfp4.numerics.arrays import Bytes

_FUNCTIONS: Final = (
    *("cuCtxResetPersistingL2Cache", "cuCtxSetCurrent", "cuCtxSynchronize", "cuDeviceGet", "cuDevicePrimaryCtxRetain"),
    *("cuEventCreate", "cuEventElapsedTime", "cuEventQuery", "cuEventRecord", "cuGetErrorString", "cuInit"),
    *("cuLaunchKernel", "cuMemAlloc_v2", "cuMemHostAlloc", "cuMemcpyDtoDAsync_v2", "cuMemcpyDtoHAsync_v2"),
    *("cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2", "cuMemsetD16Async", "cuMemsetD32Async", "cuModuleGetFunction"),
    *("cuModuleLoadData", "cuStreamCreate", "cuStreamSynchronize", "cuStreamWaitEvent"),
)
"""Functions of libcuda that judging and timing call."""


class DriverError(RuntimeError):
    """A driver call failed; the message contains its name and the driver's error."""


class DeviceMemory(Protocol):
    """The memory of a device. Addresses and sizes are in bytes."""

    def synchronize(self) -> None:
        """Wait until all work on every stream has ended."""

    def read(self, address: int, size: int) -> bytes:
        """Copy from the device."""

    def write(self, address: int, data: bytes | Bytes) -> None:
        """Copy bytes, or an array of bytes without gaps, to the device."""


class CudaMemory:
    """The memory of the current CUDA device, in the primary context that torch uses.

    Args:
        device: Ordinal of the device among those visible to this process.

    Raises:
        OSError: There is no libcuda.
        DriverError: The device cannot be used.
    """

    fixed: ClassVar = True  # see `isolation.seal.inventory`

    def __init__(self, device: int = 0) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        for name in _FUNCTIONS:  # looked up now, before a kernel can give the handle functions of its own
            getattr(self._cuda, name)
        self.driver_call("cuInit", ctypes.c_uint(0))
        self._device = ctypes.c_int()
        self.driver_call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(device))
        self._context = ctypes.c_void_p()
        self.driver_call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self.driver_call("cuCtxSetCurrent", self._context)

    def driver_status(self, name: str, *arguments: object) -> int:
        """Call a driver function and return its status."""
        function = getattr(self._cuda, name)
        function.restype = ctypes.c_int
        return int(function(*arguments))

    def driver_call(self, name: str, *arguments: object) -> None:
        """Call a driver function. Raises DriverError with its name and the driver's error."""
        status = self.driver_status(name, *arguments)
        if status:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(ctypes.c_int(status), ctypes.byref(text))
            reason = (text.value or b"unknown error").decode()
            raise DriverError(f"{name} failed with CUDA error {status} ({reason})")

    def synchronize(self) -> None:
        """Wait for all streams of the device context, including those that the kernel created."""
        self.driver_call("cuCtxSetCurrent", self._context)
        self.driver_call("cuCtxSynchronize")

    def read(self, address: int, size: int) -> bytes:
        """Copy ``size`` bytes from a device address."""
        buffer = ctypes.create_string_buffer(size)
        if size:
            self.driver_call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return buffer.raw

    def write(self, address: int, data: bytes | Bytes) -> None:
        """Copy bytes to a device address."""
        if size := len(data):
            self.driver_call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), _source(data), ctypes.c_size_t(size))


class HostMemory:
    """The memory of torch's stand-in CUDA device, which is that of this process."""

    def synchronize(self) -> None:
        """Return at once, because all work has ended when a call returns."""

    def read(self, address: int, size: int) -> bytes:
        """Copy from an address of this process."""
        return ctypes.string_at(address, size) if size else b""

    def write(self, address: int, data: bytes | Bytes) -> None:
        """Copy to an address of this process."""
        ctypes.memmove(address, _source(data), len(data))


def _source(data: bytes | Bytes) -> bytes | ctypes.c_void_p:
    return data if isinstance(data, bytes) else ctypes.c_void_p(data.ctypes.data)
