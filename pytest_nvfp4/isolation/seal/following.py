"""The memory of functions, classes, constants and objects, and of the names through which they are found.

From an object it follows what its functions use: global names, attributes of modules, built-in functions, and the
functions that those use in turn. Caches may fill, new names may appear, and bytecode may specialise; what a name was
bound to and what a function consists of may not change.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import gc
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Final

from pytest_nvfp4.isolation.seal import cpython
from pytest_nvfp4.isolation.seal.memory_lists import ForeignFunction, MemoryLists

_DEPTH = 1
"""How far the functions that other libraries' functions use are followed."""
_BUILT_IN_NAMES: Final = frozenset(vars(builtins))
_ADDED: Final = frozenset(("__abstractmethods__", "__annotations__", "__doc__", "__dict__", "__weakref__", "_abc_impl"))
"""Names that a class may get later without a change of what it does."""
BUILT_IN: Final = (
    bool,
    bytearray,
    bytes,
    dict,
    float,
    frozenset,
    int,
    list,
    memoryview,
    object,
    set,
    str,
    tuple,
    type,
)
_WRAPPERS = (property, staticmethod, classmethod, functools.partial, functools.cached_property)
SLOTTED = (MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType, MethodWrapperType, MemberDescriptorType)
_DATA = (str, bytes, int, float, complex)


class Follower(MemoryLists):
    """The memory that is reached from objects of a package, through what its functions use.

    Args:
        package: The package; an object of a class of it is followed through its attributes.
    """

    def __init__(self, package: str) -> None:
        super().__init__()
        self._package = package + "."
        self._seen: set[int] = set()
        self._pending: deque[tuple[object, str, int]] = deque()

    def _is_own(self, module: object) -> bool:
        """Return whether a module is the package's; the worker itself runs as ``__main__``."""
        return isinstance(module, str) and (
            module.startswith(self._package) or module in (self._package[:-1], "__main__")
        )

    # ---- following ---------------------------------------------------------------------------------------------

    def _later(self, value: object, label: str, depth: int) -> None:
        if id(value) not in self._seen:
            self._pending.append((value, label, depth))

    def _follow(self) -> None:
        while self._pending:
            self._visit(*self._pending.popleft())

    def _visit(self, value: object, label: str, depth: int) -> None:
        if id(value) in self._seen or depth > _DEPTH:
            return
        self._seen.add(id(value))
        kind = type(value)
        if kind is FunctionType:
            self._function(value, label, depth)  # type: ignore[arg-type]
        elif isinstance(value, type):
            self._class(value, label, depth)
        elif kind is MethodType:
            self.list_range(value, (cpython.HEAD, 32), label)
            self._later(value.__func__, label, depth)  # type: ignore[attr-defined]
            self._later(value.__self__, f"the object of {label}", depth)  # type: ignore[attr-defined]
        elif kind is BuiltinFunctionType:
            self.list_built_in(value, label)
        elif isinstance(value, _WRAPPERS):
            self._wrapper(value, label, depth)
        elif isinstance(value, SLOTTED):
            self.list_descriptor(value, label)
        elif kind is tuple or kind is frozenset or isinstance(value, _DATA):
            self._constant(value, label, depth)
        elif isinstance(value, functools._lru_cache_wrapper):
            self.list_pointers(value, value.__wrapped__, label)
            self._later(value.__wrapped__, label, depth)
        elif isinstance(value, ctypes.CDLL):
            self._instance(value, label, depth)
        elif isinstance(value, (ctypes._SimpleCData, ForeignFunction)):
            self.list_foreign(value, label)
        elif self._is_own(kind.__module__) and not issubclass(kind, dict | list | set):
            self._instance(value, label, depth)

    def _module(self, module: ModuleType, name: str) -> None:
        self.list_range(module, cpython.MODULE_DICT, f"the module {name}")
        self._namespace(vars(module), name)

    def _namespace(self, namespace: dict[str, Any], label: str) -> None:
        self.close_names(namespace, label, _BUILT_IN_NAMES)
        for name, value in list(namespace.items()):
            if isinstance(name, str) and (not name.startswith("__") or name == "__builtins__"):
                self.bind(namespace, name, f"{label}.{name}")
                if name == "__builtins__":
                    continue
                if type(value) is dict:
                    self._table(value, f"{label}.{name}")
                elif type(value) is not ModuleType:
                    self._later(value, f"{label}.{name}", 0)

    def _closed_class(self, kind: type, label: str) -> None:
        """List the names that a class inherits, and those that it looks up before all others."""
        inherited = {name for parent in kind.__mro__[1:] for name in vars(parent)}
        self.close_names(class_dict(kind), label, frozenset({*inherited, "__getattr__"} - vars(kind).keys() - _ADDED))

    def _table(self, table: dict[Any, Any], label: str) -> None:
        """List the entries of a dictionary that a module defines; a cache may get more of them."""
        if id(table) in self._seen or len(table) > cpython.LARGEST_DICT:
            return
        self._seen.add(id(table))
        for key, value in list(table.items()):
            self.bind(table, key, f"{label}[{str(key)[:40]}]")
            self._later(value, f"{label}[{str(key)[:40]}]", 0)

    def _function(self, function: FunctionType, label: str, depth: int) -> None:
        self.list_range(function, cpython.FUNCTION, label)
        self._code(function.__code__, label)
        if function.__defaults__:
            self._constant(function.__defaults__, label, depth)
        if function.__kwdefaults__:
            for name, value in function.__kwdefaults__.items():
                self.bind(function.__kwdefaults__, name, f"{label} (default of {name})")
                self._later(value, label, depth)
        if function.__closure__:
            self._constant(function.__closure__, label, depth)
            for cell in function.__closure__:
                self._cell(cell, label, depth)
        self._uses(function, depth)
        wrapped = function.__dict__.get("__wrapped__")
        if wrapped is not None:
            self._later(wrapped, label, depth)

    def _cell(self, cell: CellType, label: str, depth: int) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # not bound yet
            return
        if callable(value) or isinstance(value, ModuleType) or self._is_own(type(value).__module__):
            self.list_range(cell, (cpython.HEAD, 24), label)
            self._later(value, label, depth)

    def _code(self, code: CodeType, label: str) -> None:
        if id(code) in self._seen:
            return
        self._seen.add(id(code))
        self.list_range(code, cpython.CODE, label)
        self.codes.extend((id(code) + cpython.CODE_UNITS, len(code.co_code), self.label_index(label)))
        self.list_range(code.co_names, (cpython.HEAD, cpython.TUPLE_ITEMS + 8 * len(code.co_names)), label)
        self._constant(code.co_consts, label, 0)
        self.list_data(code.co_exceptiontable, label)

    def _uses(self, function: FunctionType, depth: int) -> None:
        """List the names that a function looks up in its module, in other modules and in classes."""
        names = {name for code in _codes(function.__code__) for name in code.co_names}
        modules: dict[int, ModuleType] = {}
        for name in names:
            space = next((space for space in (function.__globals__, vars(builtins)) if name in space), None)
            if space is not None:
                self._used(space, name, depth, modules)
        if self._is_own(function.__globals__.get("__name__")):
            for name in names & sys.modules.keys():  # an import inside the function
                self.bind(sys.modules, name, f"the module {name}")
                modules[id(sys.modules[name])] = sys.modules[name]
        pending = list(modules.values())
        while pending:
            space = vars(pending.pop())
            before = len(modules)
            for name in names & space.keys():
                self._used(space, name, depth, modules)
            pending += list(modules.values())[before:]

    def _used(self, space: dict[str, Any], name: str, depth: int, modules: dict[int, ModuleType]) -> None:
        value = space[name]
        label = _module_label(space, name)
        if type(value) is ModuleType:
            self.bind(space, name, label)
            if not self._is_own(value.__name__):
                self.list_range(value, cpython.MODULE_DICT, value.__name__)
                modules.setdefault(id(value), value)
        elif isinstance(value, FunctionType | BuiltinFunctionType | type | functools._lru_cache_wrapper):
            self.bind(space, name, label)
            self._later(value, label, depth + 1)

    def _class(self, kind: type, label: str, depth: int) -> None:
        self._seen.add(id(kind))
        space = class_dict(kind)
        own = self._is_own(kind.__module__)
        whole = own or kind in BUILT_IN
        for start, end in cpython.TYPE_RANGES:
            self.list_range(kind, (start, end), label)
        self.list_range(kind.__mro__, (cpython.HEAD, cpython.TUPLE_ITEMS + 8 * len(kind.__mro__)), label)
        for offset, size in cpython.TYPE_SUITES.items():
            if suite := int.from_bytes(ctypes.string_at(id(kind) + offset, 8), "little"):
                self.ranges.extend((suite, size, self.label_index(label)))
        for name, value in list(space.items()):
            function = isinstance(value, (FunctionType, property, staticmethod, classmethod, type, *SLOTTED))
            if function or (own and not name.startswith("__")):
                self.bind(space, name, f"{label}.{name}")
                if whole or not isinstance(value, SLOTTED):
                    self._later(value, f"{label}.{name}", depth)
        if own:
            self._closed_class(kind, label)
            for parent in kind.__mro__[1:]:
                self._later(parent, parent.__qualname__, depth)
            if type(kind) is not type:
                self._later(type(kind), type(kind).__qualname__, depth)

    def _instance(self, value: object, label: str, depth: int) -> None:
        """List the attributes of an object that are functions, modules or objects of this package.

        A class whose instances never change says so with ``fixed``; all of their attributes are listed.
        """
        if type(value).__module__.startswith(f"{self._package}sim."):
            return  # the simulator's objects replace their own attributes while they run
        label = type(value).__qualname__
        self.list_range(value, (cpython.HEAD, 16), label)
        self._later(type(value), type(value).__qualname__, depth)
        held, fixed = getattr(value, "__dict__", None), type(value).__dict__.get("fixed") is True
        if type(held) is dict:
            functions = {
                name for base in type(value).__mro__ for name, member in vars(base).items() if callable(member)
            }
            self.close_names(held, label, frozenset(functions - held.keys()))
            if type(value).__flags__ & cpython.MANAGED_DICT_FLAG:
                self.list_range(value, (cpython.MANAGED_DICT, cpython.MANAGED_DICT + 8), label)
            elif (offset := type(value).__dictoffset__) > 0:
                self.list_range(value, (offset, offset + 8), label)
            for name, member in list(held.items()):
                if fixed or self._matters(member):
                    self.bind(held, name, f"{label}.{name}")
                    self._later(member, f"{label}.{name}", depth)
        for name in _slots(type(value)):
            member = getattr(value, name, None)
            if self._matters(member):
                self.list_pointers(value, member, f"{label}.{name}")
                self._later(member, f"{label}.{name}", depth)

    def _matters(self, member: object) -> bool:
        kind = type(member)
        return callable(member) or isinstance(member, ModuleType | ctypes.CDLL) or self._is_own(kind.__module__)

    # ---- memory ------------------------------------------------------------------------------------------------

    def _wrapper(self, value: Any, label: str, depth: int) -> None:
        inner = [getattr(value, name, None) for name in ("fget", "fset", "__func__", "func")]
        for function in inner:
            if function is not None:
                self.list_pointers(value, function, label)
                self._later(function, label, depth)

    def _constant(self, value: object, label: str, depth: int) -> None:
        if type(value) is tuple:
            self.list_range(value, (cpython.HEAD, cpython.TUPLE_ITEMS + 8 * len(value)), label)
            for item in value:
                if type(item) is CodeType:
                    self._code(item, label)
                else:
                    self._later(item, label, depth)
        elif isinstance(value, _DATA):
            self.list_data(value, label)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from _codes(constant)


def _slots(kind: type) -> Iterable[str]:
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        yield from ((slots,) if isinstance(slots, str) else slots)


def _module_label(space: dict[str, Any], name: str) -> str:
    module = str(space.get("__name__", ""))
    return f"{module}.{name}" if module and module != "__main__" else PurePath(name).name


def class_dict(kind: type) -> dict[str, Any]:
    """Return the dictionary behind a class's ``__dict__``, which is a read-only view of it."""
    view = vars(kind)
    assert isinstance(view, MappingProxyType)
    (space,) = gc.get_referents(view)
    return space  # type: ignore[no-any-return]
