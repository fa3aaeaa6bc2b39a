"""Caches of simulated verdicts and calls, and of modelled times.

The simulator is deterministic, so a case that passed passes again until something that it depends on changes: the
kernel's files and options, the case, this package's code, or what surrounds a worker (`toolchain.surroundings`). Only
cases that passed are cached; others run again, so that their findings can be shown in full.

A verification draws some inputs and the order of calls. A cached verdict is that of the inputs that were drawn then,
whose seed it records; ``--nvfp4-fresh`` draws anew. The seed is no part of the key, or nothing would ever be found.
"""

from __future__ import annotations

import contextlib
import json
import os
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ValidationError

from pytest_nvfp4.device.job import JobCase, KernelSpec
from pytest_nvfp4.device.modelled import ModelledCall
from pytest_nvfp4.device.result import SimulatedCall
from pytest_nvfp4.device.simulate import SimulationResult
from pytest_nvfp4.temporary import remove_unfinished
from pytest_nvfp4.toolchain.cache import RESULTS, content_key
from pytest_nvfp4.toolchain.code_hash import ASKING, code_hash, parts_without
from pytest_nvfp4.toolchain.sealed_files import SealedFiles
from pytest_nvfp4.toolchain.surroundings import surroundings

_DISTRIBUTIONS = ("numpy", "torch", "triton", "nvidia-cutlass-dsl", "pydantic", "ml_dtypes")
_MOST_ENTRIES = 20_000


class ResultKeys:
    """Cache keys, computed from everything that determines a simulation.

    This package's code is hashed once per instance, so the caches of a run share one.
    """

    @cached_property
    def _shared(self) -> dict[str, object]:
        return {"code": code_hash(parts_without(*ASKING)), "surroundings": surroundings(_DISTRIBUTIONS)}

    def key(self, kernel: KernelSpec, case: JobCase) -> str:
        """Return the key of a kernel and a case."""
        parts: dict[str, Any] = {
            **self._shared,
            # All of its fields count, those that a later version adds included; its files count by their hash.
            "kernel": [kernel.sha256, kernel.model_dump(mode="json", exclude={"files"})],
            "case": case.model_dump_json(),
        }
        return content_key(parts)


class _ResultCache:
    """A cache of small files, one for each kernel and case. An entry appears by one rename.

    Args:
        sealed: The sealed files of the cache folder.
        name: Name of the cache, which everything is part of that determines a result and is not in the key.
        keys: Cache keys, shared with other caches.
    """

    _NAME: ClassVar[str]

    def __init__(self, sealed: SealedFiles, *, name: str | None = None, keys: ResultKeys | None = None) -> None:
        self._sealed = sealed
        self._name = name or self._NAME
        self._root = sealed.folder / RESULTS / self._name
        self._keys = keys or ResultKeys()

    def _place(self, kernel: KernelSpec, case: JobCase) -> tuple[str, Path]:
        """Return the key and the file of an entry."""
        key = self._keys.key(kernel, case)
        return key, self._root / key[:2] / f"{key}.json"

    def _read(self, kernel: KernelSpec, case: JobCase) -> bytes | None:
        key, path = self._place(kernel, case)
        data = self._sealed.read(path, cache=self._name, key=key)
        if data is not None:
            with contextlib.suppress(OSError):
                os.utime(path)
        return data

    def _write(self, kernel: KernelSpec, case: JobCase, text: str) -> None:
        """Write an entry. A full or read-only disk is no error: the case is simulated again next time."""
        key, path = self._place(kernel, case)
        with contextlib.suppress(OSError):
            self._sealed.write(path, text.encode(), cache=self._name, key=key)

    def prune(self) -> None:
        """Remove the least recently used entries beyond a limit, and what killed processes left."""
        for folder in self._root.glob("??"):
            remove_unfinished(folder)
        entries = [*self._root.glob("??/*.json"), *self._root.glob("??/*.lock")]
        if len(entries) > _MOST_ENTRIES:
            with contextlib.suppress(OSError):
                for path in sorted(entries, key=lambda path: path.stat().st_mtime)[: len(entries) - _MOST_ENTRIES]:
                    path.unlink(missing_ok=True)


class VerdictCache(_ResultCache):
    """Cache of cases that passed. For the arguments see ``_ResultCache``."""

    _NAME = "verdicts"

    def has(self, kernel: KernelSpec, case: JobCase) -> bool:
        """Return whether a case is known to pass."""
        return self._read(kernel, case) is not None

    def add(self, kernel: KernelSpec, case: JobCase, *, order_seed: int | None = None) -> None:
        """Record that a case passed, with the seed of what was drawn for it."""
        self._write(kernel, case, json.dumps({"status": "passed", "order_seed": order_seed}))


class SimulationCache(_ResultCache):
    """Cache of simulated calls without errors. For the arguments see ``_ResultCache``."""

    _NAME = "simulations"

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
        return self._place(kernel, case)[1].with_suffix(".lock")

    def add(self, kernel: KernelSpec, done: SimulationResult) -> None:
        """Store the simulation of a case, if it passed."""
        if done.status == "passed" and done.call is not None:
            self._write(kernel, done.case, done.call.model_dump_json())


class ModelledCache(_ResultCache):
    """Cache of modelled calls; its name has the device's table and the conditions. See also ``_ResultCache``."""

    _NAME = "modelled"

    def get(self, kernel: KernelSpec, case: JobCase) -> ModelledCall | None:
        """Return the modelled call of a case, None on a cache miss."""
        data = self._read(kernel, case)
        try:
            return None if data is None else ModelledCall.model_validate_json(data)
        except ValidationError:
            return None

    def add(self, kernel: KernelSpec, case: JobCase, call: ModelledCall) -> None:
        """Store the modelled call of a case."""
        self._write(kernel, case, call.model_dump_json())
