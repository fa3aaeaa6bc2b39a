"""What was paid for, on disk: results, calls that may still end, and times; of earlier sessions and of this one."""

from __future__ import annotations

import time
from collections.abc import Iterable

from pytest_nvfp4.device.remote.base import BatchResult, Remote, ResumableRemote
from pytest_nvfp4.device.remote.cache import RemoteResultCache
from pytest_nvfp4.device.remote.call_store import CallStore
from pytest_nvfp4.device.remote.request import BatchRequest
from pytest_nvfp4.device.remote.run_times import RunTimes


class PaidWork:
    """Results, calls and times of one remote and GPU.

    Args:
        remote: The remote; its calls are stored if it can wait for them again.
        cache: Cache of the results; None for none.
        times: Where the times of batches are kept; None for nowhere.
        reuse: Whether what earlier sessions paid for is used instead of submitting a batch.
    """

    def __init__(self, remote: Remote, *, cache: RemoteResultCache | None, times: RunTimes | None, reuse: bool) -> None:
        self._cache = cache
        self._calls = CallStore(cache) if cache is not None and isinstance(remote, ResumableRemote) else None
        if self._calls is not None and isinstance(remote, ResumableRemote):
            calls, made_by = self._calls, remote
            remote.on_call = lambda batch, call: calls.add(batch, call, where=made_by.where)
        self._times = times
        self._reuse = reuse

    def use(self, request: BatchRequest) -> BatchResult | None:
        """Give a request what is there, and return its result if that is all; otherwise its call may be known."""
        hits = self._cache.get(request.batch) if self._cache is not None and self._reuse else {}
        if hits:
            request.use_cached(hits)
        if len(hits) < len(request.batch.jobs):
            if self._calls is not None and self._reuse and (stored := self._calls.get(request.remaining)) is not None:
                request.use_stored(stored)
            return None
        place = hits[len(hits) - 1].place
        return BatchResult(batch=request.batch.id, results=request.combined(()), place=place)

    def returned(self, request: BatchRequest, result: BatchResult, *, timed: bool) -> None:
        """Store the result of a request, even if no thread waits for it any more, and its time if it was seen."""
        if self._cache is not None:
            self._cache.add(request.remaining, result)
        if self._times is not None and timed:
            passed_s = max(0.0, time.monotonic() - request.sent_at)  # the container reports the other number
            self._times.add(request.remaining, min(result.busy_s, passed_s))

    def forget(self, requests: Iterable[BatchRequest]) -> None:
        """Remove the stored calls of requests, which have ended."""
        if self._calls is not None:
            for request in requests:
                self._calls.remove(request.remaining)

    def close(self) -> None:
        """Give the calls that have not ended to later sessions."""
        if self._calls is not None:
            self._calls.close()
