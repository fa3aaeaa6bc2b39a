"""Identifiers of calls on disk, written as the calls are made, so that a later session can fetch what they return.

The results of calls that end while no session listens (after a cut, or a killed process) are on the server and paid
for. An entry names the call of one batch, the draws of its jobs, and the session that made it. A session holds a lock
for as long as its process lives: the calls of a live session are left to it.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_nvfp4.device.remote.base import Batch, BatchResult
from pytest_nvfp4.device.remote.cache import Draws, RemoteResultCache, cache_fields, draws_of, with_draws
from pytest_nvfp4.toolchain.cache import content_key

_NAME = "remote-calls"
_MAX_AGE_S = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class StoredCall:
    """A call that an earlier session made.

    Attributes:
        id: The remote's identifier of the call.
        where: What the session used there; see `Remote`.
        batch: Identifier of its batch.
        jobs: Identifiers of its jobs.
        draws: Draws of its jobs.
    """

    id: str
    where: str
    batch: str
    jobs: tuple[str, ...]
    draws: tuple[Draws, ...]

    def drawn(self, batch: Batch) -> Batch:
        """Return the batch with the draws that the call runs with."""
        return batch.model_copy(update={"jobs": tuple(map(with_draws, batch.jobs, self.draws))})

    def renamed(self, result: BatchResult, batch: Batch) -> BatchResult:
        """Return the call's result as that of this session's batch; unchanged if it is not the call's."""
        if result.batch != self.batch or tuple(one.job for one in result.results) != self.jobs:
            return result
        results = (one.model_copy(update={"job": job.id}) for one, job in zip(result.results, batch.jobs, strict=True))
        return result.model_copy(update={"batch": batch.id, "results": tuple(results)})


class CallStore:
    """Calls of one remote and GPU.

    Args:
        cache: Cache of the remote's results, whose folder and scope the calls share.
    """

    def __init__(self, cache: RemoteResultCache) -> None:
        self._cache = cache
        self._folder = cache.sealed.folder / _NAME
        self._session = uuid.uuid4().hex
        self._lock: FileLock | None = None
        self._guard = threading.Lock()

    def get(self, batch: Batch) -> StoredCall | None:
        """Return the call of a batch; None if there is none, it is old, or its session is alive."""
        key, path = self._place(batch)
        data = self._cache.sealed.read(path, cache=_NAME, key=key)
        if data is None:
            return None
        entry = json.loads(data)  # sealed: this class wrote it
        if time.time() - entry["written"] > _MAX_AGE_S or self._is_alive(entry["session"]):
            return None
        draws = tuple(Draws(*draws) for draws in entry["draws"])
        return StoredCall(entry["call"], entry["where"], entry["batch"], tuple(entry["jobs"]), draws)

    def add(self, batch: Batch, call: str, *, where: str) -> None:
        """Store the call of a batch, and what the session uses there. A full or read-only disk is ignored."""
        key, path = self._place(batch)
        entry = {
            "call": call,
            "where": where,
            "batch": batch.id,
            "jobs": [job.id for job in batch.jobs],
            "draws": [draws_of(job) for job in batch.jobs],
            "session": self._session,
            "written": int(time.time()),
        }
        with contextlib.suppress(OSError):
            self._hold()
            self._cache.sealed.write(path, json.dumps(entry).encode(), cache=_NAME, key=key)

    def remove(self, batch: Batch) -> None:
        """Forget the call of a batch, which has ended."""
        with contextlib.suppress(OSError):
            self._place(batch)[1].unlink()

    def close(self) -> None:
        """Give this session's calls to later ones, and remove entries that are too old."""
        if self._lock is not None:
            self._lock.release()
            with contextlib.suppress(OSError):
                self._lock_file(self._session).unlink()
        with contextlib.suppress(OSError):
            for path in [*self._folder.iterdir()]:
                if time.time() - path.stat().st_mtime > _MAX_AGE_S:
                    path.unlink(missing_ok=True)

    def _place(self, batch: Batch) -> tuple[str, Path]:
        jobs = [cache_fields(job, batch) for job in batch.jobs]
        key = content_key({"call of": self._cache.scope, "jobs": jobs, "blocks": batch.blocks})
        return key, self._folder / f"{key}.json"

    def _hold(self) -> None:
        """Hold the lock of this session. Raises OSError."""
        with self._guard:  # calls are made in several threads
            if self._lock is None:
                self._cache.sealed.make_folder(self._folder)
                lock = FileLock(self._lock_file(self._session), thread_local=False)
                lock.acquire(timeout=0)
                self._lock = lock

    def _is_alive(self, session: str) -> bool:
        file = self._lock_file(session)
        try:
            if not file.is_file():
                return False
            with FileLock(file, timeout=0):
                return False
        except Timeout:
            return True
        except OSError:
            return False

    def _lock_file(self, session: str) -> Path:
        return self._folder / f"{session}.lock"
