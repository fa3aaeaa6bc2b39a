"""Run a kernel file's own host code with no GPU, no driver and no C compiler.

The host code that the DSL compiles calls C functions of its runtime library (``_cudaLaunchKernelEx`` and a few more).
``ExecutionEngine.raw_register_runtime`` lets a ctypes callback take the place of each before the first symbol lookup,
so the compiled host code runs unmodified: it builds tensor maps, computes grids from its dynamic arguments, and every
launch arrives here as bytes and goes to one Python callable. ``cuda.bindings`` gets stand-ins of its own
(:mod:`~pytest_nvfp4.host.driver_calls`); torch's side is :mod:`~pytest_nvfp4.host.torch_cuda`.

Use in a worker process only: the overrides are process-wide. The environment of :func:`environment` has to be set
before ``cutlass`` is imported. ``CUTE_DSL_DRYRUN`` must *not* be set: with it the DSL stops after the IR, compiles
nothing and launches nothing. ``cutlass`` itself is imported by :func:`install`, not by importing this module.

Kernels that ask for TVM-FFI are compiled without it (:mod:`~pytest_nvfp4.host.tvm_ffi`), since its linker resolves
the runtime's C functions itself and offers no override. Exported objects, which it links too, are not covered.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, Final, Self

from pytest_nvfp4.driver.device_model import B200, DeviceModel
from pytest_nvfp4.driver.launches import HostSideError, Launch, LaunchRejectedError
from pytest_nvfp4.driver.memory import DeviceMemory, HostBlocks
from pytest_nvfp4.driver.streams import Streams
from pytest_nvfp4.host.compiled import CompiledModules
from pytest_nvfp4.host.compiled_calls import HostCalls
from pytest_nvfp4.host.driver_calls import DriverCalls
from pytest_nvfp4.host.graphs import LaunchQueue
from pytest_nvfp4.host.tvm_ffi import PlainCalls, in_place_of

__all__ = ["DSL_PREFIXES", "HostSide", "environment", "install"]

DSL_PREFIXES: Final = ("CUTE_DSL", "CUTE_EXPERIMENTAL_DSL")
"""What the variables of each of the DSL's front ends begin with: ``cute.jit`` and ``cute.experimental.jit``."""

_ABSENT: Final = object()


def environment(dump_dir: Path, *, arch: str = "sm_100a") -> dict[str, str]:
    """Variables to set *before* ``cutlass`` is imported, for compiles that can be launched here.

    ``dump_dir`` must exist: the DSL silently writes no PTX into one that does not.
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
    on_launch: Callable[[Launch], None],
    *,
    device: DeviceModel = B200,
    memory: DeviceMemory | None = None,
    compiled: CompiledModules | None = None,
) -> HostSide:
    """Put the stand-ins in place and hand every launch to ``on_launch``, synchronously and in issue order.

    The result is a context manager that removes them again. An exception raised by ``on_launch`` leaves the compiled
    host code through the call that launched, unchanged and with its traceback. ``memory`` serves ``cuMemAlloc`` and
    its kin; the heap's by default. ``compiled`` spares compiles whose result is at hand.

    :raises HostSideError: stand-ins are already in place, or the environment cannot launch (see :func:`environment`).
    """
    _check_environment()
    side = HostSide(on_launch, device=device, memory=memory or HostBlocks(), compiled=compiled)
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

    def __init__(
        self,
        on_launch: Callable[[Launch], None],
        *,
        device: DeviceModel,
        memory: DeviceMemory,
        compiled: CompiledModules | None,
    ) -> None:
        self._compiled = compiled
        self.streams = Streams()
        """What the host code orders; give it a watcher, and give it to ``torch_cuda.install``, for it to be kept."""
        self._driver = DriverCalls(device, memory, self.streams)
        self.launches = LaunchQueue(on_launch, self.streams)
        """Where launches go; ``torch_cuda.install(launches=...)`` lets CUDA graphs keep them there."""
        self._host = HostCalls(self.launches, device=device, memory=memory, streams=self.streams)
        self._plain = PlainCalls()
        self._saved: list[tuple[Any, str, Any]] = []
        self._seen_ptx: dict[Path, tuple[int, int, int]] = {}

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
        self._driver.install()
        self._patch(bindings, "_nvfp4_host_side", self)
        try:
            self._patch_dsl()
        except BaseException:
            self.close()
            raise

    @property
    def without_tvm_ffi(self) -> bool:
        """Whether a kernel asked for TVM-FFI and was compiled without."""
        return self._plain.used

    def close(self) -> None:
        """Remove every override. A function compiled before fails with a CUDA error when it is called after."""
        while self._saved:
            owner, name, value = self._saved.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._driver.remove()
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
        self._newly_written_ptx()
        self._remember_positions()
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
        self._patch(options, "enable_tvm_ffi", property(self._plain.enabled(options.enable_tvm_ffi.fget)))
        self._patch(
            compiler.CompileCallable, "_compile", self._plain.compiling(vars(compiler.CompileCallable)["_compile"])
        )
        self._patch(compiled, "__call__", self._plain.calling(compiled.__call__))
        runtime = importlib.import_module("cutlass.cute.runtime")
        self._patch(runtime, "from_dlpack", self._plain.from_dlpack(runtime.from_dlpack))
        for module_name in ("cutlass.testing", "cutlass.cute.testing"):
            try:
                module = importlib.import_module(module_name)
            except ModuleNotFoundError:  # 4.4 has only the second
                continue
            self._patch_testing(module)

    def _remember_positions(self) -> None:
        """Decode the position table of each of the user's functions once, not once an operation.

        The DSL (4.8) walks through it for every operation it builds, up to the one that is asked for: half of the time
        of building the IR of a large kernel.
        """
        try:
            operations = importlib.import_module("cutlass._mlir_helpers.op")
        except ModuleNotFoundError:  # 4.4 has it elsewhere and asks inspect, which looks up the line alone
            return
        if getattr(operations, "_CO_POSITIONS", None) is not None:
            self._patch(operations, "_CO_POSITIONS", _Positions().of)

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
                own = side._host.callbacks(side._newly_written_ptx())
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
            stashed = self._host.take_stashed()
            if stashed is not None:
                raise _as_the_dsl_says(stashed)
            if error is not None:
                raise error
            return result

        return in_place_of(function, call)

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


class _Positions:
    """``CodeType.co_positions``, with every answer kept. By identity, since code is compared by all its content."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[CodeType, tuple[Any, ...]]] = {}

    def of(self, code: CodeType) -> tuple[Any, ...]:
        known = self._known.get(id(code))
        if known is None:
            known = self._known[id(code)] = (code, tuple(code.co_positions()))
        return known[1]


def _as_the_dsl_says(error: BaseException) -> BaseException:
    """A refused launch as the DSL's own error too, which host code may catch and ask for its ``error_code``."""
    if not isinstance(error, LaunchRejectedError):
        return error
    base: Any = importlib.import_module("cutlass.base_dsl.common").DSLCudaRuntimeError
    codes: Any = importlib.import_module("cuda.bindings.runtime").cudaError_t
    message = str(error)

    class Rejected(LaunchRejectedError, base):  # type: ignore[misc]
        """``LaunchRejectedError`` and ``DSLCudaRuntimeError`` in one."""

        def __init__(self) -> None:
            RuntimeError.__init__(self, message)
            self.message = message
            self.error_code = int(getattr(codes, message.partition(":")[0]))

        def __str__(self) -> str:
            return message

    return Rejected().with_traceback(error.__traceback__)


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
