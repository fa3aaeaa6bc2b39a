"""Broker: one process uses the remote for several. Test processes of xdist send it their batches over a Unix socket.

Two processes that request the same batch share one result, which is paid for once. The result is stored on disk for
the second process, so that a long run does not fill the memory of the first. Only the user may enter the folder of the
socket; messages are lines of JSON with batches and results as text (see `serialization`).
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pytest_nvfp4.device.remote.base import (
    Batch,
    BatchResult,
    Cost,
    RemoteCall,
    RemoteError,
    RemoteStatus,
    reported_error,
)
from pytest_nvfp4.device.remote.cache import Draws, cache_fields, draws_of
from pytest_nvfp4.device.remote.request import BatchRequest
from pytest_nvfp4.device.remote.serialization import pack_batch, pack_result, unpack_batch, unpack_result
from pytest_nvfp4.device.remote.session import RemoteSession
from pytest_nvfp4.isolation.door.fields import STRICT, Name
from pytest_nvfp4.isolation.door.json_values import Bounds
from pytest_nvfp4.isolation.door.models import parsed
from pytest_nvfp4.temporary import TemporaryFolder

_MOST_CHARACTERS = 2 << 30
_BOUNDS = Bounds(size=_MOST_CHARACTERS)
"""Bounds on a message, most of which is a result as text."""


class _Message(BaseModel):
    """A message: a batch to the broker; from it a result or an error, with the identifier of the batch."""

    model_config = ConfigDict(**STRICT, populate_by_name=True)

    batch: str = Field(default="", alias="for")
    content: str = ""
    result: str | None = None
    draws: tuple[Draws, ...] = ()
    kind: Name = ""
    problem: str = ""
    remedy: str = ""


class Broker:
    """Serves a session to other processes of this user.

    Args:
        session: The session; the first batch opens it.
    """

    def __init__(self, session: RemoteSession) -> None:
        self._session = session
        self._temporary = TemporaryFolder("broker")
        self._folder = self._temporary.path
        self.address = str(self._folder / "socket")
        self._lock = threading.Lock()
        self._requests: dict[str, _SharedRequest] = {}
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.address)
        self._socket.listen(64)
        threading.Thread(target=self._accept, name="nvfp4-broker", daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        with contextlib.suppress(OSError):
            self._socket.close()
        self._temporary.remove()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="nvfp4-broker", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Serve one process: request its batches, and send it the results as they arrive.

        Its requests continue after it ends, because another process may run the same item; the end of the whole run
        cancels the rest.
        """
        sending = threading.Lock()
        try:
            with connection, connection.makefile("r", encoding="utf-8") as lines:
                while line := lines.readline(_MOST_CHARACTERS):
                    batch = unpack_batch(_message(line).content)
                    threading.Thread(
                        target=_send_result,
                        args=(connection, sending, batch, self._request(batch)),
                        name="nvfp4-broker",
                        daemon=True,
                    ).start()
        except (OSError, ValueError, RemoteError):
            return

    def _request(self, batch: Batch) -> _SharedRequest:
        key = json.dumps([[cache_fields(job, batch) for job in batch.jobs], batch.blocks], sort_keys=True)
        with self._lock:
            shared = self._requests.get(key)
            if shared is None:
                (request,) = self._session.add([batch])
                shared = self._requests[key] = _SharedRequest(request, self._folder / f"result-{len(self._requests)}")
                return shared
        self._session.prioritize(shared.request)  # requested a second time: a process waits for it
        return shared


class _SharedRequest:
    """A request of several processes, and a file for its result."""

    def __init__(self, request: BatchRequest, file: Path) -> None:
        self.request = request
        self._file = file
        self._lock = threading.Lock()

    def wait(self) -> BatchResult:
        """Wait for the result. Raises RemoteError."""
        result = self.request.wait_or_released()
        with self._lock:
            if result is None:
                return unpack_result(self._file.read_text(encoding="utf-8"))
            with contextlib.suppress(OSError):  # on a full disk it stays in memory
                self._file.write_text(pack_result(result), encoding="utf-8")
                self.request.release()
            return result


def _send_result(connection: socket.socket, sending: threading.Lock, batch: Batch, shared: _SharedRequest) -> None:
    message: dict[str, Any]
    try:
        result = shared.wait()
        # It may be another process's, whose jobs have other names.
        named = tuple(
            one.model_copy(update={"job": job.id}) for job, one in zip(batch.jobs, result.results, strict=True)
        )
        message = {
            "result": pack_result(result.model_copy(update={"batch": batch.id, "results": named})),
            "draws": [draws_of(job) for job in shared.request.batch.jobs],
        }
    except RemoteError as error:
        message = {"kind": error.kind, "problem": error.problem, "remedy": error.remedy}
    except Exception as error:  # the other process waits for a message, whatever happened
        message = {"kind": "remote", "problem": f"the result failed: {type(error).__name__}: {error}", "remedy": ""}
    with contextlib.suppress(OSError), sending:
        connection.sendall((json.dumps({"for": batch.id, **message}) + "\n").encode())


class BrokerRemote:
    """Remote of a process that uses a broker.

    Args:
        address: Address of the broker.
        name: Name of the remote behind it.

    Attributes:
        draws: Draws with which the jobs of a batch ran, by the batch's identifier.
    """

    def __init__(self, address: str, *, name: str) -> None:
        self.name = name
        self.draws: dict[str, tuple[Draws, ...]] = {}
        self._address = address
        self._connection: socket.socket | None = None
        self._messages: queue.Queue[_Message | None] = queue.Queue()
        self._sending = threading.Lock()

    def describe(self) -> str:
        """Return a description of one line."""
        return f"{self.name}, through the controlling process"

    def submit(self, batches: Sequence[Batch]) -> list[RemoteCall]:
        """Send batches to the broker."""
        for batch in batches:
            self._send({"content": pack_batch(batch)})
        return [RemoteCall(batch, batch.id) for batch in batches]

    def collect(self, calls: Sequence[RemoteCall], *, timeout_s: float) -> Iterator[RemoteCall]:
        """Yield the results that the broker sent; see `Remote`."""
        by_id = {call.id: call for call in calls}
        until = time.monotonic() + timeout_s
        while True:
            try:
                message = self._messages.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            if message is None:
                raise _broker_ended()
            if (call := by_id.get(message.batch)) is not None:
                yield self._end_of(call, message)

    def _end_of(self, call: RemoteCall, message: _Message) -> RemoteCall:
        if message.result is None:
            return call.ended(error=reported_error(message.kind, message.problem, message.remedy))
        try:
            result = unpack_result(message.result)
        except RemoteError as error:
            return call.ended(error=error)
        if len(message.draws) != len(call.batch.jobs):
            problem = f"the answer has {len(message.draws)} draws for {len(call.batch.jobs)} jobs"
            return call.ended(error=RemoteError("remote", problem))
        self.draws[message.batch] = message.draws
        return call.ended(result=result)

    def cancel(self, calls: Sequence[RemoteCall]) -> None:
        """Do nothing: other processes may need the batches, and the end of the run cancels the rest."""

    def status(self) -> RemoteStatus:
        """Report whether there is a connection to the broker."""
        return RemoteStatus(self._connection is not None, self.describe())

    def warm(self) -> None:
        """Do nothing: the broker's session starts the remote."""

    def stop(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def cost(self) -> Cost:
        """Return no cost: the broker's process counts it."""
        return Cost()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            if self._connection is None:
                self._connection = socket.socket(socket.AF_UNIX)
                self._connection.connect(self._address)
                threading.Thread(
                    target=_read_messages, args=(self._connection, self._messages.put), name="nvfp4-broker", daemon=True
                ).start()
            with self._sending:
                self._connection.sendall((json.dumps(message) + "\n").encode())
        except OSError as error:
            raise _broker_ended() from error


def _read_messages(connection: socket.socket, put: Callable[[_Message | None], None]) -> None:
    try:
        with contextlib.suppress(OSError, ValueError), connection.makefile("r", encoding="utf-8") as lines:
            while line := lines.readline(_MOST_CHARACTERS):
                put(_message(line))
    finally:
        put(None)  # whoever waits must learn that nothing more comes


def _message(line: str) -> _Message:
    """Return the message of a line. Raises DoorError, a ValueError."""
    return parsed(_Message, line, source="a message of another test process", bounds=_BOUNDS)


def _broker_ended() -> RemoteError:
    return RemoteError("network", "the process that uses the remote has ended", "run again with --nvfp4-resume")
