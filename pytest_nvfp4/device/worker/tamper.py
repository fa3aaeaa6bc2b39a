"""Notice that a kernel replaced what a harness relies on, or reached into the harness.

The worker does not rely on these functions for its verdicts (it reads memory and times through its own driver handle),
but a kernel that replaces a clock, a comparison or a synchronisation does not do so for the product's sake.
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

_TORCH = (
    "cuda.synchronize",
    "cuda.Event",
    "cuda.Event.elapsed_time",
    "cuda.Event.record",
    "cuda.Event.synchronize",
    "cuda.Stream.synchronize",
    "cuda.current_stream",
    "cuda.CUDAGraph.replay",
    "allclose",
    "equal",
    "isclose",
    "eq",
    "empty",
    "empty_like",
    "clone",
    "testing.assert_close",
    "Tensor.clone",
    "Tensor.copy_",
    "Tensor.cpu",
    "Tensor.data_ptr",
    "Tensor.to",
    "Tensor.__eq__",
    "manual_seed",
)
_WATCHED: tuple[Any, ...] = (base64, builtins, ctypes, hashlib, io, json, os, random, struct, sys, time, zlib, Path)
"""Where also what is not named below must not become a function of the kernel's."""
_PLAIN: tuple[tuple[Any, str], ...] = (
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
_REACHES = re.compile(rb"\b(?:pytest_nvfp4|_pytest|syrupy)\b")
_OWN = "pytest_nvfp4."


def _look(root: Any, path: str) -> Any:
    value = root
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


class TamperCheck:
    """Notes what is there before a kernel is imported, and says afterwards what was replaced.

    Args:
        torch: The torch module.
        own: Whether a file is one of the kernel's.
    """

    def __init__(self, torch: Any, *, own: Callable[[str], bool] = lambda _: False) -> None:
        self._torch = torch
        self._is_own = own
        self._before = self._take()
        self._names = [(holder, frozenset(dir(holder))) for holder in self._holders()]
        self._own = self._take_own()

    def _take(self) -> dict[str, Any]:
        found = {f"torch.{path}": _look(self._torch, path) for path in _TORCH}
        for holder, name in _PLAIN:
            found[f"{holder.__name__}.{name}"] = getattr(holder, name, None)
        return found

    def _take_own(self) -> dict[str, Any]:
        """The functions and methods of this package's modules that are loaded."""
        found: dict[str, Any] = {}
        for module_name, module in list(sys.modules.items()):
            if not module_name.startswith(_OWN) or module is None:
                continue
            for name, value in list(vars(module).items()):
                if getattr(value, "__module__", None) != module_name:
                    continue
                found[f"{module_name}.{name}"] = value
                if isinstance(value, type):
                    for attribute, member in list(vars(value).items()):
                        if callable(member):
                            found[f"{module_name}.{name}.{attribute}"] = member
        return found

    def replaced(self) -> list[str]:
        """Names that are bound to something else than before."""
        now, own = self._take(), self._take_own()
        changed = [name for name, value in self._before.items() if now.get(name) is not value]
        changed += [name for name in self._kernels_functions() if name not in changed]
        return changed + [name for name, value in self._own.items() if own.get(name, value) is not value]

    def _kernels_functions(self) -> list[str]:
        """Names of torch, numpy, pydantic and the standard library that are functions of the kernel's own files.

        What libraries replace there is their affair, and torch's compiler replaces a lot.
        """
        return [
            f"{holder.__name__}.{name}"
            for holder, names in self._names
            for name, value in list(vars(holder).items())
            if name in names and self._of_kernel(value)
        ]

    def _holders(self) -> list[Any]:
        torch = self._torch
        pydantic = getattr(sys.modules.get("pydantic"), "BaseModel", None)
        found = [*_WATCHED, torch, torch.Tensor, torch.cuda, torch.testing, sys.modules.get("numpy"), pydantic]
        return [holder for holder in found if holder is not None]

    def _of_kernel(self, value: Any) -> bool:
        function = getattr(value, "__func__", value)
        if isinstance(function, type):
            function = next((one for one in vars(function).values() if isinstance(one, FunctionType)), None)
        return isinstance(function, FunctionType) and self._is_own(function.__code__.co_filename)


def reaches_into(source: bytes) -> str | None:
    """The word by which a kernel's source names the harness, or None."""
    match = _REACHES.search(source)
    return match.group().decode() if match else None
