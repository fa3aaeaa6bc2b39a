"""Read, write and wait for device memory below torch, through the CUDA driver.

A kernel's Python shares this process, and may have replaced anything in torch. What is checked is therefore read by
address through a handle of libcuda of our own. Source: CUDA Driver API, "Memory Management", "Context Management".
"""

from __future__ import annotations

import ctypes
from typing import Protocol


class DriverError(RuntimeError):
    """A driver call failed; the message has its name and the driver's error."""


class DeviceMemory(Protocol):
    """What the worker needs of a device's memory. Addresses and sizes are in bytes."""

    def synchronize(self) -> None:
        """Wait until everything that was launched has ended, on every stream."""

    def read(self, address: int, size: int) -> bytes:
        """Copy from the device."""

    def write(self, address: int, data: bytes) -> None:
        """Copy to the device."""


class CudaMemory:
    """The memory of the current CUDA device, in the primary context that torch uses.

    Args:
        device: Ordinal of the device among those this process sees.

    Raises:
        OSError: there is no libcuda.
        DriverError: the driver refuses.
    """

    def __init__(self, device: int = 0) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self.driver_call("cuInit", ctypes.c_uint(0))
        self._device = ctypes.c_int()
        self.driver_call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(device))
        self._context = ctypes.c_void_p()
        self.driver_call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self.driver_call("cuCtxSetCurrent", self._context)

    def driver_status(self, name: str, *arguments: object) -> int:
        """The status a driver function returns."""
        function = getattr(self._cuda, name)
        function.restype = ctypes.c_int
        return int(function(*arguments))

    def driver_call(self, name: str, *arguments: object) -> None:
        """Call a driver function. Raises DriverError with its name and the driver's words."""
        status = self.driver_status(name, *arguments)
        if status:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(ctypes.c_int(status), ctypes.byref(text))
            said = (text.value or b"unknown error").decode()
            raise DriverError(f"{name} failed with CUDA error {status} ({said})")

    def synchronize(self) -> None:
        """Wait for the whole device context: every stream, whoever made it."""
        self.driver_call("cuCtxSetCurrent", self._context)
        self.driver_call("cuCtxSynchronize")

    def read(self, address: int, size: int) -> bytes:
        """Copy ``size`` bytes from a device address."""
        buffer = ctypes.create_string_buffer(size)
        if size:
            self.driver_call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return buffer.raw

    def write(self, address: int, data: bytes) -> None:
        """Copy bytes to a device address."""
        if data:
            self.driver_call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))


class HostMemory:
    """The memory of a device that is this process: under the stand-in for torch's CUDA device."""

    def synchronize(self) -> None:
        """Everything has ended when a call returns."""

    def read(self, address: int, size: int) -> bytes:
        """Copy from an address of this process."""
        return ctypes.string_at(address, size) if size else b""

    def write(self, address: int, data: bytes) -> None:
        """Copy to an address of this process."""
        ctypes.memmove(address, data, len(data))
