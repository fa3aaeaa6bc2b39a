"""Which calls our client has begun, by Modal's names for them, so that each of them can be cancelled.

Modal's client names a call to its caller once it was sent, and the call of a stream never; who is interrupted while
something is under way would leave it to the call's own time limit, on a GPU that nobody needs. So we listen to what
the server answers when a call begins. A call that is being sent is sent again with its first idempotency key while
the connection is broken, so that it is neither lost nor there twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

from pytest_nvfp4.device.remote.modal import patience

_TURN_S = 0.01


class Begun:
    """Calls that were begun and have not ended. Only what this process sent is here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, str] = {}
        self._sending = 0

    def open(self, *, method: str | None = None) -> list[str]:
        """Names of calls, oldest first; those of one method where one is given."""
        with self._lock:
            return [name for name, of in self._open.items() if method in (None, of)]

    def ended(self, name: str) -> None:
        """A call has ended, or was cancelled."""
        with self._lock:
            self._open.pop(name, None)

    async def sent(self, *, timeout_s: float) -> bool:
        """Wait until nothing is being sent any more; whether that came to pass."""
        until = time.monotonic() + timeout_s
        while self._sending:
            if time.monotonic() >= until:
                return False
            await asyncio.sleep(_TURN_S)
        return True

    def listen(self, client: Any) -> None:
        """Hear of the calls of a client. One whose inside is another is left alone: its streams have no names then."""
        with contextlib.suppress(ImportError, AttributeError, TypeError):
            from modal._utils.async_utils import synchronizer
            from modal._utils.grpc_utils import Retry

            stub: Any = synchronizer._translate_in(client)._stub  # type: ignore[no-untyped-call]
            send = stub.FunctionMap

            async def map_and_tell(request: Any, **more: Any) -> Any:
                more.setdefault("retry", Retry(max_retries=max(3, round(patience.OUTAGE_S))))
                with self._lock:
                    self._sending += 1
                answering = asyncio.ensure_future(send(request, **more))
                answering.add_done_callback(lambda done: self._heard(request, done))
                # Who is interrupted here waits no longer, but the name of what was sent is still heard.
                return await asyncio.shield(answering)

            stub.FunctionMap = map_and_tell

    def _heard(self, request: Any, done: asyncio.Future[Any]) -> None:
        name = "" if done.cancelled() or done.exception() is not None else done.result().function_call_id
        inputs = request.pipelined_inputs
        with self._lock:
            self._sending -= 1
            if name:
                self._open[name] = inputs[0].input.method_name if inputs else ""


def keep_to_calls(function: Any) -> None:
    """Let a function's stream be a call, which has a name, also where the server offers attempts, which have none."""
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        from modal._utils.async_utils import synchronizer

        own: Any = synchronizer._translate_in(function)  # type: ignore[no-untyped-call]
        if own._input_plane_url:
            own._input_plane_url = None
