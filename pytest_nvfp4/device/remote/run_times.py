"""Seconds that batches took on a remote in earlier sessions, from which the next session's are estimated.

A time is kept by what is likely to determine it (kernel file, cases, rounds), not by the kernel's content, so that an
edited kernel has one; and by the action alone, for a kernel that never ran.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from pytest_nvfp4.device.remote.base import Batch
from pytest_nvfp4.toolchain.cache import content_key
from pytest_nvfp4.toolchain.sealed_files import SealedFiles

_NAME = "remote-times"
_MOST_S = 7 * 86_400.0
_MAX_AGE_S = 90 * 86_400.0


class RunTimes:
    """Times of one remote and GPU.

    Args:
        sealed: The sealed files of the cache folder.
        remote: Name of the remote, with everything that its times depend on.
    """

    def __init__(self, sealed: SealedFiles, *, remote: str) -> None:
        self._sealed = sealed
        self._remote = remote

    def add(self, batch: Batch, seconds: float) -> None:
        """Keep the time of a batch. A full or read-only disk is ignored."""
        if 0 <= seconds <= _MOST_S:
            for what, share in ((_described(batch), seconds), (_actions(batch), seconds / len(batch.jobs))):
                key = self._key(what)
                with contextlib.suppress(OSError):
                    path = self._sealed.folder / _NAME / f"{key}.txt"
                    self._sealed.write(path, f"{share:.3f}".encode(), cache=_NAME, key=key)

    def prune(self) -> None:
        """Delete times that no session has renewed for long."""
        with contextlib.suppress(OSError):
            for path in (self._sealed.folder / _NAME).iterdir():
                if time.time() - path.stat().st_mtime > _MAX_AGE_S:
                    path.unlink(missing_ok=True)

    def same(self, batch: Batch) -> float | None:
        """Return the seconds that this batch took when it ran last, possibly with another version of the kernel."""
        return self._read(_described(batch))

    def similar(self, batch: Batch) -> float | None:
        """Return the seconds that jobs of these actions took last, for as many jobs; None if none has run."""
        share = self._read(_actions(batch))
        return None if share is None else share * len(batch.jobs)

    def _key(self, what: Any) -> str:
        return content_key({"remote": self._remote, "times of": what})

    def _read(self, what: Any) -> float | None:
        key = self._key(what)
        data = self._sealed.read(self._sealed.folder / _NAME / f"{key}.txt", cache=_NAME, key=key)
        return None if data is None else float(data)  # sealed: this class wrote it


def _described(batch: Batch) -> list[Any]:
    jobs = [
        [
            job.action,
            None if job.kernel is None else [job.kernel.main, job.kernel.arch],
            [case.model_dump(mode="json") for case in job.cases],
            job.timing.rounds if job.action == "benchmark" else 0,
        ]
        for job in batch.jobs
    ]
    return [jobs, batch.blocks]


def _actions(batch: Batch) -> list[str]:
    return sorted({job.action for job in batch.jobs})
