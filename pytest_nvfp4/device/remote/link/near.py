"""The near end of a line: starts the command, sends this package, asks, and says what became of it."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_nvfp4.device.remote.base import Answer, Batch, Execution, Place, RemoteError
from pytest_nvfp4.device.remote.bundle import bundle
from pytest_nvfp4.device.remote.link.frames import PROTOCOL, FrameError, Message, receive, send
from pytest_nvfp4.device.remote.wire import pack_batch, unpack_answer
from pytest_nvfp4.isolation import OnOutput

_HELLO = re.compile(rb"NVFP4-FAR (\d+) (\d+)\s*$")
_LEAST_PYTHON = (3, 11)
_PING_S = 15.0
_NOISE = 1 << 16
_KEPT_ERRORS = 1 << 14
_END_S = 8.0
_WORDS_S = 5.0
"""What a command wrote before it ended may take to be read; something else may hold its error output open."""
_SLACK_S = 60.0
_WAIT_S = 900.0
_UNSTARTED_S = 0.5

START = (
    "import sys;w=sys.stdout;w.write(chr(10)+'NVFP4-FAR %d %d'%sys.version_info[:2]+chr(10));w.flush();"
    "r=getattr(sys.stdin,'buffer',sys.stdin);n=int(r.readline());exec(compile(r.read(n),'nvfp4-far','exec'))"
)
"""What the far Python is given as ``-c``. Any Python runs it, so that one that is too old can be named."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the far end is told.

    Attributes:
        backend: ``cuda``, ``sim`` or ``host``.
        folder: Where it puts its own folder; empty for the system's.
        lane: Which of several lines to the same machine this is.
        where: What the machine is called, for messages.
        python: The Python that is started there, for messages.
        hello_s: Seconds until its Python must have answered.
        ready_s: Seconds until its agent must be ready.
    """

    backend: str = "cuda"
    folder: str = ""
    lane: int = 0
    where: str = "the remote"
    python: str = "python3"
    hello_s: float = 40.0
    ready_s: float = 120.0


@dataclass(frozen=True, slots=True)
class About:
    """What the far end says of itself."""

    place: Place
    gpu: str
    gpus: int
    missing: tuple[str, ...]
    executable: str


Explain = Callable[[int | None, str], RemoteError]
"""Makes an error of the status and the error output of a command that ended before it should have."""


class Line:
    """One line. It is opened by ``open`` and serves one request at a time; only ``close`` may come from elsewhere.

    Args:
        command: The command; its standard streams are those of ``python -c START`` on the far side.
        environ: Its environment.
        settings: What the far end is told.
        explain: Says why it ended.
    """

    def __init__(
        self, command: Sequence[str], *, environ: Mapping[str, str], settings: Settings, explain: Explain
    ) -> None:
        self._command = list(command)
        self._environ = dict(environ)
        self._settings = settings
        self._explain = explain
        self._process: subprocess.Popen[bytes] | None = None
        self._inbox: queue.Queue[Message | RemoteError | None] = queue.Queue()
        self._errors: deque[bytes] = deque()
        self._sending = threading.Lock()
        self._closed = threading.Event()
        self._readers: list[threading.Thread] = []
        self.about: About | None = None

    def __enter__(self) -> Line:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """It is open, and the command runs."""
        return self.about is not None and self._process is not None and self._process.poll() is None

    def open(self) -> About:
        """Start the command, send the package and wait until the agent is ready. Raises RemoteError."""
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us: what runs there is put away in order
            )
        except OSError as error:
            what = f"{self._command[0]} cannot be started: {error.strerror or error}"
            raise RemoteError("setup", what, "install it, or put it on PATH") from error
        self._readers = [
            threading.Thread(target=work, daemon=True) for work in (self._read_errors, self._read, self._ping)
        ]
        for thread in self._readers:
            thread.start()
        try:
            self._greet(self._next(self._settings.hello_s, "an answer of its Python"))
            self._send_package()
            self.about = self._ready(self._next(self._settings.ready_s, "its agent"))
        except BaseException:
            self.close()
            raise
        return self.about

    def close(self) -> None:
        """End the line; what runs there is stopped. May be called from another thread, and more than once."""
        self._closed.set()
        process = self._process
        if process is None:
            return
        if process.poll() is None and process.stdin is not None:
            # Closing the pipe while another thread writes to it would wait for that thread: shut it from below.
            if self._sending.acquire(timeout=0.2):
                with suppress(OSError, ValueError):
                    process.stdin.close()
                self._sending.release()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_END_S if self.about is not None else _UNSTARTED_S)
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for thread in self._readers[:2]:
            if thread is not threading.current_thread():
                thread.join(timeout=1)

    # Requests

    def do_batch(self, batch: Batch, *, timeout_s: float, on_state: Callable[[str], None]) -> Answer:
        """Have a batch done. Raises RemoteError."""
        request = uuid.uuid4().hex
        self._send(Message("batch", {"id": request}, pack_batch(batch).encode()))
        until = time.monotonic() + timeout_s
        while True:
            message = self._of(request, until, "the batch")
            if message.kind == "answer":
                return unpack_answer(message.payload.decode())
            if message.kind == "state":
                on_state(str(message.header["state"]))

    def execute(
        self, program: Execution, *, on_output: OnOutput, on_state: Callable[[str], None], wait_s: float = _WAIT_S
    ) -> int:
        """Run a program and pass its output on; its exit status. Whatever interrupts this ends the program.

        ``wait_s`` seconds may pass in which another session has the GPU. Raises RemoteError.
        """
        request = uuid.uuid4().hex
        header = {
            "id": request,
            "source": program.source,
            "arguments": list(program.arguments),
            "environ": dict(program.environ),
            "deadline_s": program.deadline_s,
            "files": [[name, len(data)] for name, data in program.files.items()],
        }
        self._send(Message("execute", header, b"".join(program.files.values()) + program.stdin))
        ended, awaited = False, "the program"
        # The far side keeps the deadline; this one only sees to it that a line which says nothing does not hang.
        until = time.monotonic() + program.deadline_s + _SLACK_S
        try:
            while True:
                message = self._of(request, until, awaited)
                if message.kind == "exit":
                    ended = True
                    if message.header["timed_out"]:
                        on_output("stderr", f"nvfp4: stopped after {program.deadline_s:g} s\n".encode())
                    return int(message.header["status"])
                if message.kind == "output":
                    on_output("stdout" if message.header["stream"] == "stdout" else "stderr", message.payload)
                elif message.kind == "state":
                    waits = message.header["state"] == "waiting"  # for a GPU that somebody else uses
                    awaited = "a free GPU" if waits else "the program"
                    until = time.monotonic() + (wait_s if waits else program.deadline_s + _SLACK_S)
                    on_state(str(message.header["state"]))
        finally:
            if not ended:
                self.cancel(request)

    def cancel(self, request: str) -> None:
        """Stop a request. Does not raise."""
        with suppress(RemoteError):
            self._send(Message("cancel", {"id": request}))

    def _of(self, request: str, until: float, what: str) -> Message:
        """The next message about a request."""
        while True:
            message = self._next(until - time.monotonic(), what)
            if message.header.get("id") != request:
                continue  # the rest of a request that was given up
            if message.kind == "error":
                header = message.header
                raise RemoteError(header["trouble"], f"{self._settings.where}: {header['what']}", header["do"])
            return message

    # The stream

    def _send(self, message: Message) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            with self._sending:
                send(self._process.stdin, message)  # type: ignore[arg-type]
        except (OSError, ValueError) as error:
            raise self._ended() from error

    def _next(self, timeout_s: float, what: str) -> Message:
        try:
            message = self._inbox.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            where = self._settings.where
            raise RemoteError(
                "timeout", f"{where} did not give {what} within its time", "see `nvfp4 remote status`"
            ) from None
        if message is None:
            self._inbox.put(None)  # whoever asks next learns it too
            raise self._ended()
        if isinstance(message, RemoteError):
            raise message
        return message

    def _ended(self) -> RemoteError:
        assert self._process is not None
        if self._closed.is_set():
            return RemoteError("cancelled", f"the line to {self._settings.where} was closed")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_S)
        self._readers[0].join(timeout=_WORDS_S)
        error = self._explain(self._process.poll(), b"".join(self._errors).decode("utf-8", "replace").strip())
        if self.about is None:
            return error
        # It was up: what a batch came to is not known, and a new line may well work.
        return RemoteError("lost" if error.trouble in ("far", "network") else error.trouble, error.what, error.do)

    def _greet(self, message: Message) -> None:
        version = (int(message.header["major"]), int(message.header["minor"]))
        if version < _LEAST_PYTHON:
            settings = self._settings
            raise RemoteError(
                "setup",
                f"{settings.python} of {settings.where} is Python {version[0]}.{version[1]}, and "
                f"{_LEAST_PYTHON[0]}.{_LEAST_PYTHON[1]} or newer is needed",
                "name another by ?python=",
            )

    def _send_package(self) -> None:
        from pytest_nvfp4.device.remote.link import start

        assert self._process is not None
        assert self._process.stdin is not None
        assert start.__file__ is not None
        code = Path(start.__file__).read_bytes()
        code = code.replace(b'if __name__ == "__main__":', b"if True:")
        packed = bundle()
        settings = {
            "size": len(packed.data),
            "sha256": packed.sha256,
            "folder": self._settings.folder,
            "backend": self._settings.backend,
            "lane": self._settings.lane,
        }
        try:
            with self._sending:
                stdin = self._process.stdin
                stdin.write(b"%d\n" % len(code) + code + json.dumps(settings).encode() + b"\n" + packed.data)
                stdin.flush()
        except (OSError, ValueError):
            pass  # what it said before it ended, or that it ended, is the better message: it comes with the next look

    def _ready(self, message: Message) -> About:
        if message.kind == "trouble":
            raise self._trouble(message.header)
        header = message.header
        if message.kind != "ready" or header.get("protocol") != PROTOCOL:
            what = f"{self._settings.where} speaks protocol {header.get('protocol')}, this side {PROTOCOL}"
            raise RemoteError("version", what)
        return About(
            Place.model_validate(header["place"]),
            str(header["gpu"]),
            int(header["gpus"]),
            tuple(header["missing"]),
            str(header["executable"]),
        )

    def _trouble(self, header: Mapping[str, Any]) -> RemoteError:
        where, what = self._settings.where, str(header.get("what"))
        match header.get("trouble"):
            case "disk":
                place = header.get("where")
                return RemoteError(
                    "setup", f"{where} cannot write to {place}: {what}", "make room, or name another ?folder="
                )
            case "import":
                module, python = header.get("module"), header.get("python")
                return RemoteError(
                    "setup",
                    f"{python} of {where} lacks {module or 'a module'} ({what})",
                    "install pytest-nvfp4 there for what it needs, or name another by ?python=",
                )
            case _:
                return RemoteError("lost", f"the package did not come through to {where}: {what}", "run it again")

    def _read(self) -> None:
        assert self._process is not None
        stream = self._process.stdout
        assert stream is not None
        try:
            if self._read_start(stream):
                while (message := receive(stream)) is not None:  # type: ignore[arg-type]
                    self._inbox.put(message)
        except FrameError as error:
            self._inbox.put(RemoteError("version", f"{self._settings.where}: {error}", "something prints on the line"))
        except (OSError, ValueError):
            pass
        self._inbox.put(None)

    def _read_start(self, stream: Any) -> bool:
        """Pass over what a login shell prints, up to the agent's first message; whether there will be one."""
        noise = 0
        while line := stream.readline(_NOISE):
            if found := _HELLO.match(line):
                self._inbox.put(Message("hello", {"major": found[1].decode(), "minor": found[2].decode()}))
                break
            noise += len(line)
            if noise > _NOISE:
                raise FrameError("the login shell prints without end")
        while first := stream.peek(1)[:1]:
            if first != b"N":  # a message begins with its magic
                return True
            self._inbox.put(Message("trouble", json.loads(stream.readline()[6:])))
        return False

    def _read_errors(self) -> None:
        assert self._process is not None
        stream = self._process.stderr
        assert stream is not None
        kept = 0
        with suppress(OSError, ValueError):
            while piece := stream.read1(4096):  # type: ignore[attr-defined]
                self._errors.append(piece)
                kept += len(piece)
                while kept - len(self._errors[0]) >= _KEPT_ERRORS:
                    kept -= len(self._errors.popleft())

    def _ping(self) -> None:
        while not self._closed.wait(_PING_S):
            if self.about is None:
                continue
            try:
                self._send(Message("ping"))
            except RemoteError:
                return
