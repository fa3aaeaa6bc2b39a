"""Check of what a remote returns: a result that fits the batch that was sent, or an error."""

from __future__ import annotations

from pytest_nvfp4.device.answer import check_result
from pytest_nvfp4.device.remote.base import Batch, BatchResult, Remote, RemoteCall, RemoteError
from pytest_nvfp4.device.remote.cache import with_draws
from pytest_nvfp4.device.remote.call_store import StoredCall
from pytest_nvfp4.device.remote.request import BatchRequest


def received(
    remote: Remote, request: BatchRequest, ended: RemoteCall, stored: StoredCall | None
) -> tuple[BatchResult | None, RemoteError | None]:
    """Return the result of a request's batch, or the error that ended it.

    Args:
        remote: The remote.
        request: The request.
        ended: The end of its batch, as the remote reports it.
        stored: The call of an earlier session that ran the batch, if one did.
    """
    result = ended.result
    if result is None:
        nothing = RemoteError("lost", "the remote returned neither a result nor an error", "run it again")
        return None, ended.error or nothing
    if stored is not None:
        result = stored.renamed(result, request.remaining)
    if result.batch != request.batch.id or len(result.results) != len(request.remaining.jobs):
        return None, RemoteError("lost", "the result belongs to another batch", "run it again")
    asked = with_actual_draws(request.remaining, remote)
    results = [
        check_result(job, one, source="the result of the remote")
        for job, one in zip(asked.jobs, result.results, strict=True)
    ]
    return result.model_copy(update={"results": tuple(results)}), None


def with_actual_draws(batch: Batch, remote: Remote) -> Batch:
    """Return the batch with the draws that it ran with, which may be another process's (see `broker`)."""
    draws = getattr(remote, "draws", {}).get(batch.id)
    if draws is None:
        return batch
    return batch.model_copy(update={"jobs": tuple(map(with_draws, batch.jobs, draws))})
