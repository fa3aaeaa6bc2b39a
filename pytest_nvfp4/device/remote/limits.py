"""Limits of a session: its cost, and the time without a result."""

from __future__ import annotations

from pytest_nvfp4.device.remote.base import Cost, Remote, RemoteError, dollars


def cost_error(cost: Cost, most: float | None, *, limit: str = "--nvfp4-remote-max-cost") -> RemoteError | None:
    """Return the error of a session that has cost too many US dollars; None below the limit, or without one.

    Args:
        cost: The cost so far.
        most: The limit in US dollars; None for none.
        limit: What sets the limit.
    """
    if most is None or cost.usd is None or cost.usd < most:  # a cost that is no number is not below the limit
        return None
    return RemoteError(
        "cost",
        f"the session has cost about {dollars(cost.usd)}, and {limit} is {dollars(most)}: "
        "the open batches were cancelled",
        "raise the limit and run again with --nvfp4-resume; received results are cached",
    )


def timeout_error(remote: Remote, timeout_s: float) -> RemoteError:
    """Return the error of batches without a result, by what the remote says about itself."""
    timeout = f"no result arrived within {timeout_s:.0f} s (--nvfp4-remote-timeout)"
    try:
        status = remote.status()
    except RemoteError as error:
        return RemoteError(error.kind, f"{timeout}: {error.problem}", error.remedy)
    if not status.reachable:
        return RemoteError("network", f"{timeout}, and {status.summary}", "check the network and run again")
    if status.containers == 0:
        return RemoteError(
            "capacity",
            f"{timeout}: no container was started ({status.summary})",
            "the GPU may be out of stock: try again later, raise the timeout, or choose another --nvfp4-gpu",
        )
    return RemoteError(
        "timeout",
        f"{timeout} although containers are running ({status.summary})",
        "raise the timeout, or check the kernel: its own limit is --nvfp4-device-timeout",
    )
