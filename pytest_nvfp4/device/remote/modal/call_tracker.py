"""Tracker of calls from the server's responses: their names, where they ran, and why they failed.

Modal's client reports the name of a call only after it was sent, and never that of a stream's call. An interrupt during
the sending would leave the call to its own time limit, on a GPU that is not needed. So the tracker reads the server's
response to the start of a call. While the connection is broken, a call is sent again with its first idempotency key, so
that it is neither lost nor started twice.

Only clients of this package are tracked, at an attribute that is internal to Modal's client (1.5 and 1.6). A client
without it is used untracked: calls then appear only when the caller reports them with `started`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass
from typing import Any

from pytest_nvfp4.device.remote.modal import timeouts
from pytest_nvfp4.device.remote.modal.requests import inside

_POLL_S = 0.01
_MOST_SECONDS = 1e7


@dataclass(frozen=True, slots=True)
class CallRun:
    """Container that ran a call, and its seconds by the server's clock."""

    container: str
    seconds: float


class CallTracker:
    """Open calls of this process, and where ended calls ran.

    Args:
        send_timeout_s: Timeout in seconds for sending a call while the server keeps asking for retries.
    """

    def __init__(self, *, send_timeout_s: float = 900.0) -> None:
        self._send_timeout_s = send_timeout_s
        self._lock = threading.Lock()
        self._open: dict[str, str] = {}
        self._runs: dict[str, CallRun] = {}
        self._sending = 0

    def open(self, *, method: str | None = None) -> list[str]:
        """Return the names of open calls, oldest first; of one method if it is given."""
        with self._lock:
            return [name for name, called in self._open.items() if method in (None, called)]

    def started(self, name: str, method: str) -> None:
        """Record the start of a call."""
        with self._lock:
            self._open[name] = method

    def ended(self, name: str) -> CallRun | None:
        """Record the end of a call, and return where it ran if the server reported it."""
        with self._lock:
            self._open.pop(name, None)
            return self._runs.pop(name, None)

    def take(self, name: str) -> str | None:
        """Remove a call in order to cancel it, so that no other thread does; return its method, or None if unknown."""
        with self._lock:
            return self._open.pop(name, None)

    async def wait_sent(self, *, timeout_s: float) -> bool:
        """Wait until no call is being sent; return False after the timeout."""
        until = time.monotonic() + timeout_s
        while self._sending:
            if time.monotonic() >= until:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def attach(self, client: Any) -> None:
        """Track the calls of a client."""
        with contextlib.suppress(ImportError, AttributeError, TypeError):
            from modal._utils.grpc_utils import Retry

            stub: Any = inside(client)._stub
            send, get = stub.FunctionMap, stub.FunctionGetOutputs
            # By default the client (1.6) retries 3 times, with delays of 0.1 s that double up to 1 s: less than a short
            # outage. One retry per second of OUTAGE_S lasts about as long as it.
            retry = Retry(max_retries=max(3, round(timeouts.OUTAGE_S)), total_timeout=self._send_timeout_s)

            async def tracked_map(request: Any, **more: Any) -> Any:
                with self._lock:
                    self._sending += 1
                response = asyncio.ensure_future(send(request, **{"retry": retry, **more}))
                response.add_done_callback(lambda done: self._sent(request, done))
                # An interrupted caller stops waiting, but the name of the call is still recorded.
                return await asyncio.shield(response)

            async def tracked_outputs(request: Any, **more: Any) -> Any:
                response = await get(request, **more)
                for item in response.outputs:
                    self._received(request.function_call_id, item)
                return response

            stub.FunctionMap, stub.FunctionGetOutputs = tracked_map, tracked_outputs

    def _sent(self, request: Any, done: asyncio.Future[Any]) -> None:
        name = "" if done.cancelled() or done.exception() is not None else done.result().function_call_id
        inputs = request.pipelined_inputs
        with self._lock:
            self._sending -= 1
            if name:
                self._open[name] = inputs[0].input.method_name if inputs else ""

    def _received(self, name: str, item: Any) -> None:
        if item.task_id:
            with self._lock:
                seconds = item.output_created_at - item.input_started_at
                self._runs[name] = CallRun(item.task_id, seconds if 0 <= seconds < _MOST_SECONDS else 0.0)
        if item.result.status != item.result.GENERIC_STATUS_SUCCESS:
            _replace_pickle(item.result)


def _replace_pickle(result: Any) -> None:
    """Replace the pickle in a failure by its text and status.

    Modal returns the exception of a container that does not start as a pickle. No pickle is opened here (see
    `no_pickle`), and the failure has its text too.
    """
    from modal_proto import api_pb2

    number = result.status
    names = {value: key for key, value in api_pb2.GenericResult.GenericStatus.items()}
    status = names.get(number, f"status {number}").removeprefix("GENERIC_STATUS_")
    text = result.exception or result.traceback.strip().rpartition("\n")[2] or "no reason was given"
    result.ClearField("data")
    result.ClearField("data_blob_id")
    result.exception = text if status == "FAILURE" else f"{text} [{status}]"


def disable_attempts(function: Any) -> None:
    """Make a function's stream a call, which has a name, even if the server offers attempts, which have none."""
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        inner: Any = inside(function)
        if inner._input_plane_url:
            inner._input_plane_url = None
