"""Run a kernel file's own host code with no GPU, no driver and no C compiler.

The host code that the DSL compiles calls C functions of its runtime library (``_cudaLaunchKernelEx`` and a few more).
``ExecutionEngine.raw_register_runtime`` lets a ctypes callback take the place of each before the first symbol lookup,
so the compiled host code runs unmodified: it builds tensor maps, computes grids from its dynamic arguments, and every
launch arrives here as bytes and goes to one Python callable. ``cuda.bindings`` gets stand-ins of its own
(:mod:`~pytest_nvfp4.toolchain.driver_calls`); torch's side is :mod:`~pytest_nvfp4.toolchain.torch_cuda`.

Use in a worker process only: the overrides are process-wide. The environment of :func:`environment` has to be set
before ``cutlass`` is imported. ``CUTE_DSL_DRYRUN`` must *not* be set: with it the DSL stops after the IR, compiles
nothing and launches nothing. ``cutlass`` itself is imported by :func:`install`, not by importing this module.

Not covered, and an error that says so: TVM-FFI and exported objects. They are linked by another engine, which resolves
the runtime's C functions itself and offers no override.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, Self

from pytest_nvfp4.toolchain import cubin
from pytest_nvfp4.toolchain.device_model import B200, DeviceModel
from pytest_nvfp4.toolchain.driver_calls import DeviceMemory, DriverCalls
from pytest_nvfp4.toolchain.launches import (
    Dim3,
    HostSideError,
    Launch,
    LaunchAttribute,
    LaunchRejectedError,
    ModuleImage,
)

__all__ = ["HostSide", "environment", "install"]

_CUDA_SUCCESS: Final = 0
_CUDA_ERROR_UNKNOWN: Final = 999  # what the host code sees after a Python exception was stashed
_FUNC_ATTRIBUTE_STATIC_SMEM: Final = 1
_FUNC_ATTRIBUTE_MAX_DYNAMIC_SMEM: Final = 8
_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER: Final = 14
_PORTABLE_CLUSTER_CTAS: Final = 8
_DEFAULT_DYNAMIC_SMEM: Final = 49152
_ATTRIBUTE_BYTES: Final = 72
_ATTRIBUTE_VALUE_AT: Final = 8
_MAX_ATTRIBUTES: Final = 64
_FIRST_HANDLE: Final = 0x5B0000000001

_PTX_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)")
_PTX_PARAM = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z]+)(\d+)\s+(?:\.ptr[^,\[]*?\s)?([\w$]+)(?:\[(\d+)\])?")

# C functions of the DSL runtime that host code may reach: every name the library exports on 4.4.0-4.8.1. Those without
# a stand-in below are overridden too, because the real ones would call into a driver that is not there.
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
_CALLBACK_ARGS: Final = 8  # at least as many as any of them takes; the caller cleans up, so more do no harm


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


class _Kernel:
    """One kernel of a loaded module, with the attributes set on it."""

    def __init__(self, entry: cubin.CubinKernel, image: ModuleImage) -> None:
        self.entry = entry
        self.image = image
        self.attributes: dict[int, int] = {}


class _Library:
    """One loaded module: its image and the handle of each kernel."""

    def __init__(self, image: ModuleImage, kernels: Mapping[str, int]) -> None:
        self.image = image
        self.kernels = kernels


def environment(dump_dir: Path, *, arch: str = "sm_100a") -> dict[str, str]:
    """Variables to set *before* ``cutlass`` is imported, for compiles that can be launched here.

    ``dump_dir`` must exist: the DSL silently writes no PTX into one that does not.
    """
    return {
        "CUTE_DSL_ARCH": arch,
        "CUTE_DSL_DISABLE_FILE_CACHING": "1",
        "CUTE_DSL_KEEP_PTX": "1",
        "CUTE_DSL_KEEP_CUBIN": "1",
        "CUTE_DSL_LINEINFO": "1",
        "CUTE_DSL_DUMP_DIR": str(dump_dir),
    }


def install(on_launch: Callable[[Launch], None], *, device: DeviceModel = B200) -> HostSide:
    """Put the stand-ins in place and hand every launch to ``on_launch``, synchronously and in issue order.

    The result is a context manager that removes them again. An exception raised by ``on_launch`` leaves the compiled
    host code through the call that launched, unchanged and with its traceback.

    :raises HostSideError: stand-ins are already in place, or the environment cannot launch (see :func:`environment`).
    """
    _check_environment()
    side = HostSide(on_launch, device=device)
    side.start()
    return side


def _check_environment() -> None:
    if os.environ.get("CUTE_DSL_DRYRUN", "").lower() not in ("", "0", "false", "off", "no"):
        raise HostSideError("CUTE_DSL_DRYRUN is set: the DSL then stops after the IR and launches nothing. Unset it")
    if not os.environ.get("CUTE_DSL_ARCH"):
        raise HostSideError("CUTE_DSL_ARCH is not set: the DSL would ask a driver. Set it to sm_100a before the import")
    dump_dir = os.environ.get("CUTE_DSL_DUMP_DIR")
    if dump_dir and not Path(dump_dir).is_dir():
        raise HostSideError(f"CUTE_DSL_DUMP_DIR={dump_dir} does not exist: the DSL would silently write no PTX there")


class HostSide:
    """The installed stand-ins. Make one with :func:`install`."""

    def __init__(self, on_launch: Callable[[Launch], None], *, device: DeviceModel) -> None:
        self._on_launch = on_launch
        self._device = device
        self._memory = DeviceMemory()
        self._calls = DriverCalls(device, self._memory)
        self._handles = itertools.count(_FIRST_HANDLE)
        self._libraries: dict[int, _Library] = {}
        self._kernels: dict[int, _Kernel] = {}
        self._launched = 0
        self._stashed: BaseException | None = None
        self._active = False
        self._saved: list[tuple[Any, str, Any]] = []
        self._seen_ptx: dict[Path, tuple[int, int, int]] = {}
        self._prototype = ctypes.CFUNCTYPE(ctypes.c_int32, *([ctypes.c_void_p] * _CALLBACK_ARGS))
        self._callbacks = {name: self._callback(name, self._handler(name)) for name in _RUNTIME_CALLS}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Override the bindings first (importing cutlass may ask them), then the engine and the executor.

        :raises HostSideError: another :class:`HostSide` of this process is active.
        """
        bindings = importlib.import_module("cuda.bindings.driver")
        if getattr(bindings, "_nvfp4_host_side", None) is not None:
            raise HostSideError("the host-side stand-ins are already installed in this process: close them first")
        self._calls.install()
        self._active = True
        self._patch(bindings, "_nvfp4_host_side", self)
        try:
            self._patch_dsl()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove every override. A function compiled before fails with a CUDA error when it is called after."""
        while self._saved:
            owner, name, value = self._saved.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._calls.remove()
        self._active = False
        self._stashed = None

    # ---- overriding the DSL ------------------------------------------------------------------------------------

    def _patch(self, owner: Any, name: str, value: Any) -> None:
        self._saved.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def _patch_dsl(self) -> None:
        engines = importlib.import_module("cutlass._mlir.execution_engine")
        executors = importlib.import_module("cutlass.base_dsl.jit_executor")
        cuda_executors = importlib.import_module("cutlass.cutlass_dsl.cuda_jit_executor")
        compiler = importlib.import_module("cutlass.base_dsl.compiler")
        self._newly_written_ptx()
        self._patch(engines, "ExecutionEngine", self._engine_class(engines.ExecutionEngine))
        self._patch(
            executors.JitExecutor, "run_compiled_program", self._reraising(executors.JitExecutor.run_compiled_program)
        )
        compiled = cuda_executors.CudaDialectJitCompiledFunction
        for name in ("_load_cuda_library", "_deserializer"):
            self._patch(compiled, name, self._reraising(getattr(compiled, name)))
        options = compiler.CompileOptions
        self._patch(options, "enable_tvm_ffi", property(_refuse_tvm_ffi(options.enable_tvm_ffi.fget)))
        for module_name in ("cutlass.testing", "cutlass.cute.testing"):
            try:
                module = importlib.import_module(module_name)
            except ModuleNotFoundError:  # 4.4 has only the second
                continue
            self._patch_testing(module)

    def _patch_testing(self, module: ModuleType) -> None:
        if hasattr(module, "benchmark"):
            self._patch(module, "benchmark", _benchmark)
        for name in ("tune", "_benchmark_for_autotune"):
            if hasattr(module, name):
                self._patch(module, name, _no_timing(f"{module.__name__}.{name}"))

    def _engine_class(self, original: type[Any]) -> type[Any]:
        side = self

        class HostSideExecutionEngine(original):  # type: ignore[misc]
            """The DSL's engine, with its runtime calls overridden before the first lookup."""

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                loads = functools.partial(side._load_data, ptx=side._newly_written_ptx())
                own = dict(side._callbacks)
                own["_cudaLibraryLoadData"] = side._callback("_cudaLibraryLoadData", loads)
                for name, callback in own.items():
                    self.raw_register_runtime(name, ctypes.cast(callback, ctypes.c_void_p))
                self._nvfp4_callbacks = own  # the engine calls them for as long as it lives

        return HostSideExecutionEngine

    def _reraising(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a DSL method so that what a callback stashed replaces the CUDA error it had to return."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            error: BaseException | None = None
            result: Any = None
            try:
                result = function(*args, **kwargs)
            except BaseException as caught:
                error = caught
            # Raised outside the handler, so that an exception keeps the cause and context it came with.
            stashed, self._stashed = self._stashed, None
            if stashed is not None:
                raise stashed
            if error is not None:
                raise error
            return result

        return call

    # ---- PTX written by the compile ----------------------------------------------------------------------------

    def _newly_written_ptx(self) -> list[str]:
        """Texts of the PTX files written since the last call: the engine is built right after its own compile."""
        dump_dir = os.environ.get("CUTE_DSL_DUMP_DIR")
        if not dump_dir or not Path(dump_dir).is_dir():
            return []
        texts = []
        for path in sorted(Path(dump_dir).glob("*.ptx")):
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if self._seen_ptx.get(path) != stamp:
                self._seen_ptx[path] = stamp
                # 4.4.0 ends the file with a NUL byte.
                texts.append(path.read_bytes().replace(b"\0", b"").decode())
        return texts

    # ---- calls of the compiled host code -----------------------------------------------------------------------

    def _callback(self, name: str, handler: Callable[..., int | None]) -> Any:
        def call(*args: int | None) -> int:
            if self._stashed is not None:
                return _CUDA_ERROR_UNKNOWN
            try:
                if not self._active:
                    raise HostSideError(f"{name} was called after the host-side stand-ins were removed")
                return handler(*(value or 0 for value in args)) or _CUDA_SUCCESS
            except BaseException as error:  # nothing may unwind through C: _reraising raises it again
                self._stashed = error
                return _CUDA_ERROR_UNKNOWN

        return self._prototype(call)

    def _handler(self, name: str) -> Callable[..., int | None]:
        table: dict[str, Callable[..., int | None]] = {
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
            "_cudaDeviceSynchronize": lambda *_: None,
            "_cudaStreamSynchronize": lambda *_: None,
            "_cudaMalloc": lambda out, size, *_: _store_pointer(out, self._memory.allocate(size)),
            "_cudaMallocAsync": lambda out, size, *_: _store_pointer(out, self._memory.allocate(size)),
            "_cudaFree": lambda pointer, *_: self._memory.free(pointer),
            "_cudaFreeAsync": lambda pointer, *_: self._memory.free(pointer),
            "_cudaMemcpy": lambda to, source, size, *_: _discard(ctypes.memmove(to, source, size)),
            "_cudaMemcpyAsync": lambda to, source, size, *_: _discard(ctypes.memmove(to, source, size)),
            "_cudaMemset": lambda to, value, size, *_: _discard(ctypes.memset(to, value & 0xFF, size)),
            "_cudaMemsetAsync": lambda to, value, size, *_: _discard(ctypes.memset(to, value & 0xFF, size)),
        }
        return table.get(name) or functools.partial(_refuse_call, name)

    def _load_data(self, out: int, code: int, *_: int, ptx: list[str] | None = None) -> None:
        image = cubin.image_at(code)
        entries = cubin.parse(image)
        text = next((t for t in ptx or [] if set(entries) <= set(_ptx_entries(t))), None)
        sizes = {name: tuple(size for _, size in entry.params) for name, entry in entries.items()}
        if text is not None:
            _check_sizes(sizes, text)
        module = ModuleImage(cubin=image, ptx=text, param_sizes=sizes)
        kernels = {}
        for name, entry in entries.items():
            kernels[name] = next(self._handles)
            self._kernels[kernels[name]] = _Kernel(entry, module)
        handle = next(self._handles)
        self._libraries[handle] = _Library(module, kernels)
        _store_pointer(out, handle)

    def _unload(self, library: int, *_: int) -> None:
        for handle in self._library(library).kernels.values():
            del self._kernels[handle]
        del self._libraries[library]

    def _library(self, handle: int) -> _Library:
        library = self._libraries.get(handle)
        if library is None:
            raise HostSideError(f"the host code used library handle {handle:#x}, which is not loaded")
        return library

    def _kernel(self, handle: int) -> _Kernel:
        kernel = self._kernels.get(handle)
        if kernel is None:
            raise HostSideError(f"the host code used kernel handle {handle:#x}, which no loaded module has")
        return kernel

    def _get_kernel(self, out: int, library: int, name: int, *_: int) -> None:
        symbol = ctypes.string_at(name).decode()
        kernels = self._library(library).kernels
        if symbol not in kernels:
            raise HostSideError(f"the host code asked for kernel {symbol}, the module has {sorted(kernels)}")
        _store_pointer(out, kernels[symbol])

    def _device_attribute(self, out: int, attribute: int, *_: int) -> None:
        names = importlib.import_module("cuda.bindings.driver").CUdevice_attribute
        name = names(attribute & 0xFFFFFFFF).name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        values = self._device.attributes()
        if name not in values:
            raise HostSideError(f"the device model {self._device.name} has no answer for device attribute {name}")
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
                    f"cudaErrorInvalidValue: {target.entry.name} asks for {number} bytes of dynamic shared memory, "
                    f"{self._device.name} has {limit} beside its {target.entry.static_smem} static ones"
                )
        target.attributes[which] = number

    def _launch(self, config_at: int, handle: int, args_at: int, *_: int) -> None:
        kernel = self._kernel(handle)
        config = _LaunchConfig.from_address(config_at)
        if config.attribute_count > _MAX_ATTRIBUTES:
            raise HostSideError(f"a launch with {config.attribute_count} attributes: the configuration is damaged")
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
        _check_launch(launch, kernel, self._device)
        self._launched += 1
        self._on_launch(launch)


_ABSENT: Final = object()


def _ptx_entries(text: str) -> list[str]:
    return [match[1] for match in _PTX_ENTRY.finditer(text)]


def _ptx_param_sizes(text: str) -> dict[str, tuple[int, ...]]:
    return {
        entry[1]: tuple(int(p[2]) // 8 * int(p[4] or 1) for p in _PTX_PARAM.finditer(entry[2]))
        for entry in _PTX_ENTRY.finditer(text)
    }


def _check_sizes(sizes: Mapping[str, tuple[int, ...]], text: str) -> None:
    written = _ptx_param_sizes(text)
    for name, expected in sizes.items():
        if written[name] != expected:
            raise HostSideError(
                f"{name}: the CUBIN describes parameters of {expected} bytes, the PTX of that compile {written[name]}"
            )


def _dim3(values: Any) -> Dim3:
    return int(values[0]), int(values[1]), int(values[2])


def _store_int(out: int, value: int) -> None:
    ctypes.c_int32.from_address(out).value = value


def _store_pointer(out: int, value: int) -> None:
    ctypes.c_void_p.from_address(out).value = value


def _discard(_value: Any) -> None:
    return None


def _refuse_call(name: str, *_: int) -> None:
    raise HostSideError(f"the compiled host code calls {name.removeprefix('_')}, which has no stand-in without a GPU")


def _check_launch(launch: Launch, kernel: _Kernel, device: DeviceModel) -> None:
    """What ``cudaLaunchKernelEx`` refuses (CUDA runtime API, execution control; programming guide, cluster limits)."""
    problem = None
    limits = device.attributes()
    ctas = math.prod(launch.cluster)
    for axis, extent, threads in zip("XYZ", launch.grid, launch.block, strict=True):
        if not 1 <= extent <= limits[f"MAX_GRID_DIM_{axis}"]:
            problem = f"grid {launch.grid}: {axis} must be 1 to {limits[f'MAX_GRID_DIM_{axis}']}"
        if not 1 <= threads <= limits[f"MAX_BLOCK_DIM_{axis}"]:
            problem = f"block {launch.block}: {axis} must be 1 to {limits[f'MAX_BLOCK_DIM_{axis}']}"
    if problem is None and launch.threads > device.threads_per_block:
        problem = f"block {launch.block} has {launch.threads} threads, at most {device.threads_per_block}"
    if problem is not None:
        raise LaunchRejectedError(f"cudaErrorInvalidConfiguration: {launch.kernel}: {problem}")
    if not ctas or any(extent % size for extent, size in zip(launch.grid, launch.cluster, strict=True)):
        raise LaunchRejectedError(
            f"cudaErrorInvalidClusterSize: {launch.kernel}: the grid {launch.grid} is not a multiple of the cluster "
            f"{launch.cluster}"
        )
    portable = not kernel.attributes.get(_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER)
    most = _PORTABLE_CLUSTER_CTAS if portable else device.max_cluster_ctas
    if ctas > most:
        raise LaunchRejectedError(
            f"cudaErrorInvalidClusterSize: {launch.kernel}: a cluster of {ctas} CTAs, at most {most}"
        )
    allowed = kernel.attributes.get(_FUNC_ATTRIBUTE_MAX_DYNAMIC_SMEM, _DEFAULT_DYNAMIC_SMEM)
    if launch.dynamic_smem > allowed:
        raise LaunchRejectedError(
            f"cudaErrorInvalidValue: {launch.kernel}: {launch.dynamic_smem} bytes of dynamic shared memory, at most "
            f"{allowed} were reserved"
        )


def _refuse_tvm_ffi(enabled: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def check(options: Any) -> bool:
        if enabled(options):
            raise HostSideError(
                "the kernel compiles with TVM-FFI, whose linker offers no override of the CUDA calls: without a GPU "
                "compile it without --enable-tvm-ffi (and unset CUTE_DSL_ENABLE_TVM_FFI)"
            )
        return False

    return check


def _benchmark(function: Callable[..., Any], **kwargs: Any) -> float:
    """Stand-in for ``cute.testing.benchmark``: one call for the effect, NaN for the time that was not measured."""
    generator = kwargs.get("workspace_generator")
    arguments = generator() if generator is not None else kwargs.get("kernel_arguments")
    if arguments is None:
        raise ValueError("benchmark needs kernel_arguments or workspace_generator")
    function(*arguments.args, **arguments.kwargs)
    return math.nan


def _no_timing(name: str) -> Callable[..., Any]:
    def call(*_args: Any, **_kwargs: Any) -> Any:
        raise HostSideError(f"{name} compares run times, and no time can be measured without a GPU")

    return call
