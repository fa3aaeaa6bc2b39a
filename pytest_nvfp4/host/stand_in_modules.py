"""Modules of CUDA libraries that cannot be imported, or do nothing, without a driver: made when they are imported.

A name that a stand-in does not have raises ``HostSideError`` with that name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from pytest_nvfp4.driver.launches import HostSideError


class StandInModules(MetaPathFinder, Loader):
    """Finds modules by name. ``contents`` makes the names of each."""

    def __init__(self, contents: Mapping[str, Callable[[], Mapping[str, Any]]]) -> None:
        self._contents: Final = contents
        self._replaced: dict[str, ModuleType] = {}

    @property
    def names(self) -> frozenset[str]:
        """Names of the modules."""
        return frozenset(self._contents)

    def install(self) -> None:
        """Find the modules before any other finder does."""
        for name in self._contents:
            if (known := sys.modules.pop(name, None)) is not None:
                self._replaced[name] = known
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Find nothing any more."""
        if self not in sys.meta_path:
            return
        sys.meta_path.remove(self)
        for name in self._contents:
            sys.modules.pop(name, None)
            parent, _, own = name.rpartition(".")
            if parent in sys.modules and isinstance(vars(sys.modules[parent]).get(own), _StandIn):
                delattr(sys.modules[parent], own)
        sys.modules.update(self._replaced)

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """See ``MetaPathFinder``."""
        if fullname in self._contents:
            return ModuleSpec(fullname, self, is_package=True)
        parent = fullname.rpartition(".")[0]
        if parent in self._contents:
            raise HostSideError(
                f"{fullname} has no stand-in on a machine without a GPU: run this check on a real device"
            )
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """See ``Loader``."""
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """See ``Loader``."""
        vars(module).update(self._contents[module.__name__]())


class _StandIn(ModuleType):
    """A module that refuses the names that it has not."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if any(isinstance(finder, StandInModules) and full in finder.names for finder in sys.meta_path):
            return importlib.import_module(full)
        raise HostSideError(f"{full} has no stand-in on a machine without a GPU: run this check on a real device")
