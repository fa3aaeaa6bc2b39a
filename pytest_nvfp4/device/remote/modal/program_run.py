"""Run of a program in a Modal container, as one call that streams its output."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
import time
from collections.abc import Callable

from pytest_nvfp4.device.remote.base import PythonProgram, RemoteError, RemoteOptions, dollars
from pytest_nvfp4.device.remote.modal import timeouts
from pytest_nvfp4.device.remote.modal.connection import Connection
from pytest_nvfp4.device.remote.modal.cost import Meter
from pytest_nvfp4.device.remote.modal.loop import abandon
from pytest_nvfp4.device.remote.program import pack_program, unpack_output
from pytest_nvfp4.isolation import OnOutput

_EXECUTE = "execute"
_POLL_S = 0.5


class ProgramRun:
    """One program.

    Args:
        connection: The open connection.
        meter: Meter of its cost.
        options: Options of the remote.
        status: Describes the app, for a program that does not start; may contact the server.
    """

    def __init__(
        self, connection: Connection, meter: Meter, options: RemoteOptions, *, status: Callable[[], str]
    ) -> None:
        self._connection = connection
        self._meter = meter
        self._options = options
        self._status = status

    def to_end(self, program: PythonProgram, *, backend: str, code: str, on_output: OnOutput) -> int:
        """Run the program, forward its output, and return its exit status.

        Args:
            program: The program.
            backend: Device of the container.
            code: Hash of the code that the container must have; see `parts.check_code`.
            on_output: Receives the output as it is written.

        Raises:
            RemoteError: It did not run to its end.
        """
        outputs: queue.Queue[str | BaseException | None] = queue.Queue()
        call, name, status = f"{_EXECUTE}-{time.monotonic_ns()}", "", None
        self._meter.sent(call)
        stopped = threading.Event()
        packed = pack_program(program, backend=backend, code=code)
        future = self._connection.start(self._stream(packed, outputs, stopped))
        until, started = time.monotonic() + self._options.timeout_s, False
        try:
            while status is None:
                self._check_limits(until, started=started)
                try:
                    received = outputs.get(timeout=max(0.0, min(_POLL_S, until - time.monotonic())))
                except queue.Empty:
                    continue
                if received is None:
                    raise RemoteError("lost", "the end of the program was not reported", "run it again")
                if isinstance(received, BaseException):
                    raise self._connection.explained(received, "running a program")
                output = unpack_output(received)
                if not started:  # the first output marks the start; before it the program waits for a container
                    until, started = time.monotonic() + program.deadline_s + timeouts.PROGRAM_S, True
                name = name or output.call
                status = output.status
                if status is None:
                    on_output(output.stream, output.data)
            return status
        finally:
            if status is None:  # in a deployed app, only a cancel ends it before its own deadline
                if not name and not self._connection.tracker.open(method=_EXECUTE):
                    future.cancel()  # it could send its call after the cancel
                    stopped.wait(timeouts.SENT_S)
                self._cancel(name)
            stopped.wait(timeouts.ENDS_S)
            future.cancel()
            self._meter.ended(call)
            if status is not None:
                for ended in self._connection.tracker.open(method=_EXECUTE):
                    self._connection.tracker.ended(ended)

    def _check_limits(self, until: float, *, started: bool) -> None:
        """Raise RemoteError if the program, queued or running, exceeds its timeout or the cost limit."""
        if time.monotonic() >= until and started:
            raise RemoteError("lost", "the end of the program was not reported before the timeout", "run it again")
        if time.monotonic() >= until:
            problem = f"the program did not start within {self._options.timeout_s:.0f} s ({self._status()})"
            raise RemoteError("capacity", problem, "raise --nvfp4-remote-timeout, or try again later")
        limit, usd = self._options.max_cost, self._meter.cost().usd
        if limit is not None and usd is not None and usd >= limit:
            raise RemoteError(
                "cost", f"the program was stopped: it has cost about {dollars(usd)}", "raise --nvfp4-remote-max-cost"
            )

    def _cancel(self, name: str) -> None:
        """Cancel the program's call, by its tracked name or the one in its first output."""

        async def cancel() -> None:
            await self._connection.tracker.wait_sent(timeout_s=timeouts.SENT_S)
            tracked = self._connection.tracker.open(method=_EXECUTE)
            await self._connection.cancel(tracked or ([name] if name else []))

        with contextlib.suppress(Exception, concurrent.futures.CancelledError):
            self._connection.run(cancel(), timeout_s=timeouts.CANCEL_S)

    async def _stream(
        self, text: str, outputs: queue.Queue[str | BaseException | None], stopped: threading.Event
    ) -> None:
        """Put each output of the program in the queue, in the connection's thread; at the end None, or an error."""
        try:
            chunks = aiter(self._connection.stream_of(text))
            while True:
                getting = asyncio.ensure_future(anext(chunks))
                try:
                    await self._connection.liveness.while_silent(getting, "running a program")
                    outputs.put(await getting)
                except StopAsyncIteration:
                    break
                finally:
                    abandon(getting)
                    await asyncio.wait([getting], timeout=timeouts.SENT_S)
            outputs.put(None)
        except BaseException as error:
            outputs.put(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            stopped.set()
