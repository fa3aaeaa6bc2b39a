"""What the CUDA runtime's functions do that an extension calls: its modules, launches, memory, streams and events.

Modules are read from fat binaries that nvcc's host code registers, and loaded when one of their kernels is first used.
A Python exception cannot unwind through C: it is kept (``stashed``), the call and all later ones return an error, and
the wrapper around the extension's function raises it (``side``).
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import itertools
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_nvfp4.driver import fatbin
from pytest_nvfp4.driver.device_model import DeviceModel
from pytest_nvfp4.driver.launches import HostSideError, LaunchAttribute, LaunchRejectedError
from pytest_nvfp4.driver.streams import LEGACY, Extent
from pytest_nvfp4.host.compiled_calls import (
    LaunchConfig,
    encode_tensor_map,
    launch_attributes,
    memory_calls,
    store_int,
    store_pointer,
)
from pytest_nvfp4.host.device_side import DeviceSide
from pytest_nvfp4.host.extension.symbols import INTERNAL, TABLE
from pytest_nvfp4.host.loaded_modules import LoadedKernel, LoadedModules
from pytest_nvfp4.host.stashed import Stashed
from pytest_nvfp4.host.stream_calls import StreamCalls

_ARGUMENTS: Final = 12
_UNKNOWN: Final = 999
_FIRST_HANDLE: Final = 0x5C0000000001
_NON_BLOCKING: Final = 1
_POINTERS: Final = frozenset(
    {"__cudaRegisterFatBinary", "cudaGetErrorString", "cudaGetErrorName", INTERNAL["NVFP4_CURRENT"]}
)
"""Entries whose result is no error code."""


@dataclass(slots=True)
class _FatBinary:
    wrapper: int
    moved: tuple[str, str] | None
    module: int | None = None


class ExtensionCalls:
    """The functions behind the table of each extension (``standins.c``).

    Attributes:
        moved: What the names of files in the line table of the extension that is being loaded begin with, and what
            they shall begin with; None to leave them.
    """

    def __init__(self, device: DeviceModel, side: DeviceSide, modules: LoadedModules, stashed: Stashed) -> None:
        self.moved: tuple[str, str] | None = None
        self._device = device
        self._side = side
        self._modules = modules
        self._stashed = stashed
        self._handles = itertools.count(_FIRST_HANDLE)
        self._work = StreamCalls(side.work, side.streams, self._handles)
        self._binaries: dict[int, _FatBinary] = {}
        self._functions: dict[int, tuple[int, str]] = {}
        self._symbols: dict[int, tuple[int, str]] = {}
        self._texts: dict[int, Any] = {}
        self._written = 0
        prototype = ctypes.CFUNCTYPE(ctypes.c_int64, *([ctypes.c_void_p] * _ARGUMENTS))
        table = self._table()
        self._callbacks = [prototype(self._entry(name, table.get(name))) for name in TABLE]
        addresses = [ctypes.cast(callback, ctypes.c_void_p).value for callback in self._callbacks]
        self._addresses = (ctypes.c_void_p * len(addresses))(*addresses)
        # Destructors of an extension run after Python's end.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._addresses))
        atexit.register(ctypes.memset, ctypes.addressof(self._addresses), 0, ctypes.sizeof(self._addresses))

    @property
    def variables(self) -> dict[str, str]:
        """The environment in which an extension finds the table, while it is loaded."""
        return {"NVFP4_EXTENSION_CALLS": f"{os.getpid()}:{ctypes.addressof(self._addresses):x}"}

    def _entry(self, name: str, handler: Callable[..., int | None] | None) -> Callable[..., int]:
        def call(*arguments: int | None) -> int:
            if self._stashed.pending and name not in _POINTERS:
                return _UNKNOWN
            try:
                if handler is None:
                    raise HostSideError(f"the extension calls {name}, which has no stand-in without a GPU")
                return handler(*(value or 0 for value in arguments)) or 0
            except BaseException as error:  # must not unwind through C; the extension's caller raises it again
                self._stashed.keep(error)
                return 0 if name in _POINTERS else _UNKNOWN

        return call

    def _table(self) -> dict[str, Callable[..., int | None]]:
        work, streams = self._work, self._side.streams
        nothing: Callable[..., None] = lambda *_: None  # noqa: E731
        return {
            "__cudaRegisterFatBinary": self._register_binary,
            "__cudaRegisterFatBinaryEnd": nothing,
            "__cudaRegisterFunction": self._register_function,
            "__cudaRegisterVar": self._register_variable,
            "cudaLaunchKernelExC": self._launch,
            "cudaFuncSetAttribute": lambda function, attribute, value, *_: self._modules.set_attribute(
                self._kernel(function), attribute & 0xFFFFFFFF, ctypes.c_int32(value & 0xFFFFFFFF).value
            ),
            "cudaFuncGetAttributes": self._function_attributes,
            "cudaFuncSetCacheConfig": nothing,
            "cudaOccupancyMaxActiveBlocksPerMultiprocessor": self._active_blocks,
            "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": self._active_blocks,
            "cudaOccupancyMaxActiveClusters": self._active_clusters,
            "cudaGetDeviceCount": lambda out, *_: store_int(out, 1),
            "cudaGetDevice": lambda out, *_: store_int(out, 0),
            "cudaSetDevice": self._set_device,
            "cudaDeviceGetAttribute": self._device_attribute,
            "cudaDeviceSynchronize": lambda *_: streams.synchronize_device(),
            "cudaDriverGetVersion": lambda out, *_: store_int(out, self._device.driver_version),
            "cudaRuntimeGetVersion": lambda out, *_: store_int(out, self._device.driver_version),
            "cudaGetLastError": nothing,
            "cudaPeekAtLastError": nothing,
            "cudaGetErrorString": self._error_text,
            "cudaGetErrorName": self._error_text,
            **memory_calls(work),
            "cudaMemGetInfo": self._memory_info,
            "cudaMemcpyToSymbol": lambda symbol, source, size, offset, *_: self._to_symbol(
                symbol, source, size, offset, what="cudaMemcpyToSymbol"
            ),
            "cudaMemcpyToSymbolAsync": lambda symbol, source, size, offset, _kind, stream, *_: self._to_symbol(
                symbol, source, size, offset, what="cudaMemcpyToSymbolAsync", stream=stream or LEGACY
            ),
            "cudaMemcpyFromSymbol": lambda to, symbol, size, offset, *_: self._from_symbol(
                to, symbol, size, offset, what="cudaMemcpyFromSymbol"
            ),
            "cudaMemcpyFromSymbolAsync": lambda to, symbol, size, offset, _kind, stream, *_: self._from_symbol(
                to, symbol, size, offset, what="cudaMemcpyFromSymbolAsync", stream=stream or LEGACY
            ),
            "cudaGetSymbolAddress": lambda out, symbol, *_: store_pointer(out, self._symbol(symbol).address),
            "cudaGetSymbolSize": lambda out, symbol, *_: store_pointer(out, self._symbol(symbol).size),
            "cudaStreamCreate": lambda out, *_: store_pointer(out, self._new_stream()),
            "cudaStreamCreateWithFlags": lambda out, flags, *_: store_pointer(out, self._new_stream(flags)),
            "cudaStreamCreateWithPriority": lambda out, flags, *_: store_pointer(out, self._new_stream(flags)),
            "cudaStreamDestroy": nothing,
            "cudaStreamSynchronize": lambda stream, *_: streams.synchronize(stream),
            "cudaStreamQuery": lambda stream, *_: streams.synchronize(stream),
            "cudaStreamWaitEvent": lambda stream, event, *_: streams.wait(event, stream),
            "cudaStreamIsCapturing": lambda _, out, *__: store_int(out, int(self._side.launches.capturing)),
            "cudaEventCreate": lambda out, *_: store_pointer(out, next(self._handles)),
            "cudaEventCreateWithFlags": lambda out, *_: store_pointer(out, next(self._handles)),
            "cudaEventDestroy": nothing,
            "cudaEventRecord": lambda event, stream, *_: streams.record(event, stream or LEGACY),
            "cudaEventSynchronize": lambda event, *_: streams.synchronize_event(event),
            "cudaEventQuery": lambda event, *_: streams.synchronize_event(event),
            "cudaEventElapsedTime": self._elapsed,
            "cudaDeviceSetLimit": nothing,
            "cudaProfilerStart": nothing,
            "cudaProfilerStop": nothing,
            "cuInit": nothing,
            "cuDeviceGet": lambda out, *_: store_int(out, 0),
            "cuDeviceGetCount": lambda out, *_: store_int(out, 1),
            "cuDeviceGetAttribute": self._device_attribute,
            "cuDriverGetVersion": lambda out, *_: store_int(out, self._device.driver_version),
            "cuCtxGetCurrent": lambda out, *_: store_pointer(out, _FIRST_HANDLE),
            "cuCtxSetCurrent": nothing,
            "cuGetErrorString": lambda error, out, *_: store_pointer(out, self._error_text(error)),
            "cuGetErrorName": lambda error, out, *_: store_pointer(out, self._error_text(error)),
            "cuTensorMapEncodeTiled": encode_tensor_map,
            "nvfp4_device_name": self._name,
            INTERNAL["NVFP4_CURRENT"]: lambda *_: int(importlib.import_module("torch")._C._cuda_getCurrentRawStream(0)),
            INTERNAL["NVFP4_SET_CURRENT"]: self._set_current,
            INTERNAL["NVFP4_NEW_STREAM"]: lambda *_: self._new_stream(_NON_BLOCKING),
            INTERNAL["NVFP4_NOT_FOUND"]: _not_found,
            INTERNAL["NVFP4_CHECK"]: self._check_failed,
        }

    # ---- code --------------------------------------------------------------------------------------------------------

    def _register_binary(self, wrapper: int, *_: int) -> int:
        handle = next(self._handles)
        self._binaries[handle] = _FatBinary(wrapper, self.moved)
        return handle

    def _register_function(self, binary: int, function: int, _: int, name: int, *__: int) -> None:
        self._functions[function] = (binary, ctypes.string_at(name).decode())

    def _register_variable(self, binary: int, variable: int, _: int, name: int, *__: int) -> None:
        self._symbols[variable] = (binary, ctypes.string_at(name).decode())

    def _symbol(self, variable: int) -> Extent:
        """Return the memory of a variable by the address of its shadow in host memory."""
        if variable not in self._symbols:
            raise LaunchRejectedError(
                f"cudaErrorInvalidSymbol: {variable:#x} is no __device__ or __constant__ variable: pass the variable "
                "itself, not its address or its name"
            )
        number, name = self._symbols[variable]
        return self._modules.variable(self._module(number), name)

    def _part(self, variable: int, size: int, offset: int, *, what: str) -> int:
        """Return the address of bytes of a variable."""
        whole = self._symbol(variable)
        if offset + size > whole.size:
            raise LaunchRejectedError(
                f"cudaErrorInvalidValue: {what}: bytes [{offset}, {offset + size}) of the variable "
                f"{self._symbols[variable][1]}, which has {whole.size}"
            )
        return whole.address + offset

    def _to_symbol(
        self, variable: int, source: int, size: int, offset: int, *, what: str, stream: int | None = None
    ) -> None:
        to = self._part(variable, size, offset, what=what)
        self._work.copy(to, source, size, what=what, stream=stream or LEGACY, waits=stream is None)

    def _from_symbol(
        self, to: int, variable: int, size: int, offset: int, *, what: str, stream: int | None = None
    ) -> None:
        source = self._part(variable, size, offset, what=what)
        self._work.copy(to, source, size, what=what, stream=stream or LEGACY, waits=stream is None)

    def _kernel(self, function: int) -> int:
        if function not in self._functions:
            raise LaunchRejectedError(f"cudaErrorInvalidDeviceFunction: {function:#x} is no __global__ function")
        number, name = self._functions[function]
        return self._modules.find(self._module(number), name)

    def _module(self, number: int) -> int:
        """Return the module of a fat binary, loaded when it is first used."""
        binary = self._binaries[number]
        if binary.module is None:
            try:
                code = fatbin.read(binary.wrapper)
            except fatbin.FatbinError as error:
                raise HostSideError(f"the device code of an extension cannot be read: {error}") from None
            if binary.moved is not None:
                before, now = binary.moved
                code = code._replace(ptx=code.ptx.replace(f'"{before}', f'"{now}'))
            if code.cubin:
                self._modules.compiled(code.cubin, code.ptx)
            binary.module = self._modules.load(code.cubin or code.ptx.encode())
            self._write(code)
        return binary.module

    def _write(self, code: fatbin.Code) -> None:
        """Write the code where that of the DSL is written."""
        folder = os.environ.get("CUTE_DSL_DUMP_DIR")
        if not folder or not Path(folder).is_dir():
            return
        self._written += 1
        (Path(folder) / f"nvcc_{self._written}.ptx").write_text(code.ptx, encoding="utf-8")
        if code.cubin:
            (Path(folder) / f"nvcc_{self._written}.cubin").write_bytes(code.cubin)

    def _loaded(self, function: int) -> LoadedKernel:
        return self._modules.kernel(self._kernel(function))

    def _launch(self, config_at: int, function: int, arguments_at: int, *_: int) -> None:
        config = LaunchConfig.from_address(config_at)
        handle = self._kernel(function)
        entry = self._modules.kernel(handle).entry
        pointers = (ctypes.c_void_p * len(entry.params)).from_address(arguments_at) if entry.params else ()
        if any(not pointer for pointer in pointers):
            raise LaunchRejectedError(f"cudaErrorInvalidValue: a parameter of {entry.name} is null")
        self._modules.launch(
            handle,
            grid=tuple(config.grid),
            block=tuple(config.block),
            dynamic_smem=config.dynamic_smem,
            stream=config.stream or LEGACY,
            params=[ctypes.string_at(at, size) for at, (_, size) in zip(pointers, entry.params, strict=True)],
            attributes=launch_attributes(config),
        )

    def _function_attributes(self, out: int, function: int, *_: int) -> None:
        """Write ``cudaFuncAttributes``, of which later releases of CUDA have appended fields."""
        entry = self._loaded(function).entry
        major, minor = self._device.capability
        version = major * 10 + minor
        known = [self._device.threads_per_block, entry.registers or 0, version, version, 0]
        ctypes.memmove(out, (ctypes.c_size_t * 3)(entry.static_smem, 0, 0), 24)
        numbers = [*known, self._device.smem_per_block - entry.static_smem, -1]
        ctypes.memmove(out + 24, (ctypes.c_int32 * len(numbers))(*numbers), 4 * len(numbers))

    def _active_blocks(self, out: int, function: int, threads: int, dynamic_smem: int, *_: int) -> None:
        device, entry, threads = self._device, self._loaded(function).entry, threads & 0xFFFFFFFF
        warps = -(-max(threads, 1) // device.warp_size)
        shared = dynamic_smem + entry.static_smem + device.smem_reserved_per_block
        by_threads = device.threads_per_sm // (warps * device.warp_size)
        limits = [device.blocks_per_sm, by_threads, device.smem_per_sm // shared]
        if entry.registers:
            limits.append(device.registers_per_sm // (entry.registers * warps * device.warp_size))
        store_int(out, min(limits) if threads <= device.threads_per_block else 0)

    def _active_clusters(self, out: int, function: int, config_at: int, *_: int) -> None:
        self._kernel(function)
        raw = launch_attributes(LaunchConfig.from_address(config_at)).get(LaunchAttribute.CLUSTER_DIMENSION)
        size = math.prod(memoryview(raw[:12]).cast("I")) if raw else 1
        store_int(out, self._device.clusters(size) if 0 < size <= self._device.max_cluster_ctas else 0)

    # ---- the device, streams -----------------------------------------------------------------------------------------

    def _set_device(self, ordinal: int, *_: int) -> None:
        if number := ctypes.c_int32(ordinal & 0xFFFFFFFF).value:
            raise HostSideError(f"device {number} was requested, only device 0 is simulated")

    def _device_attribute(self, out: int, attribute: int, *_: int) -> None:
        names = importlib.import_module("cuda.bindings.driver").CUdevice_attribute
        name = names(attribute & 0xFFFFFFFF).name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        values: Mapping[str, int] = self._device.attributes()
        if name not in values:
            raise HostSideError(f"the device model {self._device.name} has no value for device attribute {name}")
        store_int(out, values[name])

    def _memory_info(self, free: int, total: int, *_: int) -> None:
        store_pointer(free, self._device.memory_bytes)
        store_pointer(total, self._device.memory_bytes)

    def _name(self, out: int, size: int, memory: int, *_: int) -> None:
        name = self._device.name.encode()[: size - 1] + b"\0"
        ctypes.memmove(out, name, len(name))
        store_pointer(memory, self._device.memory_bytes)

    def _error_text(self, error: int, *_: int) -> int:
        number = error & 0xFFFFFFFF
        if number not in self._texts:
            runtime = importlib.import_module("cuda.bindings.runtime")
            known = {int(each): each.name for each in runtime.cudaError_t}
            self._texts[number] = ctypes.create_string_buffer(known.get(number, "cudaErrorUnknown").encode())
        return ctypes.addressof(self._texts[number])

    def _check_failed(self, error: int, file: int, line: int, *_: int) -> None:
        name = ctypes.string_at(self._error_text(error)).decode()
        raise HostSideError(f"{name} at {ctypes.string_at(file).decode(errors='replace')}:{line}, in the extension")

    def _elapsed(self, out: int, start: int, end: int, *_: int) -> None:
        for event in (start, end):
            self._side.streams.synchronize_event(event)
        ctypes.c_float.from_address(out).value = math.nan

    def _new_stream(self, flags: int = 0) -> int:
        return self._side.streams.add(next(self._handles), blocking=not flags & _NON_BLOCKING)

    def _set_current(self, handle: int, *_: int) -> None:
        torch = importlib.import_module("torch")
        torch.cuda.set_stream(torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream())


def _not_found(name: int, *_: int) -> None:
    text = ctypes.string_at(name).decode(errors="replace")
    raise HostSideError(f"the extension requests {text} of the driver, which has no stand-in without a GPU")
