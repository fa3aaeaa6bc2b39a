"""Stand-ins for the C functions that compiled host code calls: modules, kernels, attributes, launches.

Each function of the DSL's runtime library becomes a ctypes callback. A Python exception cannot unwind through C, so the
callback stashes it and returns a CUDA error, the host code stops, and the wrapper around the host code raises the
stashed exception (``redirect``).
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_nvfp4.driver import cubin
from pytest_nvfp4.driver.device_model import DeviceModel
from pytest_nvfp4.driver.launch_limits import check_launch, check_sizes, ptx_entries
from pytest_nvfp4.driver.launches import Dim3, HostSideError, Launch, LaunchAttribute, LaunchRejectedError, ModuleImage
from pytest_nvfp4.host.device_side import DeviceSide
from pytest_nvfp4.host.stream_calls import StreamCalls

_CUDA_SUCCESS: Final = 0
_CUDA_ERROR_UNKNOWN: Final = 999  # the result of a call that stashed an exception
_FUNC_ATTRIBUTE_STATIC_SMEM: Final = 1
_FUNC_ATTRIBUTE_MAX_DYNAMIC_SMEM: Final = 8
_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER: Final = 14
_DEFAULT_DYNAMIC_SMEM: Final = 49152
_ATTRIBUTE_BYTES: Final = 72
_ATTRIBUTE_VALUE_AT: Final = 8
_MAX_ATTRIBUTES: Final = 64
_FIRST_HANDLE: Final = 0x5B0000000001

# Every function that the DSL's runtime library exports in 4.4.0-4.8.1. Those without a stand-in below are overridden
# too, because the real ones would call a driver that is not installed.
_RUNTIME_CALLS: Final = (
    *("_cuDeviceGet", "_cuKernelGetAttribute", "_cuTensorMapEncodeTiled", "_cuLibraryGetGlobal", "_cuLibraryGetKernel"),
    *("_cuLibraryGetKernelCount", "_cuLibraryGetManaged", "_cuLibraryGetModule", "_cuLibraryGetUnifiedFunction"),
    *("_cuLibraryLoadData", "_cuLibraryLoadFromFile", "_cuLibraryUnload"),
    *("_cudaDeviceGetAttribute", "_cudaDeviceSynchronize", "_cudaEventCreate", "_cudaEventDestroy"),
    *("_cudaEventElapsedTime", "_cudaEventRecord", "_cudaFree", "_cudaFreeAsync", "_cudaFreeHost"),
    *("_cudaFuncSetAttribute", "_cudaGetDevice", "_cudaGetDeviceCount", "_cudaGetDeviceProperties"),
    *("_cudaGraphDestroy", "_cudaGraphExecDestroy", "_cudaGraphInstantiate", "_cudaGraphLaunch"),
    *("_cudaKernelSetAttributeForDevice", "_cudaLaunchKernel", "_cudaLaunchKernelEx", "_cudaLibraryGetGlobal"),
    *("_cudaLibraryGetKernel", "_cudaLibraryGetKernelCount", "_cudaLibraryGetManaged"),
    *("_cudaLibraryGetUnifiedFunction", "_cudaLibraryLoadData", "_cudaLibraryLoadFromFile", "_cudaLibraryUnload"),
    *("_cudaMalloc", "_cudaMallocAsync", "_cudaMallocHost", "_cudaMallocManaged", "_cudaMemcpy", "_cudaMemcpyAsync"),
    *("_cudaMemset", "_cudaMemsetAsync", "_cudaOccupancyMaxActiveBlocksPerMultiprocessor", "_cudaProfilerStart"),
    *("_cudaProfilerStop", "_cudaSetDevice", "_cudaStreamAddCallback", "_cudaStreamBeginCapture"),
    *("_cudaStreamCreate", "_cudaStreamDestroy", "_cudaStreamEndCapture", "_cudaStreamSynchronize"),
    *("_cudaStreamWaitEvent",),
)
_CALLBACK_ARGS: Final = 8  # at least as many as any of them has; the C caller cleans up, so more are harmless


class _LaunchConfig(ctypes.Structure):
    """``cudaLaunchConfig_t`` (CUDA runtime API, driver_types.h)."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_smem", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint32),
    )


@dataclass(slots=True)
class _Kernel:
    """A kernel of a loaded module, with the attributes set on it."""

    entry: cubin.CubinKernel
    image: ModuleImage
    attributes: dict[int, int] = field(default_factory=dict)


class HostCalls:
    """State behind the callbacks: loaded modules (handles of their kernels by name), and the stashed exception."""

    def __init__(self, device: DeviceModel, side: DeviceSide) -> None:
        self._on_launch = side.launches
        self._device = device
        self._streams = side.streams
        self._handles = itertools.count(_FIRST_HANDLE)
        self._work = StreamCalls(side.work, side.streams, self._handles)
        self._libraries: dict[int, dict[str, int]] = {}
        self._kernels: dict[int, _Kernel] = {}
        self._launched = 0
        self._stashed: BaseException | None = None
        self._closed = False
        self._prototype = ctypes.CFUNCTYPE(ctypes.c_int32, *([ctypes.c_void_p] * _CALLBACK_ARGS))
        self._shared = {name: self._callback(name, self._handler(name)) for name in _RUNTIME_CALLS}

    def callbacks(self, ptx: list[str]) -> dict[str, Any]:
        """Return a callback for each runtime function, by name, for one engine. They must live as long as the engine.

        ``ptx`` are the texts that the engine's compile wrote; a loaded module gets the one that has all its kernels.
        """
        load = self._callback("_cudaLibraryLoadData", functools.partial(self._load_data, ptx=ptx))
        return {**self._shared, "_cudaLibraryLoadData": load}

    def take_stashed(self) -> BaseException | None:
        """Return the stashed exception, if any, and clear it."""
        stashed, self._stashed = self._stashed, None
        return stashed

    def close(self) -> None:
        """Refuse every later call."""
        self._closed = True
        self._stashed = None

    def _callback(self, name: str, handler: Callable[..., None]) -> Any:
        def call(*args: int | None) -> int:
            if self._stashed is not None:
                return _CUDA_ERROR_UNKNOWN
            try:
                if self._closed:
                    raise HostSideError(f"{name} was called after the host-side stand-ins were removed")
                handler(*(value or 0 for value in args))
                return _CUDA_SUCCESS
            except BaseException as error:  # must not unwind through C; HostSide._reraising raises it again
                self._stashed = error
                return _CUDA_ERROR_UNKNOWN

        return self._prototype(call)

    def _handler(self, name: str) -> Callable[..., None]:
        work = self._work
        table: dict[str, Callable[..., None]] = {
            "_cudaLibraryLoadData": self._load_data,
            "_cudaLibraryGetKernel": self._get_kernel,
            "_cudaLibraryUnload": self._unload,
            "_cudaDeviceGetAttribute": self._device_attribute,
            "_cudaGetDevice": lambda out, *_: _store_int(out, 0),
            "_cudaGetDeviceCount": lambda out, *_: _store_int(out, 1),
            "_cuKernelGetAttribute": self._kernel_attribute,
            "_cudaKernelSetAttributeForDevice": self._set_kernel_attribute,
            "_cudaFuncSetAttribute": self._set_kernel_attribute,
            "_cudaLaunchKernelEx": self._launch,
            "_cudaDeviceSynchronize": lambda *_: self._streams.synchronize_device(),
            "_cudaStreamSynchronize": lambda stream, *_: self._streams.synchronize(stream),
            "_cudaMalloc": lambda out, size, *_: _store_pointer(out, work.allocate(size)),
            "_cudaMallocAsync": lambda out, size, stream, *_: _store_pointer(out, work.allocate(size, stream)),
            "_cudaFree": lambda pointer, *_: work.free(pointer),
            "_cudaFreeAsync": lambda pointer, stream, *_: work.free(pointer, stream),
            "_cudaMemcpy": lambda to, source, size, *_: work.copy(to, source, size, what="cudaMemcpy"),
            "_cudaMemcpyAsync": lambda to, source, size, _kind, stream, *_: work.copy(
                to, source, size, what="cudaMemcpyAsync", stream=stream, waits=False
            ),
            "_cudaMemset": lambda to, value, size, *_: work.fill(to, bytes([value & 0xFF]), size, what="cudaMemset"),
            "_cudaMemsetAsync": lambda to, value, size, stream, *_: work.fill(
                to, bytes([value & 0xFF]), size, what="cudaMemsetAsync", stream=stream
            ),
        }
        return table.get(name) or functools.partial(_refuse_call, name)

    def _load_data(self, out: int, code: int, *_: int, ptx: list[str] | None = None) -> None:
        image = cubin.image_at(code)
        entries = cubin.parse(image)
        text = next((t for t in ptx or [] if set(entries) <= set(ptx_entries(t))), None)
        sizes = {name: tuple(size for _, size in entry.params) for name, entry in entries.items()}
        if text is not None:
            check_sizes(sizes, text)
        registers = {name: entry.registers for name, entry in entries.items() if entry.registers is not None}
        module = ModuleImage(cubin=image, ptx=text, param_sizes=sizes, registers=registers)
        kernels = {}
        for name, entry in entries.items():
            kernels[name] = next(self._handles)
            self._kernels[kernels[name]] = _Kernel(entry, module)
        handle = next(self._handles)
        self._libraries[handle] = kernels
        _store_pointer(out, handle)

    def _unload(self, library: int, *_: int) -> None:
        for handle in self._library(library).values():
            del self._kernels[handle]
        del self._libraries[library]

    def _library(self, handle: int) -> dict[str, int]:
        kernels = self._libraries.get(handle)
        if kernels is None:
            raise HostSideError(f"the host code used library handle {handle:#x}, which is not loaded")
        return kernels

    def _kernel(self, handle: int) -> _Kernel:
        kernel = self._kernels.get(handle)
        if kernel is None:
            raise HostSideError(f"the host code used kernel handle {handle:#x}, which belongs to no loaded module")
        return kernel

    def _get_kernel(self, out: int, library: int, name: int, *_: int) -> None:
        symbol = ctypes.string_at(name).decode()
        kernels = self._library(library)
        if symbol not in kernels:
            raise HostSideError(f"the host code requested kernel {symbol}, the module has {sorted(kernels)}")
        _store_pointer(out, kernels[symbol])

    def _device_attribute(self, out: int, attribute: int, *_: int) -> None:
        names = importlib.import_module("cuda.bindings.driver").CUdevice_attribute
        name = names(attribute & 0xFFFFFFFF).name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        values = self._device.attributes()
        if name not in values:
            raise HostSideError(f"the device model {self._device.name} has no value for device attribute {name}")
        _store_int(out, values[name])

    def _kernel_attribute(self, out: int, attribute: int, kernel: int, *_: int) -> None:
        which = attribute & 0xFFFFFFFF
        if which != _FUNC_ATTRIBUTE_STATIC_SMEM:
            raise HostSideError(f"the host code reads function attribute {which}, only 1 (static smem) is modelled")
        _store_int(out, self._kernel(kernel).entry.static_smem)

    def _set_kernel_attribute(self, kernel: int, attribute: int, value: int, *_: int) -> None:
        number = ctypes.c_int32(value & 0xFFFFFFFF).value
        which = attribute & 0xFFFFFFFF
        target = self._kernel(kernel)
        if which == _FUNC_ATTRIBUTE_MAX_DYNAMIC_SMEM:
            limit = self._device.smem_per_block_optin - target.entry.static_smem
            if not 0 <= number <= limit:
                raise LaunchRejectedError(
                    f"cudaErrorInvalidValue: {target.entry.name} requests {number} bytes of dynamic shared memory, "
                    f"{self._device.name} has {limit} besides the kernel's {target.entry.static_smem} static bytes"
                )
        target.attributes[which] = number

    def _launch(self, config_at: int, handle: int, args_at: int, *_: int) -> None:
        kernel = self._kernel(handle)
        config = _LaunchConfig.from_address(config_at)
        if config.attribute_count > _MAX_ATTRIBUTES:
            raise HostSideError(f"a launch has {config.attribute_count} attributes: its configuration is damaged")
        attributes = {}
        for i in range(config.attribute_count):
            raw = ctypes.string_at(config.attributes + i * _ATTRIBUTE_BYTES, _ATTRIBUTE_BYTES)
            attributes[int.from_bytes(raw[:4], "little")] = raw[_ATTRIBUTE_VALUE_AT:]
        cluster = attributes.get(LaunchAttribute.CLUSTER_DIMENSION)
        sizes = [size for _, size in kernel.entry.params]
        pointers = (ctypes.c_void_p * len(sizes)).from_address(args_at) if sizes else ()
        params = []
        for ordinal, (pointer, size) in enumerate(zip(pointers, sizes, strict=True)):
            if not pointer:
                raise LaunchRejectedError(f"cudaErrorInvalidValue: parameter {ordinal} of {kernel.entry.name} is null")
            params.append(ctypes.string_at(pointer, size))
        launch = Launch(
            kernel=kernel.entry.name,
            grid=_dim3(config.grid),
            block=_dim3(config.block),
            cluster=_dim3(memoryview(cluster[:12]).cast("I")) if cluster else (1, 1, 1),
            dynamic_smem=config.dynamic_smem,
            stream=config.stream or 0,
            params=tuple(params),
            attributes=attributes,
            module=kernel.image,
            ordinal=self._launched,
        )
        check_launch(
            launch,
            kernel.entry,
            self._device,
            reserved=kernel.attributes.get(_FUNC_ATTRIBUTE_MAX_DYNAMIC_SMEM, _DEFAULT_DYNAMIC_SMEM),
            portable=not kernel.attributes.get(_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER),
        )
        self._launched += 1
        self._on_launch(launch)


def _dim3(values: Any) -> Dim3:
    return int(values[0]), int(values[1]), int(values[2])


def _store_int(out: int, value: int) -> None:
    ctypes.c_int32.from_address(out).value = value


def _store_pointer(out: int, value: int) -> None:
    ctypes.c_void_p.from_address(out).value = value


def _refuse_call(name: str, *_: int) -> None:
    raise HostSideError(f"the compiled host code calls {name.removeprefix('_')}, which has no stand-in without a GPU")
