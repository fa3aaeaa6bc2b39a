"""Cache of the results of remotes on disk, written as they arrive, so that nothing is paid for twice.

An entry is the result of one job on one kind of device. It is used only if the user requests that (``--lf``,
``--nvfp4-resume``), and only if kernel, case, method of measurement, remote, GPU and this package's code are the same.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pytest_nvfp4.device.answer import is_refused
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.base import Batch, BatchResult, Place, RemoteError
from pytest_nvfp4.device.remote.schedule import compared
from pytest_nvfp4.device.remote.serialization import pack_result, unpack_result
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.toolchain.cache import content_key
from pytest_nvfp4.toolchain.code_hash import code_hash
from pytest_nvfp4.toolchain.sealed_files import SealedFiles

_NAME = "remote"
_CACHED_STATUS = frozenset({"passed", "failed", "error", "cheated"})
"""Outcomes of the kernel itself. Timeouts, crashes and missing devices may be the remote's fault and are retried."""
_PARTS = (
    *("problem.py", "contracts", "numerics", "isolation", "toolchain", "host"),
    *("device/worker", "device/assemble.py", "device/job.py", "device/rotation.py", "device/batch.py"),
)
"""Parts of this package that determine the result of a job; those that judge it are not among them."""
_MAX_BYTES = 1 << 30
_MAX_AGE_S = 7 * 24 * 3600.0


class Draws(NamedTuple):
    """Random draws of a job, which its kernel cannot predict."""

    order_seed: int
    row_key: int


@dataclass(frozen=True, slots=True)
class CachedResult:
    """Result of an earlier session: the job with the draws that it ran with, its result, and where it ran."""

    job: Job
    result: Result
    place: Place


class RemoteResultCache:
    """Cache of one remote and GPU.

    Args:
        sealed: The sealed files of the cache folder.
        remote: Name of the remote, with everything that its results depend on (target, GPU).

    Attributes:
        sealed: The sealed files.
    """

    def __init__(self, sealed: SealedFiles, *, remote: str) -> None:
        self.sealed = sealed
        self._root = sealed.folder / _NAME
        self._remote = remote

    @cached_property
    def scope(self) -> dict[str, str]:
        """What all results here depend on: the remote, and this package's code."""
        return {"remote": self._remote, "code": code_hash(_PARTS)}

    def _place(self, job: Job, batch: Batch) -> tuple[str, Path]:
        """Return the key and the file of an entry."""
        key = content_key({**self.scope, **cache_fields(job, batch)})
        return key, self._root / key[:2] / f"{key}.json"

    def get(self, batch: Batch) -> dict[int, CachedResult]:
        """Return the cached results of a batch, by the index of the job.

        Of compared jobs all are returned or none, because a new measurement needs new ones to be compared with.
        """
        hits = {}
        for index, job in enumerate(batch.jobs):
            if (entry := self._read(*self._place(job, batch))) is not None:
                draws, stored = entry
                result = stored.results[0].model_copy(update={"job": job.id})
                hits[index] = CachedResult(with_draws(job, draws), result, stored.place)
        missing = [job for index, job in enumerate(batch.jobs) if index not in hits]
        return {
            index: hit
            for index, hit in hits.items()
            if not any(compared(batch.jobs[index], other, batch) for other in missing)
        }

    def _read(self, key: str, path: Path) -> tuple[Draws, BatchResult] | None:
        data = self.sealed.read(path, cache=_NAME, key=key)
        if data is None:
            return None
        try:
            head, _, text = data.decode().partition("\n")
            order_seed, row_key, written = map(int, head.split())
            stored = unpack_result(text)
        except (ValueError, RemoteError):
            return None
        if len(stored.results) != 1 or time.time() - written > _MAX_AGE_S:
            return None
        return Draws(order_seed, row_key), stored

    def add(self, batch: Batch, result: BatchResult) -> None:
        """Store the results of a batch. A full or read-only disk is ignored."""
        for job, job_result in zip(batch.jobs, result.results, strict=False):
            if job_result.status in _CACHED_STATUS and not is_refused(job_result):
                entry = BatchResult(batch=batch.id, results=(job_result,), place=result.place)
                with contextlib.suppress(OSError):
                    head = " ".join(map(str, (*draws_of(job), int(time.time()))))
                    key, path = self._place(job, batch)
                    self.sealed.write(path, f"{head}\n{pack_result(entry)}".encode(), cache=_NAME, key=key)

    def prune(self) -> None:
        """Delete the oldest entries above the size limit, and those that are too old to be used."""
        with contextlib.suppress(OSError):
            entries = sorted(
                ((path.stat().st_mtime, path.stat().st_size, path) for path in self._root.glob("??/*.json")),
                reverse=True,
            )
            total, now = 0, time.time()
            for written, size, path in entries:
                total += size
                if total > _MAX_BYTES or now - written > _MAX_AGE_S:
                    path.unlink(missing_ok=True)


def draws_of(job: Job) -> Draws:
    """Return the random draws of a job."""
    return Draws(job.order_seed, job.row_key)


def with_draws(job: Job, draws: Draws) -> Job:
    """Return the job with other draws."""
    return job.model_copy(update=draws._asdict())


def cache_fields(job: Job, batch: Batch | None = None) -> dict[str, Any]:
    """Return the fields of a job that determine its result, as JSON data.

    Identifier, deadline and draws are left out (the draws count if the batch is ``exact``). Other jobs of the batch
    count only if their blocks alternate with those of this job.
    """
    own = job.model_dump(mode="json", exclude={"id", "order_seed", "row_key", "deadline_s", "memory_bytes"})
    if job.kernel is not None:
        own["kernel"] = [job.kernel.sha256, job.kernel.model_dump(mode="json", exclude={"files"})]
    fields: dict[str, Any] = {"job": own}
    if batch is not None:
        fields["capability"] = batch.capability
        if batch.exact:
            fields["draws"] = draws_of(job)
        if batch.blocks > 1 and job.action == "benchmark":
            rivals = [other for other in batch.jobs if other is not job and compared(job, other, batch)]
            fields["with"] = sorted(json.dumps(cache_fields(other)) for other in rivals)
            fields["blocks"] = batch.blocks
    return fields
