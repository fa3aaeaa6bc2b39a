"""Caches of simulated verdicts and calls.

The simulator is deterministic, so a case that passed passes again until something that it depends on changes: the
kernel's files and options, the case, this package's code, or the versions of Python, numpy, torch and the DSL. Only
cases that passed are cached; others run again, so that their findings can be shown in full.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ValidationError

from pytest_nvfp4.device.code_hash import code_hash
from pytest_nvfp4.device.job import JobCase, KernelSpec
from pytest_nvfp4.device.result import SimulatedCall
from pytest_nvfp4.device.simulate import SimulationResult
from pytest_nvfp4.device.worker.device_info import installed_version
from pytest_nvfp4.toolchain.cache import content_key

_PARTS = ("problem.py", "numerics", "isolation", "driver", "host", "toolchain", "sim", "device")
_DISTRIBUTIONS = ("numpy", "torch", "nvidia-cutlass-dsl", "pydantic")
_MOST_ENTRIES = 20_000


class ResultKeys:
    """Cache keys, computed from everything that determines a simulation.

    This package's code is hashed once per instance, so the caches of a run share one.
    """

    @cached_property
    def _code(self) -> str:
        return code_hash(_PARTS)

    @cached_property
    def _versions(self) -> dict[str, str | None]:
        return {name: installed_version(name) for name in _DISTRIBUTIONS}

    def key(self, kernel: KernelSpec, case: JobCase) -> str:
        """Return the key of a kernel and a case."""
        parts: dict[str, Any] = {
            "kernel": kernel.sha256,
            "main": kernel.main,
            "entry": kernel.entry,
            "arch": kernel.arch,
            "options": kernel.compile_options,
            "side_stream": kernel.side_stream,
            "torch_operators": kernel.torch_operators,
            "case": case.model_dump_json(),
            "code": self._code,
            "python": platform.python_version(),
            "versions": self._versions,
        }
        return content_key(parts)


class _ResultCache:
    """A cache of small files, one for each kernel and case. An entry appears by one rename.

    Args:
        root: Folder of all caches.
        keys: Cache keys, shared with other caches.
    """

    _folder: ClassVar[str]

    def __init__(self, root: Path, *, keys: ResultKeys | None = None) -> None:
        self._root = root / self._folder
        self._keys = keys or ResultKeys()

    def _path(self, kernel: KernelSpec, case: JobCase) -> Path:
        key = self._keys.key(kernel, case)
        return self._root / key[:2] / f"{key}.json"

    def _read(self, kernel: KernelSpec, case: JobCase) -> bytes | None:
        path = self._path(kernel, case)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return data

    def _write(self, kernel: KernelSpec, case: JobCase, text: str) -> None:
        """Write an entry. A full or read-only disk is no error: the case is simulated again next time."""
        path = self._path(kernel, case)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).replace(path)

    def prune(self) -> None:
        """Remove the least recently used entries beyond a limit."""
        entries = [*self._root.glob("??/*.json"), *self._root.glob("??/*.lock")]
        if len(entries) > _MOST_ENTRIES:
            with contextlib.suppress(OSError):
                for path in sorted(entries, key=lambda path: path.stat().st_mtime)[: len(entries) - _MOST_ENTRIES]:
                    path.unlink(missing_ok=True)


class VerdictCache(_ResultCache):
    """Cache of cases that passed. For the arguments see ``_ResultCache``."""

    _folder = "verdicts"

    def has(self, kernel: KernelSpec, case: JobCase) -> bool:
        """Return whether a case is known to pass."""
        data = self._read(kernel, case)
        try:
            return data is not None and bool(json.loads(data) == {"status": "passed"})
        except ValueError:
            return False

    def add(self, kernel: KernelSpec, case: JobCase) -> None:
        """Record that a case passed."""
        self._write(kernel, case, '{"status": "passed"}')


class SimulationCache(_ResultCache):
    """Cache of simulated calls without errors. For the arguments see ``_ResultCache``."""

    _folder = "simulations"

    def get(self, kernel: KernelSpec, case: JobCase) -> SimulationResult | None:
        """Return the simulation of a case, None on a cache miss."""
        data = self._read(kernel, case)
        try:
            call = None if data is None else SimulatedCall.model_validate_json(data)
        except ValidationError:
            return None
        if call is None:
            return None
        notes = tuple(finding for launch in call.launches for finding in launch.findings)
        return SimulationResult(case, "passed", notes, call)

    def lock(self, kernel: KernelSpec, case: JobCase) -> Path:
        """Return a file to lock while a case is simulated, so that two processes do not simulate it at once."""
        path = self._path(kernel, case).with_suffix(".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def add(self, kernel: KernelSpec, done: SimulationResult) -> None:
        """Store the simulation of a case, if it passed."""
        if done.status == "passed" and done.call is not None:
            self._write(kernel, done.case, done.call.model_dump_json())
