"""Triton's driver without a GPU: kernels are compiled as for the modelled device, and launched on it.

An object, Triton's *active driver*, provides the device, the loader of CUBINs and the launcher of a kernel.
``TritonSide`` makes ``Driver`` the active one when a program imports Triton. Triton's own driver compiles C and needs
``libcuda.so``; this one does not. Gluon is compiled and launched in the same way.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pytest_nvfp4.driver.device_model import DeviceModel
from pytest_nvfp4.driver.launches import HostSideError, LaunchAttribute
from pytest_nvfp4.host import triton_profiler
from pytest_nvfp4.host.after_import import after_import
from pytest_nvfp4.host.device_side import DeviceSide
from pytest_nvfp4.host.loaded_modules import LoadedModules
from pytest_nvfp4.host.triton_arguments import address_of, parameters
from pytest_nvfp4.host.triton_tuning import Tuning, bench

_LOCAL_BYTES: Final = 3
_REGISTERS: Final = 4
_REGISTER_BYTES: Final = 4
_MAX_DYNAMIC_SMEM: Final = 8
_NON_PORTABLE_CLUSTER: Final = 14
_VALUE_BYTES: Final = 64
_ON: Final = (1).to_bytes(4, "little").ljust(_VALUE_BYTES, b"\0")
_SPREAD: Final = _ON  # CU_CLUSTER_SCHEDULING_POLICY_SPREAD
_NON_PORTABLE_CTAS: Final = 16
"""Triton permits clusters of a size that is not portable for this number of CTAs only."""
_EARLIEST: Final = (3, 4)


class TritonSide:
    """Launches Triton's kernels on a device, from the import of Triton until ``close``.

    Attributes:
        driver: The driver.
    """

    def __init__(self, modules: LoadedModules, side: DeviceSide, model: DeviceModel) -> None:
        self.driver = Driver(modules, side, model)
        self._stack = contextlib.ExitStack()
        self._kernels: weakref.WeakSet[Any] = weakref.WeakSet()

    def start(self) -> None:
        """Make the driver Triton's active one, now or when Triton is imported."""
        self._stack.callback(after_import("triton", self._activate))
        self._stack.callback(after_import("triton.runtime.interpreter", self._refuse_interpreter))
        self._stack.callback(after_import("triton.profiler.profile", self._profile))

    def close(self) -> None:
        """Restore Triton, and make its kernels forget their modules: their end would unload them by its own driver."""
        self._stack.close()
        for kernel in self._kernels:
            kernel.module = None

    def _activate(self, triton: ModuleType) -> None:
        version = tuple(int(part) for part in triton.__version__.split(".")[:2])
        if version < _EARLIEST:
            raise HostSideError(
                f"Triton {triton.__version__} has no stand-in without a GPU: install 3.4 or later, with the torch that "
                "belongs to it"
            )
        config = importlib.import_module("triton.runtime").driver
        for name in ("default", "_default", "active", "_active"):
            if name in vars(config):
                self._patch(config, name, self.driver)
        compiled = importlib.import_module("triton.compiler.compiler").CompiledKernel
        self._patch(compiled, "__init__", self._keeping_ptx(compiled.__init__))
        autotuner = importlib.import_module("triton.runtime.autotuner").Autotuner
        for owner, name, value in self.driver.tuning.patches(autotuner, importlib.import_module("triton.testing")):
            self._patch(owner, name, value)

    def _refuse_interpreter(self, interpreter: ModuleType) -> None:
        self._patch(interpreter.InterpretedFunction, "__init__", _interpreted)

    def _profile(self, profile: ModuleType) -> None:
        for owner, name, value in triton_profiler.patches(profile):
            self._patch(owner, name, value)

    def _patch(self, owner: Any, name: str, value: Any) -> None:
        self._stack.callback(setattr, owner, name, vars(owner)[name])
        setattr(owner, name, value)

    def _keeping_ptx(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def __init__(compiled: Any, *args: Any, **kwargs: Any) -> None:
            original(compiled, *args, **kwargs)
            self.driver.compiled(compiled.kernel, compiled.asm)
            self._kernels.add(compiled)

        return __init__


def _interpreted(_: object, function: Callable[..., object], *__: Any, **___: Any) -> None:
    raise HostSideError(
        f"{function.__name__} would run in Triton's interpreter, which executes other instructions than a GPU, "
        "unchecked: unset TRITON_INTERPRET"
    )


class Driver:
    """The part of an active driver that Triton calls.

    Attributes:
        tuning: What stands in for the measurements of ``triton.autotune``.
        intermediate: Loaded modules in TTGIR, in which layouts have their names.
    """

    def __init__(self, modules: LoadedModules, side: DeviceSide, model: DeviceModel) -> None:
        self._modules = modules
        self._side = side
        self._model = model
        self._texts: dict[bytes, Mapping[str, Any]] = {}
        self._loaded: set[bytes] = set()
        self.tuning = Tuning()
        self.intermediate: list[str] = []
        self.utils = self
        self.launcher_cls = self._launcher

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise HostSideError(f"Triton uses {name} of its driver, which has no stand-in without a GPU")

    # ---- the device ----------------------------------------------------------------------------------------------

    def get_current_target(self) -> Any:
        """Return the architecture for which kernels are compiled."""
        major, minor = self._model.capability
        return importlib.import_module("triton.backends.compiler").GPUTarget("cuda", major * 10 + minor, 32)

    def get_current_device(self) -> int:
        """Return the number of the current device."""
        return 0

    def set_current_device(self, device: int) -> None:
        """Do nothing for the only device."""
        if device:
            raise HostSideError(f"device {device} was requested, only device 0 is simulated")

    def get_device_capability(self, _device: int = 0) -> tuple[int, int]:
        """Return the compute capability."""
        return self._model.capability

    def get_current_stream(self, device: int = 0) -> int:
        """Return torch's current stream."""
        torch = importlib.import_module("torch")
        return int(torch._C._cuda_getCurrentRawStream(device))

    def get_active_torch_device(self) -> Any:
        """Return torch's name of the device."""
        return importlib.import_module("torch").device("cuda", 0)

    def get_device_interface(self) -> Any:
        """Return torch's module for the device."""
        return importlib.import_module("torch").cuda

    def get_device_properties(self, _device: int = 0) -> dict[str, int]:
        """Return the properties by Triton's names."""
        model = self._model
        return {
            "max_shared_mem": model.smem_per_block_optin,
            "max_num_regs": model.registers_per_sm,
            "multiprocessor_count": model.sm_count,
            "warpSize": model.warp_size,
            "sm_clock_rate": model.clock_khz,
            "mem_clock_rate": model.memory_clock_khz,
            "mem_bus_width": model.memory_bus_bits,
        }

    def is_stream_capturing(self, _stream: int) -> bool:
        """Return whether launches are recorded for a CUDA graph."""
        return self._side.launches.capturing

    def set_printf_fifo_size(self, _size: int) -> None:
        """Do nothing: no output of a kernel is lost."""

    def cuOccupancyMaxActiveClusters(self, _kernel: int, _shared: int, ctas: int) -> int:
        """Return the number of clusters that are resident at once."""
        return self._model.clusters(ctas)

    # ---- measurements --------------------------------------------------------------------------------------------

    def get_benchmarker(self) -> Callable[..., Any]:
        """Return the function that measures configurations, which measures nothing."""
        return bench

    def get_empty_cache_for_benchmark(self) -> Any:
        """Return a buffer whose writes would evict the L2 cache. It is small: there is no cache to evict."""
        torch = importlib.import_module("torch")
        return torch.empty(1, dtype=torch.int, device="cuda")

    def clear_cache(self, cache: Any) -> None:
        """Write that buffer."""
        cache.zero_()

    # ---- code ----------------------------------------------------------------------------------------------------

    def compiled(self, image: bytes, texts: Mapping[str, Any]) -> None:
        """Keep what Triton's compiler has written on the way to a CUBIN."""
        self._texts[image] = texts

    def load_binary(self, name: str, image: bytes, shared: int, _device: int) -> tuple[int, int, int, int, int]:
        """Load a CUBIN; return the module, the kernel, its registers, spilled registers and largest block."""
        texts = self._texts.get(image, {})
        if "ptx" not in texts:
            raise HostSideError(
                f"the CUBIN of Triton kernel {name} has no PTX, which is what the simulator executes: unset "
                "TRITON_STORE_BINARY_ONLY and TRITON_KERNEL_OVERRIDE"
            )
        self._modules.compiled(image, texts["ptx"])
        module = self._modules.load(image)
        kernel = self._modules.find(module, name)
        self._modules.set_attribute(kernel, _MAX_DYNAMIC_SMEM, shared)
        if image not in self._loaded:
            self._loaded.add(image)
            self._write(name, image, texts)
        spilled = self._modules.attribute(kernel, _LOCAL_BYTES) // _REGISTER_BYTES  # as Triton's own driver computes it
        return module, kernel, self._modules.attribute(kernel, _REGISTERS), spilled, self._model.threads_per_block

    def _write(self, name: str, image: bytes, texts: Mapping[str, Any]) -> None:
        """Write the code of a loaded kernel where that of the DSL is written."""
        self.intermediate += [texts["ttgir"]] if "ttgir" in texts else []
        folder = os.environ.get("CUTE_DSL_DUMP_DIR")
        if folder and Path(folder).is_dir():
            stem = f"triton_{len(self._loaded)}_{name[:100]}"
            (Path(folder) / f"{stem}.cubin").write_bytes(image)
            for suffix, kind in (("ptx", "ptx"), ("mlir", "ttgir")):
                if kind in texts:
                    (Path(folder) / f"{stem}.{suffix}").write_text(texts[kind], encoding="utf-8")

    def unload_module(self, module: int) -> None:
        """Unload a module."""
        self._modules.unload(module)

    # ---- launches ------------------------------------------------------------------------------------------------

    def _launcher(self, source: Any, metadata: Any) -> Callable[..., None]:
        """Return the launcher of a compiled kernel."""
        types = tuple(source.signature.values())
        maps = getattr(metadata, "tensordesc_meta", None) or ()
        ctas = int(getattr(metadata, "num_ctas", 1))
        attributes = dict[int, bytes]()
        if getattr(metadata, "launch_pdl", False):
            attributes[LaunchAttribute.PROGRAMMATIC_STREAM_SERIALIZATION] = _ON
        if getattr(metadata, "launch_cooperative_grid", False):
            attributes[LaunchAttribute.COOPERATIVE] = _ON
        if ctas != 1:
            size = b"".join(extent.to_bytes(4, "little") for extent in (ctas, 1, 1))
            attributes[LaunchAttribute.CLUSTER_DIMENSION] = size.ljust(_VALUE_BYTES, b"\0")
            attributes[LaunchAttribute.CLUSTER_SCHEDULING_POLICY_PREFERENCE] = _SPREAD

        def launch(*arguments: Any) -> None:
            x, y, z, stream, kernel, _, of_hooks, enter, leave, *values = arguments
            if self.tuning.compiling:
                return
            if enter is not None:
                enter(of_hooks)
            if x * y * z > 0:
                scratch = self._scratch(metadata, x * y * z * ctas, stream)
                addresses = [address_of(block, "scratch memory") for block in scratch]
                sizes = [size for _, size in self._modules.kernel(kernel).entry.params]
                self._modules.set_attribute(kernel, _NON_PORTABLE_CLUSTER, int(ctas == _NON_PORTABLE_CTAS))
                self._modules.launch(
                    kernel,
                    grid=(x * ctas, y, z),
                    block=(int(metadata.num_warps) * self._model.warp_size, 1, 1),
                    dynamic_smem=int(metadata.shared),
                    stream=int(stream or 0),
                    params=parameters(types, values, maps, addresses, sizes),
                    attributes=attributes,
                )
            if leave is not None:
                leave(of_hooks)

        return launch

    def _scratch(self, metadata: Any, ctas: int, stream: int) -> Sequence[Any]:
        """Allocate global and profile scratch memory by the program's own allocators; None for what is not needed."""
        allocation = importlib.import_module("triton.runtime._allocation")
        made: list[Any] = []
        for name in ("global", "profile"):
            size = int(getattr(metadata, f"{name}_scratch_size", 0) or 0)
            allocator = getattr(allocation, "_allocator" if name == "global" else "_profile_allocator", None)
            if not size or allocator is None:
                made.append(None)
                continue
            allocate = allocator.get() if hasattr(allocator, "get") else allocator  # the function itself until 3.4
            made.append(allocate(size * ctas, int(getattr(metadata, f"{name}_scratch_align", 1) or 1), stream))
        return made
