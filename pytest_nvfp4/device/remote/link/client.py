"""Local side of a connection: starts the command, sends this package and requests, and reports why it ended."""

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
from typing import Any, TypeVar

from pydantic import BaseModel

from pytest_nvfp4.device.remote.base import Batch, BatchResult, Place, PythonProgram, RemoteError, reported_error
from pytest_nvfp4.device.remote.bundle import bundle
from pytest_nvfp4.device.remote.link.frames import PROTOCOL, FrameError, Message, receive, send
from pytest_nvfp4.device.remote.link.headers import Exit, Failed, Failure, OutputOf, Ready, State
from pytest_nvfp4.device.remote.serialization import most_bytes, pack_batch, unpack_result
from pytest_nvfp4.isolation import OnOutput
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.json_values import read_json
from pytest_nvfp4.isolation.door.models import validated

H = TypeVar("H", bound=BaseModel)

_HELLO = re.compile(rb"NVFP4-REMOTE (\d{1,4}) (\d{1,4})\s*$")
_MIN_PYTHON = (3, 11)
_PING_S = 15.0
_MAX_BANNER_BYTES = 1 << 16
_MAX_ERROR_BYTES = 1 << 14
_END_S = 8.0
_STDERR_S = 5.0
"""Seconds to read the error output of an ended command; a process that it left behind may keep the pipe open."""
_MOST_MESSAGES = 64
_MAX_MESSAGE_BYTES = 64 << 20
"""Largest message besides the result of a batch; output of programs arrives in smaller chunks."""
_SLACK_S = 60.0
_WAIT_S = 900.0
_UNSTARTED_S = 0.5

BOOTSTRAP = (
    "import sys;w=sys.stdout;w.write(chr(10)+'NVFP4-REMOTE %d %d'%sys.version_info[:2]+chr(10));w.flush();"
    "r=getattr(sys.stdin,'buffer',sys.stdin);n=int(r.readline());exec(compile(r.read(n),'nvfp4-remote','exec'))"
)
"""Argument of ``-c`` for the remote Python. Any version runs it, so that the error can name one that is too old."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Settings of an agent.

    Attributes:
        backend: ``cuda``, ``sim`` or ``host``.
        folder: Parent of the agent's folder; empty for the system's temporary folder.
        worker: Index among several connections to the same machine; selects the GPU.
        host: Name of the machine, for errors.
        python: Python that is started there, for errors.
        hello_s: Timeout in seconds for the first response of the Python.
        ready_s: Timeout in seconds for the start of the agent.
    """

    backend: str = "cuda"
    folder: str = ""
    worker: int = 0
    host: str = "the remote"
    python: str = "python3"
    hello_s: float = 40.0
    ready_s: float = 120.0


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """Description of a started agent: its machine, its GPU, the number of GPUs, missing modules, and its Python."""

    place: Place
    gpu: str
    gpus: int
    missing: tuple[str, ...]
    executable: str


Explain = Callable[[int | None, str], RemoteError]
"""Returns the error of a command that ended early, from its exit status and error output."""


class AgentConnection:
    """A connection to an agent. It serves one request at a time; only `close` may be called from another thread.

    Args:
        command: The command; its standard streams are those of ``python -c BOOTSTRAP`` on the remote side.
        environ: Environment of the command.
        settings: Settings of the agent.
        explain: Returns the error of a command that ended early.

    Attributes:
        agent: Description of the agent; None until it has started.
    """

    def __init__(
        self, command: Sequence[str], *, environ: Mapping[str, str], settings: AgentSettings, explain: Explain
    ) -> None:
        self._command = list(command)
        self._environ = dict(environ)
        self._settings = settings
        self._explain = explain
        self._process: subprocess.Popen[bytes] | None = None
        # Bounded: a machine that sends without end is held up until its messages are read.
        self._inbox: queue.Queue[Message | RemoteError | None] = queue.Queue(_MOST_MESSAGES)
        self._most_payload = _MAX_MESSAGE_BYTES
        self._errors: deque[bytes] = deque()
        self._sending = threading.Lock()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self.agent: AgentInfo | None = None

    def __enter__(self) -> AgentConnection:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether it is open and the command runs."""
        return self.agent is not None and self._process is not None and self._process.poll() is None

    def open(self) -> AgentInfo:
        """Start the command, send the package and wait until the agent is ready. Raises RemoteError."""
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C must not kill it: this process stops the agent in order
            )
        except OSError as error:
            problem = f"{self._command[0]} cannot be started: {error.strerror or error}"
            raise RemoteError("setup", problem, "install it, or put it on PATH") from error
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._read_errors, self._read, self._ping)
        ]
        for thread in self._threads:
            thread.start()
        try:
            self._check_python(self._next(self._settings.hello_s, "start its Python"))
            self._send_package()
            self.agent = self._agent_info(self._next(self._settings.ready_s, "start its agent"))
        except BaseException:
            self.close()
            raise
        return self.agent

    def close(self) -> None:
        """Close the connection, which stops everything that runs there. May be called repeatedly, from any thread."""
        self._closed.set()
        process = self._process
        if process is None:
            return
        if process.poll() is None and process.stdin is not None:
            # `close` of a buffered pipe waits for a thread that writes to it. After the timeout the process is killed.
            if self._sending.acquire(timeout=0.2):
                with suppress(OSError, ValueError):
                    process.stdin.close()
                self._sending.release()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_END_S if self.agent is not None else _UNSTARTED_S)
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for thread in self._threads[:2]:
            if thread is not threading.current_thread():
                thread.join(timeout=1)

    # Requests

    def execute_batch(self, batch: Batch, *, timeout_s: float, on_state: Callable[[str], None]) -> BatchResult:
        """Execute a batch on the remote side. Raises RemoteError."""
        request = uuid.uuid4().hex
        self._most_payload = most_bytes(batch)
        self._send(Message("batch", {"id": request}, pack_batch(batch).encode()))
        until = time.monotonic() + timeout_s
        while True:
            message = self._response(request, until, "return the batch")
            if message.kind == "result":
                return unpack_result(message.payload)
            if message.kind == "state":
                on_state(self._header(State, message).state)

    def execute(
        self, program: PythonProgram, *, on_output: OnOutput, on_state: Callable[[str], None], wait_s: float = _WAIT_S
    ) -> int:
        """Run a program, forward its output and return its exit status. An interrupt stops the program.

        ``wait_s`` is the timeout in seconds for a GPU that another session uses. Raises RemoteError.
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
        ended, running, action = False, False, "end the program"
        waiting_until = time.monotonic() + wait_s
        # The agent enforces the deadline; this timeout only detects a silent connection.
        until = time.monotonic() + program.deadline_s + _SLACK_S
        try:
            while True:
                message = self._response(request, until, action)
                if message.kind == "exit":
                    ended = True
                    end = self._header(Exit, message)
                    if end.timed_out:
                        on_output("stderr", f"nvfp4: stopped after {program.deadline_s:g} s\n".encode())
                    return end.status
                if message.kind == "output":
                    on_output(self._header(OutputOf, message).stream, message.payload)
                elif message.kind == "state":
                    state = self._header(State, message).state
                    if state == "waiting":  # for a GPU that another session uses
                        action, until = "provide a free GPU", waiting_until
                    elif not running:
                        action, until = "end the program", time.monotonic() + program.deadline_s + _SLACK_S
                        running = True
                    on_state(state)
        finally:
            if not ended:
                with suppress(RemoteError):
                    self._send(Message("cancel", {"id": request}))

    def _response(self, request: str, until: float, action: str) -> Message:
        """Return the next message about a request."""
        while True:
            if (left := until - time.monotonic()) <= 0:  # also of a machine that never pauses
                raise self._late(action)
            message = self._next(left, action)
            if message.header.get("id") != request:
                continue  # the rest of an abandoned request
            if message.kind == "error":
                error = self._header(Failure, message)
                raise reported_error(error.error, error.problem, error.remedy, where=self._settings.host)
            return message

    def _header(self, model: type[H], message: Message) -> H:
        """Return the header of a message as a model. Raises RemoteError."""
        try:
            header = validated(model, message.header, source=f"the message {message.kind[:40]!r}")
        except DoorError as error:
            raise RemoteError("version", f"{self._settings.host}: {error}: the answer is refused") from error
        assert isinstance(header, model)
        return header

    # Messages

    def _send(self, message: Message) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            with self._sending:
                send(self._process.stdin, message)  # type: ignore[arg-type]
        except (OSError, ValueError) as error:
            raise self._end_error() from error

    def _next(self, timeout_s: float, action: str) -> Message:
        try:
            message = self._inbox.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            raise self._late(action) from None
        if message is None:
            self._inbox.put(None)  # for the next reader
            raise self._end_error()
        if isinstance(message, RemoteError):
            raise message
        return message

    def _late(self, action: str) -> RemoteError:
        problem = f"{self._settings.host} did not {action} before the timeout"
        return RemoteError("timeout", problem, "see `nvfp4 remote status`")

    def _end_error(self) -> RemoteError:
        assert self._process is not None
        if self._closed.is_set():
            return RemoteError("cancelled", f"the connection to {self._settings.host} was closed")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_S)
        self._threads[0].join(timeout=_STDERR_S)
        error = self._explain(self._process.poll(), b"".join(self._errors).decode("utf-8", "replace").strip())
        if self.agent is None:
            return error
        # The agent was running: the outcome of the batch is unknown, and a new connection may work.
        return RemoteError("lost" if error.kind in ("remote", "network") else error.kind, error.problem, error.remedy)

    def _check_python(self, message: Message) -> None:
        if message.kind != "hello":
            raise self._start_error(self._header(Failed, message))
        version = (int(message.header["major"]), int(message.header["minor"]))
        if version < _MIN_PYTHON:
            settings = self._settings
            raise RemoteError(
                "setup",
                f"{settings.python} of {settings.host} is Python {version[0]}.{version[1]}, and "
                f"{_MIN_PYTHON[0]}.{_MIN_PYTHON[1]} or newer is required",
                "name another Python with ?python=",
            )

    def _send_package(self) -> None:
        from pytest_nvfp4.device.remote.link import bootstrap

        assert self._process is not None
        assert self._process.stdin is not None
        assert bootstrap.__file__ is not None
        code = Path(bootstrap.__file__).read_bytes().replace(b'if __name__ == "__main__":', b"if True:")
        package = bundle()
        settings = {
            "size": len(package.data),
            "sha256": package.sha256,
            "folder": self._settings.folder,
            "backend": self._settings.backend,
            "worker": self._settings.worker,
        }
        # If the command has ended, the next `_next` raises an error with its output, which is better than this one.
        with suppress(OSError, ValueError), self._sending:
            stdin = self._process.stdin
            stdin.write(b"%d\n" % len(code) + code + json.dumps(settings).encode() + b"\n" + package.data)
            stdin.flush()

    def _agent_info(self, message: Message) -> AgentInfo:
        if message.kind == "failed":
            raise self._start_error(self._header(Failed, message))
        protocol = str(message.header.get("protocol"))[:40]
        if message.kind != "ready" or protocol != str(PROTOCOL):
            raise RemoteError(
                "version", f"{self._settings.host} uses protocol {protocol}, this side protocol {PROTOCOL}"
            )
        ready = self._header(Ready, message)
        return AgentInfo(ready.place, ready.gpu, ready.gpus, ready.missing, ready.executable)

    def _start_error(self, header: Failed) -> RemoteError:
        host, problem = self._settings.host, header.problem
        match header.failed:
            case "disk":
                message = f"{host} cannot write to {header.path}: {problem}"
                return RemoteError("setup", message, "free space there, or name another ?folder=")
            case "import":
                message = f"{header.python} of {host} lacks {header.module or 'a module'} ({problem})"
                remedy = "install the requirements of pytest-nvfp4 there, or name another Python with ?python="
                return RemoteError("setup", message, remedy)
            case _:
                return RemoteError("lost", f"the package arrived damaged on {host}: {problem}", "run it again")

    def _read(self) -> None:
        assert self._process is not None
        stream = self._process.stdout
        assert stream is not None
        try:
            if self._read_start(stream):
                while (message := receive(stream, most=lambda: self._most_payload)) is not None:  # type: ignore[arg-type]
                    self._inbox.put(message)
        except FrameError as error:
            remedy = "another program prints on the connection, such as a start-up file of the login shell"
            self._inbox.put(RemoteError("version", f"{self._settings.host}: {error}", remedy))
        except (OSError, ValueError):
            pass
        finally:
            self._inbox.put(None)  # whoever waits must learn that nothing more comes

    def _read_start(self, stream: Any) -> bool:
        """Skip the output of the login shell up to the agent's first message; return whether there is one."""
        skipped = 0
        while line := stream.readline(_MAX_BANNER_BYTES):
            if hello := _HELLO.match(line):
                self._inbox.put(Message("hello", {"major": hello[1].decode(), "minor": hello[2].decode()}))
                break
            skipped += len(line)
            if skipped > _MAX_BANNER_BYTES:
                raise FrameError("the login shell prints without end")
        while first := stream.peek(1)[:1]:
            if first != b"N":  # the magic number of a message; lines of `bootstrap` start with "NVFP4 "
                return True
            try:
                failure = read_json(stream.readline(_MAX_BANNER_BYTES)[6:], source="the failure to start")
            except DoorError as error:
                raise FrameError(str(error)) from error
            self._inbox.put(Message("failed", failure if isinstance(failure, dict) else {}))
        return False

    def _read_errors(self) -> None:
        assert self._process is not None
        stream = self._process.stderr
        assert stream is not None
        stored = 0
        with suppress(OSError, ValueError):
            while chunk := stream.read1(4096):  # type: ignore[attr-defined]
                self._errors.append(chunk)
                stored += len(chunk)
                while stored - len(self._errors[0]) >= _MAX_ERROR_BYTES:
                    stored -= len(self._errors.popleft())

    def _ping(self) -> None:
        while not self._closed.wait(_PING_S):
            if self.agent is None:
                continue
            try:
                self._send(Message("ping"))
            except RemoteError:
                return
