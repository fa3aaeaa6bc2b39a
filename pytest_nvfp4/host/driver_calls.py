"""Stand-ins for ``cuda.bindings.driver`` and ``cuda.bindings.runtime`` where no driver is installed.

Device memory is host memory, every stream runs its work at once and in issue order (``stream_calls``), and events have
no times: an elapsed time is NaN. A function without a stand-in raises ``HostSideError`` with its name.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from pytest_nvfp4.driver.device_model import DeviceModel
from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.host.code_calls import CodeCalls
from pytest_nvfp4.host.device_side import DeviceSide
from pytest_nvfp4.host.kernel_libraries import KernelLibraries
from pytest_nvfp4.host.loaded_modules import LoadedModules
from pytest_nvfp4.host.nvrtc_calls import NvrtcCalls
from pytest_nvfp4.host.stream_calls import StreamCalls, then

_CONTEXT_VERSION: Final = 3020  # what drivers answer for every context since CUDA 3.2
_FIRST_HANDLE: Final = 0x5A0000000001  # not a mapped address: a handle used as a pointer faults at once

# Implemented in the toolkit's own libraries, so that the real functions work without a driver.
_REAL: Final = frozenset({"cudaGetErrorName", "cudaGetErrorString", "cudaRuntimeGetVersion", "getLocalRuntimeVersion"})


class DriverCalls:
    """Installs and removes the stand-ins. ``side`` is shared with the compiled host code."""

    def __init__(self, device: DeviceModel, side: DeviceSide) -> None:
        self._device = device
        self._streams = side.streams
        self._driver = importlib.import_module("cuda.bindings.driver")
        self._runtime = importlib.import_module("cuda.bindings.runtime")
        self._handles = itertools.count(_FIRST_HANDLE)
        self._work = StreamCalls(side.work, side.streams, self._handles)
        self.modules = LoadedModules(device, side, self._handles)
        self._nvrtc = NvrtcCalls(self.modules)
        self._kernel_libraries = KernelLibraries(self.modules, device, side)
        self._saved: list[tuple[ModuleType, str, Any]] = []
        self._primary = next(self._handles)
        self._context = self._primary  # as after torch's initialisation, which host code assumes

    def install(self) -> None:
        """Replace every function of both modules: by its stand-in, or by one that raises ``HostSideError``."""
        tables = ((self._driver, self._driver_table(), "cu"), (self._runtime, self._runtime_table(), "cuda"))
        for module, table, prefix in tables:
            for name in dir(module):
                value = getattr(module, name)
                is_call = name.startswith(prefix) and callable(value) and not inspect.isclass(value)
                if not is_call or name in _REAL:
                    continue
                self._saved.append((module, name, value))
                setattr(module, name, table.get(name) or _unmodelled(module.__name__, name))
        self._nvrtc.install()
        self._kernel_libraries.install()

    def remove(self) -> None:
        """Restore the real functions."""
        self._kernel_libraries.remove()
        self._nvrtc.remove()
        while self._saved:
            module, name, value = self._saved.pop()
            setattr(module, name, value)

    # ---- results -----------------------------------------------------------------------------------------------

    def _cu(self, *values: Any) -> tuple[Any, ...]:
        return (self._driver.CUresult.CUDA_SUCCESS, *values)

    def _rt(self, *values: Any) -> tuple[Any, ...]:
        return (self._runtime.cudaError_t.cudaSuccess, *values)

    def _cu_name(self, error: Any) -> tuple[Any, ...]:
        return self._cu(self._driver.CUresult(int(error)).name.encode())

    # ---- tables ------------------------------------------------------------------------------------------------

    def _driver_table(self) -> dict[str, Callable[..., Any]]:
        d = self._driver
        table: dict[str, Callable[..., Any]] = {
            "cuInit": lambda _flags: self._cu(),
            "cuDriverGetVersion": lambda: self._cu(self._device.driver_version),
            "cuGetErrorName": self._cu_name,
            "cuGetErrorString": self._cu_name,
            "cuDeviceGet": lambda ordinal: self._cu(d.CUdevice(self._check_ordinal(ordinal))),
            "cuDeviceGetCount": lambda: self._cu(1),
            "cuDeviceGetName": lambda length, _device: self._cu(self._device.name.encode()[: length - 1]),
            "cuDeviceTotalMem": lambda _device: self._cu(self._device.memory_bytes),
            "cuDeviceGetAttribute": self._device_attribute,
            "cuDevicePrimaryCtxRetain": lambda _device: self._make_current(self._primary),
            "cuDevicePrimaryCtxRelease": lambda _device: self._cu(),
            "cuCtxCreate": lambda *_: self._make_current(next(self._handles)),
            "cuCtxDestroy": lambda _context: self._cu(),
            "cuCtxGetCurrent": lambda: self._cu(d.CUcontext(self._context)),
            "cuCtxSetCurrent": self._set_current,
            "cuCtxPushCurrent": self._set_current,
            "cuCtxPopCurrent": lambda: self._cu(d.CUcontext(self._context)),
            "cuCtxGetApiVersion": self._context_version,
            "cuCtxGetDevice": lambda *_: self._cu(d.CUdevice(0)),
            "cuCtxSynchronize": then(self._cu, self._streams.synchronize_device),
            **CodeCalls(d, self.modules, self._cu).table(),
            "cuOccupancyAvailableDynamicSMemPerBlock": lambda _function, blocks, _threads: self._cu(
                min(self._device.smem_per_sm // blocks, self._device.smem_per_sm) - self._device.smem_reserved_per_block
            ),
            "cuOccupancyMaxActiveBlocksPerMultiprocessor": lambda _function, threads, smem: self._cu(
                self._blocks_per_sm(threads, smem)
            ),
            "cuOccupancyMaxActiveClusters": self._max_active_clusters,
            "cuMemAlloc": lambda size: self._cu(d.CUdeviceptr(self._work.allocate(size))),
            "cuMemAllocAsync": lambda size, stream: self._cu(d.CUdeviceptr(self._work.allocate(size, stream))),
            "cuMemFree": then(self._cu, self._work.free),
            "cuMemFreeAsync": then(self._cu, self._work.free),
            "cuProfilerStart": self._cu,
            "cuProfilerStop": self._cu,
            "cuMemGetInfo": lambda: self._cu(self._device.memory_bytes, self._device.memory_bytes),
        }
        table |= self._work.driver(d, self._cu)
        return table

    def _runtime_table(self) -> dict[str, Callable[..., Any]]:
        r = self._runtime
        return {
            "cudaGetDeviceCount": lambda: self._rt(1),
            "cudaGetDevice": lambda: self._rt(0),
            "cudaSetDevice": self._set_device,
            "cudaDriverGetVersion": lambda: self._rt(self._device.driver_version),
            "cudaDeviceGetAttribute": lambda attribute, device: self._rt(self._device_attribute(attribute, device)[1]),
            "cudaDeviceSynchronize": then(self._rt, self._streams.synchronize_device),
            "cudaGetLastError": self._rt,
            "cudaPeekAtLastError": self._rt,
            "cudaProfilerStart": self._rt,
            "cudaProfilerStop": self._rt,
            "cudaLibraryUnload": lambda _library: self._rt(),
            "cudaMalloc": lambda size: self._rt(self._work.allocate(size)),
            "cudaMallocAsync": lambda size, stream: self._rt(self._work.allocate(size, stream)),
            "cudaFree": then(self._rt, self._work.free),
            "cudaFreeAsync": then(self._rt, self._work.free),
            **self._work.runtime(r, self._rt),
        }

    # ---- devices, contexts -------------------------------------------------------------------------------------

    def _check_ordinal(self, ordinal: Any) -> int:
        if int(ordinal):
            raise HostSideError(f"device {int(ordinal)} was requested, only device 0 is simulated")
        return 0

    def _set_device(self, ordinal: Any) -> tuple[Any, ...]:
        self._check_ordinal(ordinal)
        return self._rt()

    def _device_attribute(self, attribute: Any, _device: Any) -> tuple[Any, ...]:
        name = self._driver.CUdevice_attribute(int(attribute)).name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        values = self._device.attributes()
        if name not in values:
            raise HostSideError(f"the device model {self._device.name} has no value for CU_DEVICE_ATTRIBUTE_{name}")
        return self._cu(values[name])

    def _make_current(self, handle: int) -> tuple[Any, ...]:
        self._context = handle
        return self._cu(self._driver.CUcontext(handle))

    def _set_current(self, context: Any) -> tuple[Any, ...]:
        self._context = int(context)
        return self._cu()

    def _context_version(self, context: Any) -> tuple[Any, ...]:
        if int(context) or self._context:
            return self._cu(_CONTEXT_VERSION)
        return self._driver.CUresult.CUDA_ERROR_INVALID_CONTEXT, None

    def _blocks_per_sm(self, threads: int, smem: int) -> int:
        device = self._device
        by_smem = device.smem_per_sm // (smem + device.smem_reserved_per_block)
        return min(device.blocks_per_sm, device.threads_per_sm // threads, by_smem)

    def _max_active_clusters(self, _function: Any, config: Any) -> tuple[Any, ...]:
        size = 1
        for attribute in config.attrs:
            if attribute.id == self._driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
                dims = attribute.value.clusterDim
                size = dims.x * dims.y * dims.z
        if size > self._device.max_cluster_ctas:
            return self._cu(0)
        return self._cu(self._device.clusters(size))


def _unmodelled(module: str, name: str) -> Callable[..., Any]:
    def call(*_args: Any, **_kwargs: Any) -> Iterator[Any]:
        raise HostSideError(
            f"{module}.{name} has no stand-in on a machine without a GPU: run this check on a real device"
        )

    call.__name__ = name
    return call
