"""Remote side of a connection: the agent, which executes one request at a time and ends with the connection.

Running work is stopped and its files are removed when the connection breaks, when the local side is silent for too
long, or when it cancels. Kernels and programs run in their own processes with a scrubbed environment (`isolation`).
"""

from __future__ import annotations

import os
import platform
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import util
from types import FrameType
from typing import Any

from pytest_nvfp4.device.execute import execute
from pytest_nvfp4.device.gpus import visible_gpus
from pytest_nvfp4.device.process import run_in_worker
from pytest_nvfp4.device.remote.base import PythonProgram, RemoteError
from pytest_nvfp4.device.remote.executor import SOURCE, describe_place, execute_batch, protect_memory
from pytest_nvfp4.device.remote.link.frames import PROTOCOL, FrameError, Message, receive, send
from pytest_nvfp4.device.remote.link.gpu_lock import exclusive_gpu
from pytest_nvfp4.device.remote.serialization import pack_result, unpack_batch

_SILENCE_S = 120.0
"""Seconds without a message (pings included) after which the local side counts as gone."""
_CLEANUP_S = 15.0
"""Seconds to stop running work; after them the process exits, and its child processes end with it."""


class _DisconnectedError(BaseException):
    """The connection ended, or this process received a signal to end."""


class _CancelledError(BaseException):
    """The local side cancelled the running request."""


class Agent:
    """Serves one connection on standard input and output.

    Args:
        settings: ``backend`` (``cuda``, ``sim`` or ``host``) and ``worker``, which selects the GPU.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._start = time.monotonic()
        self._backend = str(settings.get("backend", "cuda"))
        gpus = visible_gpus() if self._backend == "cuda" else []
        self._gpu = gpus[int(settings.get("worker", 0)) % len(gpus)] if gpus else ""
        self._in = sys.stdin.buffer
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
        self._requests: queue.Queue[Message | None] = queue.Queue()
        self._last_message = time.monotonic()
        self._current: str | None = None
        self._cancelled: set[str] = set()
        self._disconnected = False
        self._interruptible = False

    def serve(self) -> None:
        """Announce readiness, and serve until the connection ends."""
        os.dup2(2, 1)  # what a library prints must not mix with the messages
        protect_memory()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._on_signal)
        for work in (self._receive, self._watch_silence):
            threading.Thread(target=work, daemon=True).start()
        try:
            self._send("ready", **self._info())
            while not self._disconnected:
                request = self._requests.get()
                if request is None:
                    break
                self._serve(request)
        except (_DisconnectedError, OSError):
            pass  # nothing can be reported without a connection

    def _info(self) -> dict[str, Any]:
        place = describe_place(container=platform.node(), startup_s=time.monotonic() - self._start)
        return {
            "protocol": PROTOCOL,
            "place": place.model_dump(mode="json"),
            "gpu": self._gpu,
            "gpus": len(visible_gpus()),
            "missing": [name for name in ("torch", "cutlass") if util.find_spec(name) is None],
            "executable": sys.executable,
        }

    # Messages

    def _send(self, kind: str, payload: bytes = b"", **header: Any) -> None:
        interruptible, self._interruptible = self._interruptible, False
        try:
            send(self._out, Message(kind, header, payload))
        finally:
            self._interruptible = interruptible
        self._raise_if_interrupted()

    def _receive(self) -> None:
        while True:
            try:
                message = receive(self._in)
            except (FrameError, OSError, ValueError):
                message = None
            self._last_message = time.monotonic()
            if message is None or message.kind == "bye":
                self._disconnect()
                return
            if message.kind == "cancel":
                self._cancelled.add(str(message.header["id"]))
                self._interrupt_main_thread()
            elif message.kind != "ping":
                self._requests.put(message)

    def _watch_silence(self) -> None:
        """End after too long a silence: the local machine or the network may be gone without closing the stream."""
        while time.monotonic() - self._last_message < _SILENCE_S:
            time.sleep(1)
        self._disconnect()

    def _disconnect(self) -> None:
        self._disconnected = True
        self._requests.put(None)
        self._interrupt_main_thread()
        time.sleep(_CLEANUP_S)
        os._exit(3)

    # Interrupts. A signal ends a blocking system call of the main thread, whose handler then raises; but only while a
    # request runs and never within a message, because half a message would corrupt the stream.

    def _interrupt_main_thread(self) -> None:
        with suppress(ProcessLookupError):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number != signal.SIGUSR1:
            self._disconnected = True
            self._requests.put(None)
        self._raise_if_interrupted()

    def _raise_if_interrupted(self) -> None:
        if not self._interruptible:
            return
        if self._disconnected:
            self._interruptible = False
            raise _DisconnectedError
        if self._current in self._cancelled:
            self._interruptible = False
            raise _CancelledError

    @contextmanager
    def _running(self, request: str) -> Iterator[None]:
        self._current, self._interruptible = request, True
        try:
            self._raise_if_interrupted()
            yield
        finally:
            self._current, self._interruptible = None, False

    # Requests

    def _serve(self, message: Message) -> None:
        request = str(message.header.get("id", ""))
        requests: dict[str, Callable[[Message, str], None]] = {"batch": self._batch, "execute": self._execute}
        try:
            if message.kind not in requests:
                raise RemoteError("version", f"the remote side does not support requests of kind {message.kind!r}")
            with self._running(request):
                requests[message.kind](message, request)
        except _CancelledError:
            self._send_error(request, RemoteError("cancelled", "the request was cancelled"))
        except RemoteError as error:
            self._send_error(request, error)
        except OSError as error:
            if self._out.closed or isinstance(error, BrokenPipeError):
                raise
            problem = f"the remote side cannot write: {error.strerror or error}"
            self._send_error(request, RemoteError("setup", problem, "free space there, or name another ?folder="))
        except Exception as error:
            self._send_error(request, RemoteError("remote", f"{type(error).__name__}: {error}"))

    def _send_error(self, request: str, error: RemoteError) -> None:
        self._send("error", id=request, error=error.kind, problem=error.problem, remedy=error.remedy)

    @contextmanager
    def _on_gpu(self, request: str) -> Iterator[None]:
        with exclusive_gpu(self._gpu, waiting=lambda: self._send("state", id=request, state="waiting")):
            self._send("state", id=request, state="running")
            yield

    def _batch(self, message: Message, request: str) -> None:
        batch = unpack_batch(message.payload.decode())
        environ = {"CUDA_VISIBLE_DEVICES": self._gpu} if self._gpu else {}
        with self._on_gpu(request):
            result = execute_batch(
                batch,
                run=lambda job, folder: run_in_worker(
                    job, backend=self._backend, folder=folder, base=SOURCE, environ=environ
                ),
                place=describe_place(container=f"{platform.node()}{f', GPU {self._gpu}' if self._gpu else ''}"),
            )
        self._send("result", pack_result(result).encode(), id=request)

    def _execute(self, message: Message, request: str) -> None:
        header, payload, at = message.header, message.payload, 0
        files = {}
        for name, size in header["files"]:
            files[str(name)] = payload[at : at + int(size)]
            at += int(size)
        program = PythonProgram(
            source=str(header["source"]),
            arguments=tuple(map(str, header["arguments"])),
            files=files,
            environ={str(key): str(value) for key, value in header["environ"].items()},
            stdin=payload[at:],
            deadline_s=float(header["deadline_s"]),
        )
        with self._on_gpu(request):
            end = execute(
                program,
                backend=self._backend,
                visible=self._gpu,
                on_output=lambda stream, data: self._send("output", data, id=request, stream=stream),
            )
        self._send("exit", id=request, status=end.exit_status, timed_out=end.timed_out, wall_s=end.wall_s)
