"""The far end of a line: does what the near end asks, one thing at a time, and ends with the line.

Whatever runs is stopped and removed when the line is cut, when the near end says nothing for a while, or when it
cancels. Kernels and programs run in processes of their own with a scrubbed environment (``isolation``).
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
from pytest_nvfp4.device.remote.base import Execution, RemoteError
from pytest_nvfp4.device.remote.far import SOURCE, do_batch, here, keep_to_itself
from pytest_nvfp4.device.remote.link.frames import PROTOCOL, FrameError, Message, receive, send
from pytest_nvfp4.device.remote.link.gpu_lock import gpu_to_itself
from pytest_nvfp4.device.remote.wire import pack_answer, unpack_batch

_SILENCE_S = 120.0
"""Seconds without a word (pings included) after which the near end counts as gone."""
_LEAVE_S = 15.0
"""Seconds that putting away what runs may take; then the process ends at once, and its children with it."""


class _GoneError(BaseException):
    """The near end is gone, or this process is to end."""


class _CancelledError(BaseException):
    """What runs is not wanted any more."""


class Agent:
    """Serves one line on standard input and output.

    Args:
        settings: ``backend`` (``cuda``, ``sim`` or ``host``) and ``lane``, which decides about the GPU.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._start = time.monotonic()
        self._backend = str(settings.get("backend", "cuda"))
        gpus = visible_gpus() if self._backend == "cuda" else []
        self._gpu = gpus[int(settings.get("lane", 0)) % len(gpus)] if gpus else ""
        self._in = sys.stdin.buffer
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
        self._requests: queue.Queue[Message | None] = queue.Queue()
        self._heard = time.monotonic()
        self._current: str | None = None
        self._cancelled: set[str] = set()
        self._gone = False
        self._interruptible = False

    def serve(self) -> None:
        """Say what is here, and serve until the line ends."""
        os.dup2(2, 1)  # what a library prints must not come between the messages
        keep_to_itself()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._interrupt)
        for work in (self._listen, self._watch):
            threading.Thread(target=work, daemon=True).start()
        try:
            self._say("ready", **self._about())
            while not self._gone:
                request = self._requests.get()
                if request is None:
                    break
                self._serve(request)
        except (_GoneError, OSError):
            pass  # nobody is left who could be told

    def _about(self) -> dict[str, Any]:
        place = here(container=platform.node(), startup_s=time.monotonic() - self._start)
        missing = [name for name in ("torch", "cutlass") if util.find_spec(name) is None]
        return {
            "protocol": PROTOCOL,
            "place": place.model_dump(mode="json"),
            "gpu": self._gpu,
            "gpus": len(visible_gpus()),
            "missing": missing,
            "executable": sys.executable,
        }

    # The line

    def _say(self, kind: str, payload: bytes = b"", **header: Any) -> None:
        interruptible, self._interruptible = self._interruptible, False
        try:
            send(self._out, Message(kind, header, payload))
        finally:
            self._interruptible = interruptible
        self._look()

    def _listen(self) -> None:
        while True:
            try:
                message = receive(self._in)
            except (FrameError, OSError, ValueError):
                message = None
            self._heard = time.monotonic()
            if message is None or message.kind == "bye":
                self._leave()
                return
            if message.kind == "cancel":
                self._cancelled.add(str(message.header["id"]))
                self._wake()
            elif message.kind != "ping":
                self._requests.put(message)

    def _watch(self) -> None:
        """End when the near end has been silent for too long: its machine or the network may be gone."""
        while time.monotonic() - self._heard < _SILENCE_S:
            time.sleep(1)
        self._leave()

    def _leave(self) -> None:
        self._gone = True
        self._requests.put(None)
        self._wake()
        time.sleep(_LEAVE_S)
        os._exit(3)

    def _wake(self) -> None:
        with suppress(ProcessLookupError):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    # Interruption: only while something runs, never in the middle of a message

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number != signal.SIGUSR1:
            self._gone = True
            self._requests.put(None)
        if self._interruptible:
            self._look()

    def _look(self) -> None:
        if not self._interruptible:
            return
        if self._gone:
            self._interruptible = False
            raise _GoneError
        if self._current in self._cancelled:
            self._interruptible = False
            raise _CancelledError

    @contextmanager
    def _running(self, request: str) -> Iterator[None]:
        self._current, self._interruptible = request, True
        try:
            self._look()
            yield
        finally:
            self._current, self._interruptible = None, False

    # What is asked for

    def _serve(self, message: Message) -> None:
        request = str(message.header.get("id", ""))
        asked: dict[str, Callable[[Message, str], None]] = {"batch": self._batch, "execute": self._execute}
        try:
            work = asked.get(message.kind)
            if work is None:
                raise RemoteError("version", f"the far side was asked for {message.kind!r}, which it does not know")
            with self._running(request):
                work(message, request)
        except _CancelledError:
            self._say("error", id=request, trouble="cancelled", what="it was cancelled", do="")
        except RemoteError as error:
            self._say("error", id=request, trouble=error.trouble, what=error.what, do=error.do)
        except OSError as error:
            if self._out.closed or isinstance(error, BrokenPipeError):
                raise
            what = f"the far side cannot write: {error.strerror or error}"
            self._say("error", id=request, trouble="setup", what=what, do="make room there, or name another ?folder=")
        except Exception as error:
            self._say("error", id=request, trouble="far", what=f"{type(error).__name__}: {error}", do="")

    def _batch(self, message: Message, request: str) -> None:
        batch = unpack_batch(message.payload.decode())
        environ = {"CUDA_VISIBLE_DEVICES": self._gpu} if self._gpu else {}
        with gpu_to_itself(self._gpu, waiting=lambda: self._say("state", id=request, state="waiting")):
            self._say("state", id=request, state="running")
            answer = do_batch(
                batch,
                run=lambda job, folder: run_in_worker(
                    job, backend=self._backend, folder=folder, base=SOURCE, environ=environ
                ),
                place=here(container=f"{platform.node()}{f', GPU {self._gpu}' if self._gpu else ''}"),
            )
        self._say("answer", pack_answer(answer).encode(), id=request)

    def _execute(self, message: Message, request: str) -> None:
        header, payload, at = message.header, message.payload, 0
        files = {}
        for name, size in header["files"]:
            files[str(name)] = payload[at : at + int(size)]
            at += int(size)
        program = Execution(
            source=str(header["source"]),
            arguments=tuple(map(str, header["arguments"])),
            files=files,
            environ={str(key): str(value) for key, value in header["environ"].items()},
            stdin=payload[at:],
            deadline_s=float(header["deadline_s"]),
        )
        with gpu_to_itself(self._gpu, waiting=lambda: self._say("state", id=request, state="waiting")):
            self._say("state", id=request, state="running")
            ended = execute(
                program,
                backend=self._backend,
                visible=self._gpu,
                on_output=lambda stream, piece: self._say("output", piece, id=request, stream=stream),
            )
        self._say("exit", id=request, status=ended.exit_status, timed_out=ended.timed_out, wall_s=ended.wall_s)
