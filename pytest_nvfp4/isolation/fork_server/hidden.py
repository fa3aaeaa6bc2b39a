"""A package that a fork server has imported, and that a child finds imported only when it imports it itself.

Some packages read the environment when they are imported, and code of a job may change it before. So a child must not
see that the package is imported; its own import runs ``resume``, which repeats what depends on the environment.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class HiddenPackage(MetaPathFinder, Loader):
    """Finder and loader of an imported package; it removes the package's modules from ``sys.modules``.

    Args:
        name: Top-level name of the package.
        resume: Called when the package is imported again, before the importing code continues.
    """

    def __init__(self, name: str, resume: Callable[[], None]) -> None:
        found = sys.modules[name]
        assert found.__spec__ is not None
        self.spec: ModuleSpec = found.__spec__
        self._found = found
        self._resume = resume
        names = [each for each in sys.modules if each == name or each.startswith(f"{name}.")]
        self._modules = {each: sys.modules.pop(each) for each in names}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return a spec that loads the modules again, if the package is imported."""
        if fullname != self.spec.name:
            return None
        spec = ModuleSpec(fullname, self, origin=self.spec.origin, is_package=True)
        spec.has_location = self.spec.has_location
        spec.submodule_search_locations = self.spec.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002
        """Return the package."""
        return self._found

    def exec_module(self, module: ModuleType) -> None:
        """Make all modules importable again."""
        sys.meta_path.remove(self)
        module.__spec__ = self.spec
        sys.modules.update(self._modules)
        self._resume()
