"""The driver's functions that load modules, ask about kernels, launch them, and encode tensor maps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_nvfp4.driver import cubin
from pytest_nvfp4.driver.launches import Dim3, HostSideError
from pytest_nvfp4.driver.tensormap_encoding import encode_tiled
from pytest_nvfp4.host.kernel_params import parameters
from pytest_nvfp4.host.loaded_modules import LoadedModules
from pytest_nvfp4.host.stream_calls import address_of, then

_VALUE_BYTES: Final = 64


class CodeCalls:
    """The functions for one process. ``answer`` makes the result of a call: its status and values."""

    def __init__(self, driver: Any, modules: LoadedModules, answer: Callable[..., tuple[Any, ...]]) -> None:
        self._driver = driver
        self._modules = modules
        self._answer = answer

    def table(self) -> dict[str, Callable[..., Any]]:
        """Return the functions by name."""
        d, modules = self._driver, self._modules

        def get_attribute(attribute: Any, function: Any, *_: Any) -> Any:
            return self._answer(modules.attribute(int(function), int(attribute)))

        return {
            "cuLibraryLoadData": lambda code, *_: self._answer(d.CUlibrary(modules.load(_code(code)))),
            "cuLibraryLoadFromFile": lambda path, *_: self._answer(d.CUlibrary(modules.load(_file(path)))),
            "cuLibraryUnload": then(self._answer, lambda library: modules.unload(int(library))),
            "cuLibraryGetModule": lambda library: self._answer(d.CUmodule(int(library))),
            "cuLibraryGetKernel": lambda library, name: self._answer(
                d.CUkernel(modules.find(int(library), _text(name)))
            ),
            "cuLibraryGetKernelCount": lambda library: self._answer(len(modules.kernels(int(library)))),
            "cuLibraryEnumerateKernels": lambda count, library: self._answer(
                [d.CUkernel(handle) for handle in list(modules.kernels(int(library)).values())[:count]]
            ),
            "cuKernelGetFunction": lambda kernel: self._answer(d.CUfunction(int(kernel))),
            "cuKernelGetAttribute": lambda attribute, kernel, _device: get_attribute(attribute, kernel),
            "cuKernelSetAttribute": lambda attribute, value, kernel, _device: self._set_attribute(
                kernel, attribute, value
            ),
            "cuModuleLoad": lambda path: self._answer(d.CUmodule(modules.load(_file(path)))),
            "cuModuleLoadData": lambda code: self._answer(d.CUmodule(modules.load(_code(code)))),
            "cuModuleLoadDataEx": lambda code, *_: self._answer(d.CUmodule(modules.load(_code(code)))),
            "cuModuleUnload": then(self._answer, lambda module: modules.unload(int(module))),
            "cuModuleGetFunction": lambda module, name: self._answer(
                d.CUfunction(modules.find(int(module), _text(name)))
            ),
            "cuModuleGetFunctionCount": lambda module: self._answer(len(modules.kernels(int(module)))),
            "cuModuleGetGlobal": self._get_global,
            "cuLibraryGetGlobal": self._get_global,
            "cuModuleGetLoadingMode": lambda: self._answer(d.CUmoduleLoadingMode.CU_MODULE_EAGER_LOADING),
            "cuFuncGetAttribute": get_attribute,
            "cuFuncSetAttribute": self._set_attribute,
            "cuFuncSetCacheConfig": lambda _function, _config: self._answer(),
            "cuFuncGetName": lambda function: self._answer(modules.kernel(int(function)).entry.name.encode()),
            "cuLaunchKernel": self._launch,
            "cuLaunchCooperativeKernel": lambda *args: self._launch(*args, cooperative=True),
            "cuLaunchKernelEx": self._launch_ex,
            "cuTensorMapEncodeTiled": self._encode_tensor_map,
        }

    def _get_global(self, module: Any, name: Any) -> tuple[Any, ...]:
        found = self._modules.variable(int(module), _text(name))
        return self._answer(self._driver.CUdeviceptr(found.address), found.size)

    def _set_attribute(self, function: Any, attribute: Any, value: int) -> tuple[Any, ...]:
        self._modules.set_attribute(int(function), int(attribute), int(value))
        return self._answer()

    def _launch(self, function: Any, *shape: Any, cooperative: bool = False) -> tuple[Any, ...]:
        """``cuLaunchKernel``: grid, block, dynamic shared memory, stream, parameters, and ``extra``."""
        gx, gy, gz, bx, by, bz = map(int, shape[:6])
        launched = (function, (gx, gy, gz), (bx, by, bz))
        return self._launched(launched, shape[6], shape[7], {}, shape[8:], cooperative=cooperative)

    def _launch_ex(self, config: Any, function: Any, *rest: Any) -> tuple[Any, ...]:
        attributes = {
            int(each.id): ctypes.string_at(int(each.value.getPtr()), _VALUE_BYTES)
            for each in list(config.attrs or ())[: int(config.numAttrs)]
        }
        grid = (int(config.gridDimX), int(config.gridDimY), int(config.gridDimZ))
        block = (int(config.blockDimX), int(config.blockDimY), int(config.blockDimZ))
        return self._launched((function, grid, block), config.sharedMemBytes, config.hStream, attributes, rest)

    def _launched(
        self,
        kernel: tuple[Any, Dim3, Dim3],
        smem: Any,
        stream: Any,
        attributes: Mapping[int, bytes],
        rest: Sequence[Any],
        *,
        cooperative: bool = False,
    ) -> tuple[Any, ...]:
        function, grid, block = kernel
        given, extra, *_ = (*rest, None, 0) if len(rest) < 2 else rest
        entry = self._modules.kernel(int(function)).entry
        if extra:
            raise HostSideError(f"the launch of {entry.name} passes `extra`, which has no stand-in: pass kernelParams")
        self._modules.launch(
            int(function),
            grid=grid,
            block=block,
            dynamic_smem=int(smem),
            stream=int(stream or 0),
            attributes=attributes,
            cooperative=cooperative,
            params=parameters(given, [size for _, size in entry.params], kernel=entry.name),
        )
        return self._answer()

    def _encode_tensor_map(self, *arguments: Any) -> tuple[Any, ...]:
        kind, rank, address, dims, strides, box, steps, *modes = arguments
        interleave, swizzle, l2_promotion, oob_fill = map(int, modes)
        data = encode_tiled(
            element_type=int(kind),
            address=address_of(address),
            dims=_numbers(dims, int(rank)),
            strides=_numbers(strides, int(rank) - 1),
            box=_numbers(box, int(rank)),
            element_strides=_numbers(steps, int(rank)),
            interleave=interleave,
            swizzle=swizzle,
            l2_promotion=l2_promotion,
            oob_fill=oob_fill,
        )
        made = self._driver.CUtensorMap()
        ctypes.memmove(int(made.getPtr()), data, len(data))
        return self._answer(made)


def _code(code: Any) -> bytes:
    """Return a module as the bindings accept it: its bytes, or the address of a CUBIN, a fat binary or PTX."""
    if isinstance(code, bytes | bytearray):
        return bytes(code)
    address = code.ctypes.data if hasattr(code, "ctypes") else address_of(code)
    if ctypes.string_at(address, 4) in (b"\x7fELF", cubin.FATBIN_MAGIC):
        return cubin.image_at(address)
    return ctypes.string_at(address)


def _file(path: Any) -> bytes:
    """Return the module in a file. Raises HostSideError with CUDA's error if the file cannot be read."""
    try:
        return Path(_text(path)).read_bytes()
    except OSError as error:
        raise HostSideError(f"CUDA_ERROR_FILE_NOT_FOUND: {error}") from None


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _numbers(values: Any, count: int) -> list[int]:
    return [int(value) for value in list(values)[:count]]
