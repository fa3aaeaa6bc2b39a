"""Notice that a kernel replaced what a harness relies on, or reached into the harness.

The worker does not rely on these functions for its verdicts (it reads memory and times through its own driver handle),
but a kernel that replaces a clock, a comparison or a synchronisation does not do so for the product's sake.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import importlib
import os
import re
import subprocess
import sys
import threading
import time
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
_PLAIN: tuple[tuple[Any, str], ...] = (
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
    """Notes what is there before a kernel is imported, and says afterwards what was replaced."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._before = self._take()
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
        return changed + [name for name, value in self._own.items() if own.get(name, value) is not value]


def reaches_into(source: bytes) -> str | None:
    """The word by which a kernel's source names the harness, or None."""
    match = _REACHES.search(source)
    return match.group().decode() if match else None
