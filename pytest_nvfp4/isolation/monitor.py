"""Start a command in its own session, read its pipes to its end, and kill it with what it left behind."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pytest_nvfp4.isolation import cancellation
from pytest_nvfp4.isolation.environment import RESULT_VARIABLE, scrubbed
from pytest_nvfp4.isolation.limits import DEADLINE_VARIABLE, PARENT_VARIABLE
from pytest_nvfp4.isolation.outcome import ProcessEnd
from pytest_nvfp4.isolation.process_tree import kill_group, kill_tree
from pytest_nvfp4.isolation.worker import Worker

if TYPE_CHECKING:
    from pytest_nvfp4.isolation.fork_server.process import ForkedProcess

Pipe = Literal["stdout", "stderr", "result"]
"""Name of a pipe of a process."""

_DRAIN_S = 1.0
"""Seconds for which pipes are read after the end of a process; a straggler may hold one open."""
_POLL_S = 0.05
_CHUNK_BYTES = 1 << 16
_MOST_CHUNKS = 16
"""A pipe holds at most 1 MiB (``/proc/sys/fs/pipe-max-size``); a straggler could write to it without end."""


class ProcessMonitor:
    """Monitors a process until it has ended.

    ``result`` is the reading end of its result pipe, and ``until`` its deadline on the monotonic clock, in seconds.
    ``meanwhile`` is called many times a second while it runs; an exception from it ends the process.

    Attributes:
        timed_out: Whether it was killed at its deadline.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes] | ForkedProcess,
        result: int,
        *,
        until: float,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.timed_out = False
        self._process = process
        self._pipes: Mapping[Pipe, int] = {
            "stdout": process.stdout.fileno(),
            "stderr": process.stderr.fileno(),
            "result": result,
        }
        self._start = time.monotonic()
        self._until = until
        self._meanwhile = meanwhile
        self._ended = False

    def output(self) -> Generator[tuple[Pipe, bytes], None, None]:
        """Yield the output of all pipes in chunks until the process has ended; it has not been reaped then.

        Raises:
            StoppedError: This thread was stopped (see ``stopped_by``).
        """
        with selectors.DefaultSelector() as selector:
            for pipe, descriptor in self._pipes.items():
                os.set_blocking(descriptor, False)
                selector.register(descriptor, selectors.EVENT_READ, pipe)
            while selector.get_map():
                self._check()
                left = self._until - time.monotonic()
                if left <= 0:
                    # This process may itself have been held up, so the other one may have ended in time.
                    self._check_end()
                    if self._ended:
                        yield from self._buffered(selector)
                        break  # a straggler holds a pipe open; it is killed later, and its output does not count
                    self._time_out()
                    continue
                for key, _ in selector.select(timeout=min(left, _POLL_S)):
                    try:
                        chunk = os.read(key.fd, _CHUNK_BYTES)
                    except BlockingIOError:
                        continue
                    if chunk:
                        yield key.data, chunk
                    else:
                        selector.unregister(key.fd)
                self._check_end()
        self._wait()

    def end(self) -> ProcessEnd:
        """Return how the process ended, once all output was read."""
        wall_s = time.monotonic() - self._start
        return ProcessEnd(returncode=self._process.wait(), timed_out=self.timed_out, wall_s=wall_s)

    def _buffered(self, selector: selectors.BaseSelector) -> Generator[tuple[Pipe, bytes], None, None]:
        """Yield what the pipes already hold."""
        for key in list(selector.get_map().values()):
            for _ in range(_MOST_CHUNKS):
                try:
                    chunk = os.read(key.fd, _CHUNK_BYTES)
                except BlockingIOError:
                    break
                if not chunk:
                    break
                yield key.data, chunk

    def _check(self) -> None:
        cancellation.check()
        if self._meanwhile is not None:
            self._meanwhile()

    def _time_out(self) -> None:
        self.timed_out = True
        kill_tree(self._process.pid)
        self._ended, self._until = True, time.monotonic() + _DRAIN_S

    def _check_end(self) -> None:
        if not self._ended and self._process.poll() is not None:
            kill_group(self._process.pid)  # what is left may hold a pipe open
            self._ended, self._until = True, min(self._until, time.monotonic() + _DRAIN_S)

    def _wait(self) -> None:
        """Wait for a process that has closed its pipes and runs on."""
        while not self._ended and self._process.poll() is None:
            self._check()
            try:
                self._process.wait(timeout=min(_POLL_S, max(0.0, self._until - time.monotonic())))
            except subprocess.TimeoutExpired:
                if time.monotonic() >= self._until:
                    self._time_out()


@contextlib.contextmanager
def monitored(
    command: Sequence[str] | Worker,
    *,
    cwd: Path,
    deadline_s: float,
    environ: Mapping[str, str] | None = None,
    stdin: Path | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Iterator[ProcessMonitor]:
    """Start a command for the length of a ``with`` block, in a scrubbed environment with ``environ`` on top."""
    own = {PARENT_VARIABLE: str(os.getpid()), DEADLINE_VARIABLE: f"{time.monotonic() + deadline_s:.3f}"}
    variables = scrubbed(os.environ, {**own, **(environ or {})})
    with _started(command, cwd=cwd, environ=variables, stdin=stdin) as (process, result):
        # The time that a fork server took to start is not the command's.
        yield ProcessMonitor(process, result, until=time.monotonic() + deadline_s, meanwhile=meanwhile)


@contextlib.contextmanager
def _started(
    command: Sequence[str] | Worker, *, cwd: Path, environ: Mapping[str, str], stdin: Path | None
) -> Iterator[tuple[subprocess.Popen[bytes] | ForkedProcess, int]]:
    """Yield a process and the reading end of its result pipe; kill it and its descendants afterwards."""
    read_end, write_end = os.pipe()
    try:
        try:
            with (stdin or Path(os.devnull)).open("rb") as file:
                process = _start(command, cwd=cwd, environ=environ, stdin=file.fileno(), result=write_end)
        finally:
            os.close(write_end)
        try:
            yield process, read_end
        finally:
            if process.poll() is None:
                kill_tree(process.pid)
            else:
                kill_group(process.pid)
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            if not isinstance(process, subprocess.Popen):
                process.close()
    finally:
        os.close(read_end)


def _start(
    command: Sequence[str] | Worker, *, cwd: Path, environ: Mapping[str, str], stdin: int, result: int
) -> subprocess.Popen[bytes] | ForkedProcess:
    if isinstance(command, Worker):
        from pytest_nvfp4.isolation.fork_server.messages import ForkRequest
        from pytest_nvfp4.isolation.fork_server.pool import FORK_SERVERS

        request = ForkRequest(cwd=cwd, environ=environ, stdin=stdin, result=result)
        forked = FORK_SERVERS.fork(command, request)
        if forked is not None:
            return forked
        command = command.command
    return subprocess.Popen(
        command,
        cwd=cwd,
        env={**environ, RESULT_VARIABLE: str(result)},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(result,),
        start_new_session=True,
    )
