"""Starts the simulator in a Python process that a simulated program has started, when it first needs a device.

Processes that import neither torch nor CUDA (resource trackers, tools) lose no time. The environment's own
``sitecustomize``, which this one hides, is executed first.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

_FOLDER = Path(__file__).resolve().parent
_VARIABLE = "NVFP4_SIMULATED_PROGRAM"
_NEED_A_DEVICE = frozenset({"torch", "cutlass", "cuda", "triton"})


class _Imported(Loader):
    """Returns a module that is imported already."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - importlib's signature
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Starter(MetaPathFinder):
    """Starts the simulator before the first import of a module that needs a device."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - importlib's signature
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname not in _NEED_A_DEVICE:
            return None
        sys.meta_path.remove(self)
        _load_package()
        from pytest_nvfp4.device.worker.simulated_process import start_in_child

        start_in_child(os.environ)
        # Out of sys.modules meanwhile, because the import system would execute a module that a finder leaves there.
        module = sys.modules.pop(fullname, None)
        if module is None:
            return None
        found = ModuleSpec(fullname, _Imported(module), is_package=True)
        found.submodule_search_locations = module.__path__  # type: ignore[assignment]
        return found


def _load_package() -> None:
    """Import the package from its folder, which need not be in ``sys.path``."""
    if "pytest_nvfp4" not in sys.modules:
        package = _FOLDER.parents[2]
        runpy.run_path(str(package / "isolation" / "bootstrap.py"))["load"](str(package))


def _run_hidden() -> None:
    found = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != str(_FOLDER)])
    if found is not None and found.loader is not None:
        found.loader.exec_module(module_from_spec(found))


_run_hidden()
if _VARIABLE in os.environ:
    sys.meta_path.insert(0, _Starter())
