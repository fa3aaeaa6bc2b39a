"""Run a function when a module has been imported, at once if it is imported already."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final


def after_import(name: str, then: Callable[[ModuleType], None]) -> Callable[[], None]:
    """Call ``then`` with a module at the end of its import. The result cancels what has not happened."""
    if (module := sys.modules.get(name)) is not None:
        then(module)
        return lambda: None
    finder = _Finder(name, then)
    sys.meta_path.insert(0, finder)
    return finder.cancel


class _Finder(MetaPathFinder):
    """Finds one module as the other finders do, with a loader that calls a function after the module's own code."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name: Final = name
        self._then: Final = then

    def cancel(self) -> None:
        """Find nothing any more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """See ``MetaPathFinder``."""
        if fullname != self._name:
            return None
        self.cancel()
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)
        return spec


class _Loader(Loader):
    """A loader that calls a function after the module's own code."""

    def __init__(self, loader: Loader, then: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """See ``Loader``."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """See ``Loader``."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then(module)
