"""Run a kernel file's own host code with no GPU, no driver and no C compiler.

The host code that the DSL compiles calls C functions of its runtime library (``_cudaLaunchKernelEx`` and a few more).
``ExecutionEngine.raw_register_runtime`` replaces each by a ctypes callback before the first symbol lookup, so that the
compiled host code runs unmodified: it builds tensor maps, computes grids from its dynamic arguments, and every launch
arrives here as bytes and is passed to one Python callable. ``driver_calls`` has the stand-ins of ``cuda.bindings``,
``torch_cuda`` those of torch.

Use this in a worker process only, because the overrides are process-wide. The variables of ``environment`` must be set
before ``cutlass`` is imported. ``CUTE_DSL_DRYRUN`` must *not* be set: with it, the DSL stops after the IR, compiles
nothing and launches nothing. ``install`` imports ``cutlass``; importing this module does not.

Kernels that request TVM-FFI are compiled without it (``tvm_ffi``), because its linker resolves the runtime's C
functions itself and offers no override. Exported objects, which it links too, are refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Final

from pytest_nvfp4.driver.device_model import B200, DeviceModel
from pytest_nvfp4.driver.launches import HostSideError, Launch, LaunchRejectedError
from pytest_nvfp4.host import dsl_positions
from pytest_nvfp4.host.compile_cache import CompileCache
from pytest_nvfp4.host.compiled_calls import HostCalls
from pytest_nvfp4.host.device_side import DeviceSide, local
from pytest_nvfp4.host.driver_calls import DriverCalls
from pytest_nvfp4.host.dumps import DSL_PREFIXES, Dumps
from pytest_nvfp4.host.extension.side import ExtensionSide
from pytest_nvfp4.host.stashed import Stashed
from pytest_nvfp4.host.triton_driver import TritonSide
from pytest_nvfp4.host.tvm_ffi import PlainCalls, in_place_of

_ABSENT: Final = object()


def environment(dump_dir: Path, *, arch: str = "sm_100a") -> dict[str, str]:
    """Return the variables to set *before* ``cutlass`` is imported, for compiles that can be launched here.

    ``dump_dir`` must exist: the DSL silently writes no PTX into a missing folder.
    """
    settings = {
        "ARCH": arch,
        "DISABLE_FILE_CACHING": "1",
        "KEEP_PTX": "1",
        "KEEP_CUBIN": "1",
        "LINEINFO": "1",
        "DUMP_DIR": str(dump_dir),
    }
    return {f"{prefix}_{name}": value for prefix in DSL_PREFIXES for name, value in settings.items()}


def install(
    to: Callable[[Launch], None] | DeviceSide,
    *,
    device: DeviceModel = B200,
    compiled: CompileCache | None = None,
    built: CompileCache | None = None,
    unraised: IO[str] | None = None,
) -> HostSide:
    """Install the stand-ins and pass every launch on, synchronously and in issue order.

    The result is a context manager that removes them. An exception raised by a launch propagates through the launching
    call, unchanged and with its traceback.

    Args:
        to: The device; or a function called with each launch, for one whose memory is the heap.
        device: The model of the device.
        compiled: Cache of compiled modules and built extensions.
        built: Cache of built extensions alone.
        unraised: File of the exception that a stand-in has raised and the host code not yet (``stashed``).

    Raises:
        HostSideError: stand-ins are already installed, or the environment cannot launch (see ``environment``).
    """
    _check_environment()
    device_side = to if isinstance(to, DeviceSide) else local(to)
    side = HostSide(device_side, device=device, compiled=compiled, built=built or compiled, stashed=Stashed(unraised))
    side.start()
    return side


def _check_environment() -> None:
    if os.environ.get("CUTE_DSL_DRYRUN", "").lower() not in ("", "0", "false", "off", "no"):
        raise HostSideError("CUTE_DSL_DRYRUN is set: the DSL then stops after the IR and launches nothing. Unset it")
    if not os.environ.get("CUTE_DSL_ARCH"):
        raise HostSideError("CUTE_DSL_ARCH is not set: the DSL would query a driver. Set it to sm_100a")
    dump_dir = os.environ.get("CUTE_DSL_DUMP_DIR")
    if dump_dir and not Path(dump_dir).is_dir():
        raise HostSideError(f"CUTE_DSL_DUMP_DIR={dump_dir} does not exist: the DSL would silently write no PTX there")


class HostSide(contextlib.AbstractContextManager["HostSide"]):
    """The installed stand-ins, made by ``install``.

    Attributes:
        device: The device; ``torch_cuda.install`` with the same one lets CUDA graphs record launches, and reports
            torch's work to the same streams.
        triton: The launches of Triton's kernels.
    """

    def __init__(
        self,
        side: DeviceSide,
        *,
        device: DeviceModel,
        compiled: CompileCache | None,
        built: CompileCache | None,
        stashed: Stashed,
    ) -> None:
        self.device = side
        self._compiled = compiled
        self._driver = DriverCalls(device, side)
        self._stashed = stashed
        self._host = HostCalls(device, side, self._driver.modules, stashed)
        self.triton = TritonSide(self._driver.modules, side, device)
        self._extensions = ExtensionSide(side, device, self._driver.modules, stashed, cache=built)
        self._plain = PlainCalls()
        self._saved: list[tuple[Any, str, Any]] = []
        self._dumps = Dumps()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Override the bindings first (importing cutlass may call them), then the engine and the executor.

        Raises:
            HostSideError: another ``HostSide`` of this process is active.
        """
        bindings = importlib.import_module("cuda.bindings.driver")
        if getattr(bindings, "_nvfp4_host_side", None) is not None:
            raise HostSideError("the host-side stand-ins are already installed in this process: close them first")
        self._driver.install()
        self.triton.start()
        self._extensions.start()
        self._patch(bindings, "_nvfp4_host_side", self)
        try:
            self._patch_dsl()
        except BaseException:
            self.close()
            raise

    @property
    def without_tvm_ffi(self) -> bool:
        """Whether a kernel requested TVM-FFI and was compiled without it."""
        return self._plain.used

    def close(self) -> None:
        """Remove every override. Functions compiled before fail with a CUDA error from then on."""
        while self._saved:
            owner, name, value = self._saved.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._driver.remove()
        self.triton.close()
        self._extensions.close()
        self._host.close()

    # ---- overriding the DSL ------------------------------------------------------------------------------------

    def _patch(self, owner: Any, name: str, value: Any) -> None:
        self._saved.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def _patch_dsl(self) -> None:
        engines = importlib.import_module("cutlass._mlir.execution_engine")
        executors = importlib.import_module("cutlass.base_dsl.jit_executor")
        cuda_executors = importlib.import_module("cutlass.cutlass_dsl.cuda_jit_executor")
        compiler = importlib.import_module("cutlass.base_dsl.compiler")
        self._dumps.new_ptx()
        for owner, name, value in dsl_positions.replacements():
            self._patch(owner, name, value)
        self._patch(engines, "ExecutionEngine", self._engine_class(engines.ExecutionEngine))
        self._patch(
            executors.JitExecutor, "run_compiled_program", self._reraising(executors.JitExecutor.run_compiled_program)
        )
        compiled = cuda_executors.CudaDialectJitCompiledFunction
        for name in ("_load_cuda_library", "_deserializer"):
            self._patch(compiled, name, self._reraising(getattr(compiled, name)))
        if self._compiled is not None:
            self._patch(compiler.Compiler, "compile", self._compiled.compiling(vars(compiler.Compiler)["compile"]))
        options = compiler.CompileOptions
        self._patch(options, "apply_envar_settings", self._dumps.applying(options.apply_envar_settings))
        self._patch(options, "enable_tvm_ffi", property(self._plain.enabled(options.enable_tvm_ffi.fget)))
        self._patch(
            compiler.CompileCallable, "_compile", self._plain.compiling(vars(compiler.CompileCallable)["_compile"])
        )
        self._patch(compiled, "__call__", self._plain.calling(compiled.__call__))
        dsl = importlib.import_module("cutlass.base_dsl.dsl").BaseDSL
        self._patch(dsl, "print_warning", in_place_of(dsl.print_warning, _without_own_settings(dsl.print_warning)))
        function = executors.JitCompiledFunction
        self._patch(function, "export_to_c", self._plain.exporting(function.export_to_c))
        exported = importlib.import_module("cutlass.base_dsl.export.external_binary_module")
        self._patch(exported.ExternalBinaryModule, "__init__", _refuse_exported)
        runtime = importlib.import_module("cutlass.cute.runtime")
        self._patch(runtime, "from_dlpack", self._plain.from_dlpack(runtime.from_dlpack))
        for module_name in ("cutlass.testing", "cutlass.cute.testing"):
            try:
                module = importlib.import_module(module_name)
            except ModuleNotFoundError:  # DSL 4.4 has only the second
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
            """The DSL's engine, with runtime calls overridden before the first lookup.

            It does not optimise host code, which saves 0.2 s of the compile of ``sm100.py`` in each process (measured).
            """

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **{**kwargs, "opt_level": 0})
                own = side._host.callbacks(side._dumps.new_ptx())
                for name, callback in own.items():
                    self.raw_register_runtime(name, ctypes.cast(callback, ctypes.c_void_p))
                self._nvfp4_callbacks = own  # ctypes callbacks must live as long as the engine

        return HostSideExecutionEngine

    def _reraising(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a DSL method so that the exception that a callback stashed replaces the CUDA error that it returned."""
        return in_place_of(function, self._stashed.raising(function, _as_dsl_error))


def _as_dsl_error(error: BaseException) -> BaseException:
    """Make a refused launch an instance of the DSL's error, too, which host code may catch for its ``error_code``."""
    if not isinstance(error, LaunchRejectedError):
        return error
    base: Any = importlib.import_module("cutlass.base_dsl.common").DSLCudaRuntimeError
    message = str(error)
    name, *_ = message.partition(":")
    module, codes = ("driver", "CUresult") if name.startswith("CUDA_") else ("runtime", "cudaError_t")
    code = getattr(getattr(importlib.import_module(f"cuda.bindings.{module}"), codes), name)

    class Rejected(LaunchRejectedError, base):  # type: ignore[misc]
        """``LaunchRejectedError`` and ``DSLCudaRuntimeError`` in one."""

        def __init__(self) -> None:
            RuntimeError.__init__(self, message)
            self.message = message
            self.error_code = int(code)

        def __str__(self) -> str:
            return message

    return Rejected().with_traceback(error.__traceback__)


def _benchmark(function: Callable[..., Any], **kwargs: Any) -> float:
    """Replace ``cute.testing.benchmark``: call the function once, and return NaN as its time."""
    generator = kwargs.get("workspace_generator")
    arguments = generator() if generator is not None else kwargs.get("kernel_arguments")
    if arguments is None:
        raise ValueError("benchmark needs kernel_arguments or workspace_generator")
    function(*arguments.args, **arguments.kwargs)
    return math.nan


def _without_own_settings(original: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
    """Replace the DSL's ``print_warning``: ``environment`` keeps the PTX, and no user needs to be told."""

    def warn(self_: Any, message: str) -> None:
        if "user wants to generate PTX" not in message:
            original(self_, message)

    return warn


def _refuse_exported(_self: Any, file_path: str, *_args: Any, **_kwargs: Any) -> None:
    raise HostSideError(
        f"load_module of {file_path} has no stand-in without a GPU: exported host code calls the CUDA runtime itself. "
        "Call what cute.compile returns"
    )


def _no_timing(name: str) -> Callable[..., Any]:
    def call(*_args: Any, **_kwargs: Any) -> Any:
        raise HostSideError(f"{name} compares run times, and no time can be measured without a GPU")

    return call
