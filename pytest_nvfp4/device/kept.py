"""Verdicts of the simulator that need not be found again: same kernel, same inputs, same simulator.

The simulator is deterministic, so a case that passed passes again until something it depends on changes: the kernel's
files and options, the case, this package's own code, or the versions of Python, numpy, torch and the DSL. Only passes
are kept; whatever is wrong is run again, to be shown with its place.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_nvfp4.device.job import Case, KernelSpec
from pytest_nvfp4.toolchain.cache import content_key

_PACKAGE = Path(__file__).resolve().parents[1]
_PARTS = ("problem.py", "numerics", "isolation", "toolchain", "sim", "device")
_DISTRIBUTIONS = ("numpy", "torch", "nvidia-cutlass-dsl", "pydantic")
_KEEP = 20_000


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


class KeptVerdicts:
    """Passes on disk, one small file each; an entry appears by one rename.

    Args:
        root: The cache's folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root / "verdicts"

    @cached_property
    def _code(self) -> str:
        digest = hashlib.sha256()
        for part in _PARTS:
            path = _PACKAGE / part
            for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
                digest.update(f"{file.relative_to(_PACKAGE)}\0".encode())
                digest.update(file.read_bytes())
        return digest.hexdigest()

    def _key(self, kernel: KernelSpec, case: Case) -> str:
        parts: dict[str, Any] = {
            "kernel": kernel.sha256,
            "main": kernel.main,
            "entry": kernel.entry,
            "arch": kernel.arch,
            "options": kernel.compile_options,
            "case": case.model_dump_json(),
            "code": self._code,
            "python": platform.python_version(),
            "versions": {name: _version(name) for name in _DISTRIBUTIONS},
        }
        return content_key(parts)

    def _path(self, kernel: KernelSpec, case: Case) -> Path:
        key = self._key(kernel, case)
        return self._root / key[:2] / f"{key}.json"

    def has(self, kernel: KernelSpec, case: Case) -> bool:
        """Whether the case is known to pass."""
        path = self._path(kernel, case)
        try:
            known = bool(json.loads(path.read_bytes()) == {"status": "passed"})
        except (OSError, ValueError):
            return False
        with contextlib.suppress(OSError):
            os.utime(path)
        return known

    def add(self, kernel: KernelSpec, case: Case) -> None:
        """Note that a case passed. A full or read-only disk is no reason to fail: it is run again next time."""
        path = self._path(kernel, case)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(descriptor, "w") as file:
                file.write('{"status": "passed"}')
            Path(name).replace(path)

    def prune(self) -> None:
        """Forget the oldest entries beyond a bound."""
        entries = list(self._root.glob("??/*.json"))
        if len(entries) > _KEEP:
            with contextlib.suppress(OSError):
                for path in sorted(entries, key=lambda path: path.stat().st_mtime)[: len(entries) - _KEEP]:
                    path.unlink(missing_ok=True)
