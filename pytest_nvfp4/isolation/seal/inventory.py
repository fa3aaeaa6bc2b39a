"""The code that judges: where the list of its memory starts (``following`` says what belongs to it).

It starts at the modules of this package, at the objects that hold its state, at libraries on whose functions verdicts
depend, and at the functions of this package that stand in others.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import (
    FunctionType,
    ModuleType,
)
from typing import Any, Final

from pytest_nvfp4.isolation.seal import cpython
from pytest_nvfp4.isolation.seal.following import BUILT_IN, SLOTTED, Follower, class_dict

_LIBRARIES: Final = (
    *("base64", "builtins", "ctypes", "gc", "hashlib", "importlib", "io", "json", "numpy", "os", "posixpath", "random"),
    *("struct", "subprocess", "sys", "threading", "time", "torch", "torch.cuda", "torch.testing", "zlib"),
)
"""Modules none of whose functions may be replaced, whether this package uses them or not."""
_CLASSES: Final = (
    ("torch", "Tensor"),
    ("torch.cuda", "Event"),
    ("torch.cuda", "Stream"),
    ("torch.cuda", "CUDAGraph"),
    ("pydantic", "BaseModel"),
    ("pathlib", "Path"),
    ("threading", "Thread"),
)
"""Classes none of whose functions may be replaced."""
_REPLACED_BY_LIBRARIES: Final = {("sys", "excepthook"), ("torch", "manual_seed")}
"""Names that imports of the DSL and of torch's compiler replace."""
_HOOKED: Final = (
    *("cuda.bindings.", "cutlass.base_dsl.", "cutlass.cutlass_dsl.", "cutlass._mlir.execution_engine"),
    *("cutlass._mlir_helpers.op", "cutlass.cute.runtime", "cutlass.cute.testing", "cutlass.testing", "torch.cuda"),
    "_signal",
)
"""Modules in which this package replaces functions, so that the DSL and torch run without a GPU."""


class Inventory(Follower):
    """The memory of the code that judges."""

    @classmethod
    def of(cls, package: str, roots: Mapping[str, object]) -> Inventory:
        """Return the inventory of a process: the loaded modules of a package, and some objects by name."""
        made = cls(package)
        made._own_modules(roots)
        made._hooks()
        made._follow()
        made._libraries()
        made._follow()
        return made

    def _own_modules(self, roots: Mapping[str, object]) -> None:
        for name, module in list(sys.modules.items()):
            if isinstance(module, ModuleType) and self._is_own(name):
                self.bind(sys.modules, name, f"the module {name}")
                self._module(module, name)
        for label, value in roots.items():
            if isinstance(value, dict):
                self._namespace(value, label)
            else:
                self._later(value, label, 0)
        for kind in BUILT_IN:
            self._class(kind, kind.__name__, 0)

    def _libraries(self) -> None:
        for name in _LIBRARIES:
            if isinstance(module := sys.modules.get(name), ModuleType):
                self.bind(sys.modules, name, f"the module {name}")
                self.list_range(module, cpython.MODULE_DICT, f"the module {name}")
                self._functions_of(vars(module), name)
        for module_name, name in _CLASSES:
            kind = getattr(sys.modules.get(module_name), name, None)
            if isinstance(kind, type):
                self._closed_class(kind, name)
                self._functions_of(class_dict(kind), name if module_name == "torch" else f"{module_name}.{name}")

    def _functions_of(self, namespace: dict[str, Any], label: str) -> None:
        for name, value in list(namespace.items()):
            function = callable(value) or type(value) in (*SLOTTED, staticmethod, classmethod, property)
            if function and (label, name) not in _REPLACED_BY_LIBRARIES:
                self.bind(namespace, name, f"{label}.{name}")

    def _hooks(self) -> None:
        """List the functions of this package that stand in modules and classes of the DSL and of torch."""
        for module_name, module in list(sys.modules.items()):
            if not module_name.startswith(_HOOKED) or type(module) is not ModuleType:
                continue
            for name, value in list(vars(module).items()):
                if self._is_hook(value):
                    self.bind(vars(module), name, f"{module_name}.{name}")
                    self._later(value, f"{module_name}.{name}", 0)
                elif type(value) is type and value.__module__ == module_name:
                    space = class_dict(value)
                    for attribute, member in list(space.items()):
                        if self._is_hook(member):
                            self.bind(space, attribute, f"{module_name}.{name}.{attribute}")
                            self._later(member, f"{module_name}.{name}.{attribute}", 0)

    def _is_hook(self, value: object) -> bool:
        function: object = value
        if type(value) is property:
            function = value.fget
        elif type(value) in (staticmethod, classmethod):
            function = value.__func__  # type: ignore[attr-defined]
        if type(function) is FunctionType:
            return self._is_own(function.__globals__.get("__name__"))
        return issubclass(type(value), type) and self._is_own(value.__module__)
