"""Stand-ins for the C functions that compiled host code calls: modules, kernels, attributes, launches.

Each function of the DSL's runtime library becomes a ctypes callback. A Python exception cannot unwind through C, so the
callback stashes it and returns a CUDA error, the host code stops, and the wrapper around the host code raises the
stashed exception (``redirect``). Where the host code asserts success instead (``cuda_dialect_assert_success``, which
would abort), it goes on to its end, and every later call fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import itertools
from collections.abc import Callable
from typing import Any, Final

from pytest_nvfp4.driver import cubin, ptx_module
from pytest_nvfp4.driver.device_model import DeviceModel
from pytest_nvfp4.driver.launch_limits import check_sizes
from pytest_nvfp4.driver.launches import ATTRIBUTE_BYTES, Dim3, HostSideError, LaunchRejectedError
from pytest_nvfp4.driver.tensormap import MAX_RANK
from pytest_nvfp4.driver.tensormap_encoding import encode_tiled
from pytest_nvfp4.host.device_side import DeviceSide
from pytest_nvfp4.host.kernel_params import parameters
from pytest_nvfp4.host.loaded_modules import LoadedModules
from pytest_nvfp4.host.stashed import Stashed
from pytest_nvfp4.host.stream_calls import StreamCalls

_CUDA_SUCCESS: Final = 0
_CUDA_ERROR_UNKNOWN: Final = 999  # the result of a call that stashed an exception
_FUNC_ATTRIBUTE_STATIC_SMEM: Final = 1
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
_CALLBACK_ARGS: Final = 12  # as many as the longest of them has; the C caller cleans up, so more are harmless
_ASSERT: Final = "cuda_dialect_assert_success"


class LaunchConfig(ctypes.Structure):
    """``cudaLaunchConfig_t`` (CUDA runtime API, driver_types.h)."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_smem", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint32),
    )


class HostCalls:
    """State behind the callbacks: the loaded modules of the process, and the stashed exception."""

    def __init__(self, device: DeviceModel, side: DeviceSide, modules: LoadedModules, stashed: Stashed) -> None:
        self._modules = modules
        self._device = device
        self._streams = side.streams
        self._handles = itertools.count(_FIRST_HANDLE)
        self._work = StreamCalls(side.work, side.streams, self._handles)
        self._stashed = stashed
        self._closed = False
        self._prototype = ctypes.CFUNCTYPE(ctypes.c_int32, *([ctypes.c_void_p] * _CALLBACK_ARGS))
        self._shared = {name: self._callback(name, self._handler(name)) for name in _RUNTIME_CALLS}
        self._shared[_ASSERT] = self._callback(_ASSERT, _assert_success)

    def callbacks(self, ptx: list[str]) -> dict[str, Any]:
        """Return a callback for each runtime function, by name, for one engine. They must live as long as the engine.

        ``ptx`` are the texts that the engine's compile wrote; a loaded module gets the one that has all its kernels.
        """
        load = self._callback("_cudaLibraryLoadData", functools.partial(self._load_data, ptx=ptx))
        return {**self._shared, "_cudaLibraryLoadData": load}

    def close(self) -> None:
        """Refuse every later call."""
        self._closed = True
        self._stashed.take()

    def _callback(self, name: str, handler: Callable[..., None]) -> Any:
        def call(*args: int | None) -> int:
            if self._stashed.pending:
                return _CUDA_ERROR_UNKNOWN
            try:
                if self._closed:
                    raise HostSideError(f"{name} was called after the host-side stand-ins were removed")
                handler(*(value or 0 for value in args))
                return _CUDA_SUCCESS
            except BaseException as error:  # must not unwind through C; HostSide._reraising raises it again
                self._stashed.keep(error)
                return _CUDA_ERROR_UNKNOWN

        return self._prototype(call)

    def _handler(self, name: str) -> Callable[..., None]:
        work = self._work
        table: dict[str, Callable[..., None]] = {
            "_cudaLibraryLoadData": self._load_data,
            "_cudaLibraryGetKernel": self._get_kernel,
            "_cuLibraryGetGlobal": self._get_global,
            "_cudaLibraryGetGlobal": self._get_global,
            "_cudaLibraryUnload": lambda library, *_: self._modules.unload(library),
            "_cuTensorMapEncodeTiled": encode_tensor_map,
            "_cudaDeviceGetAttribute": self._device_attribute,
            "_cudaGetDevice": lambda out, *_: store_int(out, 0),
            "_cudaGetDeviceCount": lambda out, *_: store_int(out, 1),
            "_cuKernelGetAttribute": self._kernel_attribute,
            "_cudaKernelSetAttributeForDevice": self._set_kernel_attribute,
            "_cudaFuncSetAttribute": self._set_kernel_attribute,
            "_cudaLaunchKernelEx": self._launch,
            "_cudaDeviceSynchronize": lambda *_: self._streams.synchronize_device(),
            "_cudaStreamSynchronize": lambda stream, *_: self._streams.synchronize(stream),
            **{f"_{call}": handler for call, handler in memory_calls(work).items()},
        }
        return table.get(name) or functools.partial(_refuse_call, name)

    def _load_data(self, out: int, code: int, *_: int, ptx: list[str] | None = None) -> None:
        image = cubin.image_at(code)
        entries = cubin.parse(image)
        text = None
        for each in ptx or []:
            with contextlib.suppress(ptx_module.PtxModuleError):  # a compile may write a module without kernels
                written = self._modules.read(each)
                if set(entries) <= set(written.kernels):
                    check_sizes(entries, written)
                    text = each
                    break
        store_pointer(out, self._modules.add(entries, image, text))

    def _get_kernel(self, out: int, library: int, name: int, *_: int) -> None:
        store_pointer(out, self._modules.find(library, ctypes.string_at(name).decode()))

    def _get_global(self, out: int, size: int, library: int, name: int, *_: int) -> None:
        found = self._modules.variable(library, ctypes.string_at(name).decode())
        for to, value in ((out, found.address), (size, found.size)):
            if to:  # either may be null
                store_pointer(to, value)

    def _device_attribute(self, out: int, attribute: int, *_: int) -> None:
        names = importlib.import_module("cuda.bindings.driver").CUdevice_attribute
        name = names(attribute & 0xFFFFFFFF).name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        values = self._device.attributes()
        if name not in values:
            raise HostSideError(f"the device model {self._device.name} has no value for device attribute {name}")
        store_int(out, values[name])

    def _kernel_attribute(self, out: int, attribute: int, kernel: int, *_: int) -> None:
        which = attribute & 0xFFFFFFFF
        if which != _FUNC_ATTRIBUTE_STATIC_SMEM:
            raise HostSideError(f"the host code reads function attribute {which}, only 1 (static smem) is modelled")
        store_int(out, self._modules.attribute(kernel, which))

    def _set_kernel_attribute(self, kernel: int, attribute: int, value: int, *_: int) -> None:
        self._modules.set_attribute(kernel, attribute & 0xFFFFFFFF, ctypes.c_int32(value & 0xFFFFFFFF).value)

    def _launch(self, config_at: int, handle: int, args_at: int, *_: int) -> None:
        config = LaunchConfig.from_address(config_at)
        entry = self._modules.kernel(handle).entry
        self._modules.launch(
            handle,
            grid=_dim3(config.grid),
            block=_dim3(config.block),
            dynamic_smem=config.dynamic_smem,
            stream=config.stream or 0,
            params=parameters(args_at, [size for _, size in entry.params], kernel=entry.name),
            attributes=launch_attributes(config),
            without_ptx=True,
        )


def launch_attributes(config: LaunchConfig) -> dict[int, bytes]:
    """Return the values of the attributes of a launch, by number. Raises HostSideError for a damaged configuration.

    A value is a union of 64 bytes, of which host code writes one member: what it leaves in the others is zeroed here,
    so that equal launches are equal.
    """
    if config.attribute_count > _MAX_ATTRIBUTES:
        raise HostSideError(f"a launch has {config.attribute_count} attributes: its configuration is damaged")
    attributes = {}
    for i in range(config.attribute_count):
        raw = ctypes.string_at(config.attributes + i * _ATTRIBUTE_BYTES, _ATTRIBUTE_BYTES)
        number, value = int.from_bytes(raw[:4], "little"), raw[_ATTRIBUTE_VALUE_AT:]
        used = ATTRIBUTE_BYTES.get(number, len(value))
        attributes[number] = value[:used].ljust(len(value), b"\0")
    return attributes


def _dim3(values: Any) -> Dim3:
    return int(values[0]), int(values[1]), int(values[2])


def store_int(out: int, value: int) -> None:
    """Write an ``int`` to an address."""
    ctypes.c_int32.from_address(out).value = value


def store_pointer(out: int, value: int) -> None:
    """Write a pointer or a ``size_t`` to an address."""
    ctypes.c_void_p.from_address(out).value = value


def memory_calls(work: StreamCalls) -> dict[str, Callable[..., None]]:
    """Return the stand-ins of the runtime's C functions for memory, by name."""
    return {
        "cudaMalloc": lambda out, size, *_: store_pointer(out, work.allocate(size)),
        "cudaMallocAsync": lambda out, size, stream, *_: store_pointer(out, work.allocate(size, stream)),
        "cudaFree": lambda pointer, *_: work.free(pointer) if pointer else None,
        "cudaFreeAsync": lambda pointer, stream, *_: work.free(pointer, stream),
        "cudaMemcpy": lambda to, source, size, *_: work.copy(to, source, size, what="cudaMemcpy"),
        "cudaMemcpyAsync": lambda to, source, size, _kind, stream, *_: work.copy(
            to, source, size, what="cudaMemcpyAsync", stream=stream, waits=False
        ),
        "cudaMemset": lambda to, value, size, *_: work.fill(to, bytes([value & 0xFF]), size, what="cudaMemset"),
        "cudaMemsetAsync": lambda to, value, size, stream, *_: work.fill(
            to, bytes([value & 0xFF]), size, what="cudaMemsetAsync", stream=stream
        ),
    }


def encode_tensor_map(*arguments: int) -> None:
    """``cuTensorMapEncodeTiled``; an argument of 32 bits may have anything in the upper half of its register."""
    out, data_type, rank, address, dims, strides, box, element_strides, *modes = arguments
    count = rank & 0xFFFFFFFF
    if not 1 <= count <= MAX_RANK:
        raise LaunchRejectedError(f"cudaErrorInvalidValue: cuTensorMapEncodeTiled: rank {count} is not 1 to {MAX_RANK}")
    if not (out and dims and box and element_strides and (strides or count == 1)):
        raise LaunchRejectedError("cudaErrorInvalidValue: cuTensorMapEncodeTiled: a pointer is null")
    interleave, swizzle, l2_promotion, oob_fill = (mode & 0xFFFFFFFF for mode in modes)
    data = encode_tiled(
        element_type=data_type & 0xFFFFFFFF,
        address=address,
        dims=list((ctypes.c_uint64 * count).from_address(dims)),
        strides=list((ctypes.c_uint64 * (count - 1)).from_address(strides)) if count > 1 else (),
        box=list((ctypes.c_uint32 * count).from_address(box)),
        element_strides=list((ctypes.c_uint32 * count).from_address(element_strides)),
        interleave=interleave,
        swizzle=swizzle,
        l2_promotion=l2_promotion,
        oob_fill=oob_fill,
    )
    ctypes.memmove(out, data, len(data))


def _assert_success(error: int, *_: int) -> None:
    if error & 0xFFFFFFFF:
        raise HostSideError(f"a CUDA call of the compiled host code returned error {error & 0xFFFFFFFF}")


def _refuse_call(name: str, *_: int) -> None:
    raise HostSideError(f"the compiled host code calls {name.removeprefix('_')}, which has no stand-in without a GPU")
