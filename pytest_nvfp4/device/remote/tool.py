"""Command-line tool of another package: found on PATH, checked by its ``--help``, stopped at its deadline."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pytest_nvfp4.device.remote.base import RemoteError
from pytest_nvfp4.isolation.environment import scrubbed

_HELP_S = 60.0
_OPTION = re.compile(r"--[a-z][a-z-]+")
_MAX_OUTPUT_BYTES = 64 << 20
_MAX_LINE = 300
_CHUNK_BYTES = 1 << 16
_DRAIN_S = 5.0

StartCallback = Callable[[Callable[[], None]], None]
"""Receives a function that kills the process."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """Exit status and output of a command."""

    status: int
    stdout: str
    stderr: str

    @property
    def last_line(self) -> str:
        """Last line of standard error, or of standard output if that is empty."""
        lines = [line.strip() for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        return lines[-1][:_MAX_LINE] if lines else ""


class _Tail:
    """Reads a stream in a thread, and keeps its end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError, ValueError), self._stream:
            while chunk := os.read(self._stream.fileno(), _CHUNK_BYTES):
                self._chunks.append(chunk)
                self._size += len(chunk)
                while self._size - len(self._chunks[0]) >= _MAX_OUTPUT_BYTES:
                    self._size -= len(self._chunks.popleft())

    def text(self) -> str:
        """Return what was read until now, once the process has ended; a process that it left may keep the stream."""
        self._thread.join(_DRAIN_S)
        return b"".join(list(self._chunks))[-_MAX_OUTPUT_BYTES:].decode("utf-8", "replace")


class CommandLineTool:
    """A command of another package.

    Args:
        names: Names of the command; the first one on PATH is used.
        install: How to install it, for errors.
        environ: Names of variables that it receives in addition to the scrubbed environment.
    """

    def __init__(self, names: Sequence[str], *, install: str, environ: Sequence[str] = ()) -> None:
        self._names = list(names)
        self._install = install
        self._environ = list(environ)
        self._help: dict[tuple[str, ...], str] = {}
        self._guard = threading.Lock()

    @property
    def path(self) -> str:
        """Path of the command. Raises RemoteError."""
        for name in self._names:
            if path := shutil.which(name):
                return path
        raise RemoteError("setup", f"{' or '.join(self._names)} is not on PATH", self._install)

    def options(self, *verb: str) -> frozenset[str]:
        """Return the options that ``VERB --help`` lists. Raises RemoteError if the verb does not exist."""
        with self._guard:
            if verb not in self._help:
                output = self.run([*verb, "--help"], timeout_s=_HELP_S)
                if output.status:
                    detail = f" ({output.last_line})" if output.last_line else ""
                    raise RemoteError("version", f"{self._command(verb)} does not exist{detail}", self._install)
                self._help[verb] = output.stdout + output.stderr
        return frozenset(_OPTION.findall(self._help[verb]))

    def require(self, verb: Sequence[str], options: Sequence[str]) -> frozenset[str]:
        """Return the options of a verb. Raises RemoteError if some of the given ones are missing."""
        supported = self.options(*verb)
        if missing := [option for option in options if option not in supported]:
            problem = f"{self._command(verb)} has no option {', '.join(missing)}: its version is not supported"
            raise RemoteError("version", problem, self._install)
        return supported

    def run(
        self,
        arguments: Sequence[str],
        *,
        timeout_s: float,
        cwd: Path | None = None,
        on_start: StartCallback | None = None,
    ) -> ToolOutput:
        """Run the command to its end, without a terminal.

        Args:
            arguments: Its arguments.
            timeout_s: Seconds after which it is killed.
            cwd: Its working directory.
            on_start: Called when it has started.

        Raises:
            RemoteError: It cannot be started, or the timeout passed.
        """
        environ = scrubbed(os.environ, {name: os.environ[name] for name in self._environ if name in os.environ})
        try:
            process = subprocess.Popen(
                [self.path, *arguments],
                cwd=cwd,
                env={**environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a process group of its own, so that `kill` reaches its children
            )
        except OSError as error:
            problem = f"{self.path} cannot be started: {error.strerror or error}"
            raise RemoteError("setup", problem, self._install) from error

        def kill() -> None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

        if on_start is not None:
            on_start(kill)
        outputs = [_Tail(stream) for stream in (process.stdout, process.stderr) if stream is not None]
        try:
            process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            problem = f"{self._command(arguments[:2])} did not end within {timeout_s:.0f} s"
            remedy = "raise --nvfp4-remote-timeout, or check the status of the service"
            raise RemoteError("timeout", problem, remedy) from error
        finally:
            kill()
            process.wait()
            texts = [output.text() for output in outputs]
        return ToolOutput(process.returncode, *texts)

    def _command(self, verb: Sequence[str]) -> str:
        return " ".join([Path(self.path).name, *verb])
