"""Detect that a kernel has replaced functions on which test harnesses rely, or accesses the harness itself.

The worker does not rely on these functions (it reads memory and measures times through its own driver handle), but a
kernel has no legitimate reason to replace a clock, a comparison or a synchronisation.
"""

from __future__ import annotations

import base64
import builtins
import ctypes
import gc
import hashlib
import importlib
import io
import json
import os
import random
import re
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

_TORCH_FUNCTIONS = (
    *("cuda.synchronize", "cuda.Event", "cuda.Event.elapsed_time", "cuda.Event.record", "cuda.Event.synchronize"),
    *("cuda.Stream.synchronize", "cuda.current_stream", "cuda.CUDAGraph.replay"),
    *("allclose", "equal", "isclose", "eq", "empty", "empty_like", "clone", "testing.assert_close"),
    *(f"Tensor.{name}" for name in ("clone", "copy_", "cpu", "data_ptr", "to", "__eq__")),
    "manual_seed",
)
_WATCHED: tuple[Any, ...] = (base64, builtins, ctypes, hashlib, io, json, os, random, struct, sys, time, zlib, Path)
"""Modules and classes none of whose attributes may become a function of the kernel."""
_FUNCTIONS: tuple[tuple[Any, str], ...] = (
    *((hashlib, name) for name in ("new", "sha256")),
    *((json, name) for name in ("dumps", "loads")),
    *((Path, name) for name in ("write_bytes", "read_bytes", "unlink")),
    *((time, name) for name in ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "sleep")),
    *((os, name) for name in ("write", "_exit", "read")),
    *((ctypes, name) for name in ("CDLL", "string_at", "memmove", "create_string_buffer")),
    (subprocess, "Popen"),
    (threading.Thread, "start"),
    (gc, "get_objects"),
    (builtins, "open"),
    (importlib, "import_module"),
)
_HARNESS_NAMES = re.compile(rb"\b(?:pytest_nvfp4|_pytest|syrupy)\b")
_PACKAGE_PREFIX = "pytest_nvfp4."


def _resolve(root: Any, path: str) -> Any:
    value = root
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


class TamperCheck:
    """Records functions before a kernel is imported, and finds those that were replaced afterwards.

    ``own`` returns whether a source file is the kernel's.
    """

    def __init__(self, torch: Any, *, own: Callable[[str], bool] = lambda _: False) -> None:
        self._torch = torch
        self._is_own = own
        self._functions = self._current_functions()
        self._names = [(holder, frozenset(dir(holder))) for holder in self._holders()]
        self._package = self._package_functions()

    def _current_functions(self) -> dict[str, Any]:
        functions = {f"torch.{path}": _resolve(self._torch, path) for path in _TORCH_FUNCTIONS}
        for holder, name in _FUNCTIONS:
            functions[f"{holder.__name__}.{name}"] = getattr(holder, name, None)
        return functions

    def _package_functions(self) -> dict[str, Any]:
        """Return the functions and methods of this package's loaded modules."""
        functions: dict[str, Any] = {}
        for module_name, module in list(sys.modules.items()):
            if not module_name.startswith(_PACKAGE_PREFIX) or module is None:
                continue
            for name, value in list(vars(module).items()):
                if getattr(value, "__module__", None) != module_name:
                    continue
                functions[f"{module_name}.{name}"] = value
                if isinstance(value, type):
                    for attribute, member in list(vars(value).items()):
                        if callable(member):
                            functions[f"{module_name}.{name}.{attribute}"] = member
        return functions

    def replaced(self) -> list[str]:
        """Return the names that are bound to another object than before."""
        functions, package = self._current_functions(), self._package_functions()
        changed = [name for name, value in self._functions.items() if functions.get(name) is not value]
        changed += [name for name in self._names_bound_to_kernel() if name not in changed]
        return changed + [name for name, value in self._package.items() if package.get(name, value) is not value]

    def _names_bound_to_kernel(self) -> list[str]:
        """Return names of torch, numpy, pydantic and the standard library that are functions of the kernel's own files.

        Replacements by libraries do not count; torch's compiler makes many.
        """
        return [
            f"{holder.__name__}.{name}"
            for holder, names in self._names
            for name, value in list(vars(holder).items())
            if name in names and self._is_of_kernel(value)
        ]

    def _holders(self) -> list[Any]:
        torch = self._torch
        pydantic = getattr(sys.modules.get("pydantic"), "BaseModel", None)
        holders = [*_WATCHED, torch, torch.Tensor, torch.cuda, torch.testing, sys.modules.get("numpy"), pydantic]
        return [holder for holder in holders if holder is not None]

    def _is_of_kernel(self, value: Any) -> bool:
        function = getattr(value, "__func__", value)
        if isinstance(function, type):
            function = next((member for member in vars(function).values() if isinstance(member, FunctionType)), None)
        return isinstance(function, FunctionType) and self._is_own(function.__code__.co_filename)


def names_harness(source: bytes) -> str | None:
    """Return the word with which a kernel's source names the test harness, or None."""
    match = _HARNESS_NAMES.search(source)
    return match.group().decode() if match else None
