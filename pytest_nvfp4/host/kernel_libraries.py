"""Libraries over the driver that compile, tune and launch kernels, in terms of the stand-ins.

They are cuda.core, cupy, torch and quack.
"""

from __future__ import annotations

import contextlib
from types import ModuleType

from pytest_nvfp4.driver.device_model import DeviceModel
from pytest_nvfp4.host import cuda_core, cupy_kernels, quack_tuning
from pytest_nvfp4.host.after_import import after_import
from pytest_nvfp4.host.device_side import DeviceSide
from pytest_nvfp4.host.kernel_objects import Library
from pytest_nvfp4.host.loaded_modules import LoadedModules
from pytest_nvfp4.host.stand_in_modules import StandInModules
from pytest_nvfp4.host.torch_kernels import compile_kernel


class KernelLibraries:
    """Installs and removes the libraries' interfaces."""

    def __init__(self, modules: LoadedModules, model: DeviceModel, side: DeviceSide) -> None:
        self._library = Library(modules, model, lambda: int(side.streams.current))
        self._stack = contextlib.ExitStack()
        self._modules = StandInModules(
            {
                "cupy": lambda: cupy_kernels.contents(self._library, side.work),
                **dict.fromkeys(
                    ("cuda.core", "cuda.core.experimental"),
                    lambda: cuda_core.contents(self._library, side.work, side.streams),
                ),
            }
        )

    def install(self) -> None:
        """Replace the real ones at their import; torch's function is replaced once torch is imported."""
        self._modules.install()
        self._stack.callback(self._modules.remove)
        self._stack.callback(after_import("torch", self._patch_torch))
        quack_tuning.install(self._stack)

    def remove(self) -> None:
        """Restore what was there."""
        self._stack.close()

    def _patch_torch(self, torch: ModuleType) -> None:
        if (original := getattr(torch.cuda, "_compile_kernel", None)) is not None:
            torch.cuda._compile_kernel = compile_kernel(self._library)
            self._stack.callback(setattr, torch.cuda, "_compile_kernel", original)
