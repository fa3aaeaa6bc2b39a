"""What our client hears from the server and tells nobody: names of calls, where they ran, why they failed.

Modal's client names a call to its caller once it was sent, and the call of a stream never; who is interrupted while
something is under way would leave it to the call's own time limit, on a GPU that nobody needs. So we listen to what
the server answers when a call begins. A call that is being sent is sent again with its first idempotency key while
the connection is broken, so that it is neither lost nor there twice.

Listened to are our own clients and no others, at an attribute that is internal to Modal's client. One that has it
elsewhere is used all the same; then it is as if nothing had been heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass
from typing import Any

from pytest_nvfp4.device.remote.modal import patience

_TURN_S = 0.01


@dataclass(frozen=True, slots=True)
class Ran:
    """Where a call ran, and for how many seconds, by the server's clock."""

    container: str
    seconds: float


class Overheard:
    """Calls that were begun and have not ended, and where those ran that ended. Only what this process sent is here.

    Args:
        most_s: Seconds that a call may take to be sent, where the server asks for patience again and again.
    """

    def __init__(self, *, most_s: float = 900.0) -> None:
        self._most_s = most_s
        self._lock = threading.Lock()
        self._open: dict[str, str] = {}
        self._ran: dict[str, Ran] = {}
        self._sending = 0

    def open(self, *, method: str | None = None) -> list[str]:
        """Names of calls, oldest first; those of one method where one is given."""
        with self._lock:
            return [name for name, of in self._open.items() if method in (None, of)]

    def begin(self, name: str, method: str) -> None:
        """A call was begun."""
        with self._lock:
            self._open[name] = method

    def ended(self, name: str) -> Ran | None:
        """A call has ended, or was cancelled. Where it ran, if the server said so."""
        with self._lock:
            self._open.pop(name, None)
            return self._ran.pop(name, None)

    def take(self, name: str) -> str | None:
        """Who cancels a call takes it first, so that nobody else does. Its method; None where it is not open."""
        with self._lock:
            return self._open.pop(name, None)

    async def sent(self, *, timeout_s: float) -> bool:
        """Wait until nothing is being sent any more; whether that came to pass."""
        until = time.monotonic() + timeout_s
        while self._sending:
            if time.monotonic() >= until:
                return False
            await asyncio.sleep(_TURN_S)
        return True

    def listen(self, client: Any) -> None:
        """Hear what is answered to a client."""
        with contextlib.suppress(ImportError, AttributeError, TypeError):
            from modal._utils.async_utils import synchronizer
            from modal._utils.grpc_utils import Retry

            stub: Any = synchronizer._translate_in(client)._stub  # type: ignore[no-untyped-call]
            send, get = stub.FunctionMap, stub.FunctionGetOutputs
            patient = Retry(max_retries=max(3, round(patience.OUTAGE_S)), total_timeout=self._most_s)

            async def map_and_tell(request: Any, **more: Any) -> Any:
                with self._lock:
                    self._sending += 1
                answering = asyncio.ensure_future(send(request, **{"retry": patient, **more}))
                answering.add_done_callback(lambda done: self._begun(request, done))
                # Who is interrupted here waits no longer, but the name of what was sent is still heard.
                return await asyncio.shield(answering)

            async def get_and_tell(request: Any, **more: Any) -> Any:
                answer = await get(request, **more)
                for item in answer.outputs:
                    self._came(request.function_call_id, item)
                return answer

            stub.FunctionMap, stub.FunctionGetOutputs = map_and_tell, get_and_tell

    def _begun(self, request: Any, done: asyncio.Future[Any]) -> None:
        name = "" if done.cancelled() or done.exception() is not None else done.result().function_call_id
        inputs = request.pipelined_inputs
        with self._lock:
            self._sending -= 1
            if name:
                self._open[name] = inputs[0].input.method_name if inputs else ""

    def _came(self, name: str, item: Any) -> None:
        if item.task_id:
            with self._lock:
                self._ran[name] = Ran(item.task_id, max(0.0, item.output_created_at - item.input_started_at))
        if item.result.status != item.result.GENERIC_STATUS_SUCCESS:
            _in_words(item.result)


def _in_words(result: Any) -> None:
    """Let a failure say what it is: its text with its status, and no pickle in place of the text.

    Of a container that does not start Modal passes the exception on as a pickle; no pickle is opened here
    (``no_pickle``), and its text is beside it.
    """
    from modal_proto import api_pb2

    number = result.status
    names = {value: key for key, value in api_pb2.GenericResult.GenericStatus.items()}
    status = names.get(number, f"status {number}").removeprefix("GENERIC_STATUS_")
    text = result.exception or result.traceback.strip().rpartition("\n")[2] or "no reason was given"
    result.ClearField("data")
    result.ClearField("data_blob_id")
    result.exception = text if status == "FAILURE" else f"{text} [{status}]"


def keep_to_calls(function: Any) -> None:
    """Let a function's stream be a call, which has a name, also where the server offers attempts, which have none."""
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        from modal._utils.async_utils import synchronizer

        own: Any = synchronizer._translate_in(function)  # type: ignore[no-untyped-call]
        if own._input_plane_url:
            own._input_plane_url = None
