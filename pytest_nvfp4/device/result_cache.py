"""What the simulator need not find again: verdicts, and what calls did. Same kernel, same inputs, same simulator.

The simulator is deterministic, so a case that passed passes again until something it depends on changes: the kernel's
files and options, the case, this package's own code, or the versions of Python, numpy, torch and the DSL. Only passes
are kept; whatever is wrong is run again, to be shown with its place.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_nvfp4.device.code_hash import code_hash
from pytest_nvfp4.device.job import JobCase, KernelSpec
from pytest_nvfp4.device.result import SimulatedCall
from pytest_nvfp4.device.simulate import SimulationResult
from pytest_nvfp4.toolchain.cache import content_key

_PARTS = ("problem.py", "numerics", "isolation", "driver", "host", "toolchain", "sim", "device")
_DISTRIBUTIONS = ("numpy", "torch", "nvidia-cutlass-dsl", "pydantic")
_KEEP = 20_000


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


class ResultKeys:
    """Names of results: everything that decides what the simulator finds is in them.

    This package's own code is read once; the stores of a run share one of these.
    """

    @cached_property
    def _code(self) -> str:
        return code_hash(_PARTS)

    @cached_property
    def _versions(self) -> dict[str, str]:
        return {name: _version(name) for name in _DISTRIBUTIONS}

    def key(self, kernel: KernelSpec, case: JobCase) -> str:
        """The name of what is known of a kernel and a case."""
        parts: dict[str, Any] = {
            "kernel": kernel.sha256,
            "main": kernel.main,
            "entry": kernel.entry,
            "arch": kernel.arch,
            "options": kernel.compile_options,
            "case": case.model_dump_json(),
            "code": self._code,
            "python": platform.python_version(),
            "versions": self._versions,
        }
        return content_key(parts)


class _Kept:
    """Small files on disk, one for a kernel and a case; an entry appears by one rename.

    Args:
        root: Their folder.
        keys: What names them; that of other stores, so that the code is read once for all of them.
    """

    def __init__(self, root: Path, *, keys: ResultKeys | None = None) -> None:
        self._root = root
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
        """Keep something. A full or read-only disk is no reason to fail: it is found again next time."""
        path = self._path(kernel, case)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).replace(path)

    def prune(self) -> None:
        """Forget the oldest entries beyond a bound."""
        entries = [*self._root.glob("??/*.json"), *self._root.glob("??/*.lock")]
        if len(entries) > _KEEP:
            with contextlib.suppress(OSError):
                for path in sorted(entries, key=lambda path: path.stat().st_mtime)[: len(entries) - _KEEP]:
                    path.unlink(missing_ok=True)


class VerdictCache(_Kept):
    """Cases that passed.

    Args:
        root: The cache's folder.
        keys: See ``_Kept``.
    """

    def __init__(self, root: Path, *, keys: ResultKeys | None = None) -> None:
        super().__init__(root / "verdicts", keys=keys)

    def has(self, kernel: KernelSpec, case: JobCase) -> bool:
        """Whether the case is known to pass."""
        data = self._read(kernel, case)
        try:
            return data is not None and bool(json.loads(data) == {"status": "passed"})
        except ValueError:
            return False

    def add(self, kernel: KernelSpec, case: JobCase) -> None:
        """Note that a case passed."""
        self._write(kernel, case, '{"status": "passed"}')


class SimulationCache(_Kept):
    """What calls did in which nothing wrong was found.

    Args:
        root: The cache's folder.
        keys: See ``_Kept``.
    """

    def __init__(self, root: Path, *, keys: ResultKeys | None = None) -> None:
        super().__init__(root / "simulations", keys=keys)

    def get(self, kernel: KernelSpec, case: JobCase) -> SimulationResult | None:
        """What a case did, if that is known."""
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
        """A file to lock while a case is simulated, so that two processes do not do the same."""
        path = self._path(kernel, case).with_suffix(".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def add(self, kernel: KernelSpec, done: SimulationResult) -> None:
        """Keep what a case did, if it passed."""
        if done.status == "passed" and done.call is not None:
            self._write(kernel, done.case, done.call.model_dump_json())
