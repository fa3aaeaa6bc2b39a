"""Run one command isolated: own session, deadline, bounded output, result over its own pipe, no orphans."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_nvfp4.isolation import stopping
from pytest_nvfp4.isolation.descent import descendants
from pytest_nvfp4.isolation.environment import TOKEN_VARIABLE, scrubbed
from pytest_nvfp4.isolation.limits import FILE_VARIABLE, MEMORY_VARIABLE, PARENT_VARIABLE
from pytest_nvfp4.isolation.outcome import Captured, Outcome
from pytest_nvfp4.isolation.worker import Worker

if TYPE_CHECKING:
    from pytest_nvfp4.isolation.nursery import Forked

RESULT_VARIABLE = "NVFP4_RESULT_FD"
"""Environment variable that names the descriptor on which the process returns its result."""

_DRAIN_S = 1.0
_LOOK_S = 0.05


class _Tail:
    """Keeps the first and the last bytes of a stream and counts the rest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._dropped = 0

    def feed(self, chunk: bytes) -> None:
        room = self._limit // 2 - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._tail.append(chunk)
            self._tail_size += len(chunk)
            while self._tail_size - len(self._tail[0]) >= self._limit // 2:
                dropped = self._tail.popleft()
                self._tail_size -= len(dropped)
                self._dropped += len(dropped)

    def captured(self) -> Captured:
        tail = b"".join(self._tail)
        if not self._dropped:
            return Captured((bytes(self._head) + tail).decode("utf-8", "replace"))
        return Captured(self._head.decode("utf-8", "replace"), tail.decode("utf-8", "replace"), self._dropped)


class _Result:
    """Collects the result pipe up to a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self.overflow = False

    def feed(self, chunk: bytes) -> None:
        if self.overflow or len(self._data) + len(chunk) > self._limit:
            self.overflow = True
            self._data.clear()
        else:
            self._data += chunk

    def value(self) -> bytes | None:
        return bytes(self._data) if self._data and not self.overflow else None


def _marked(token: str) -> list[int]:
    """Processes that carry our token in their environment: children that left the process group included."""
    needle = f"{TOKEN_VARIABLE}={token}".encode()
    found = []
    for entry in Path("/proc").iterdir() if sys.platform == "linux" else ():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def kill_group(pid: int) -> None:
    """Kill a process group; it may be gone already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_family(pid: int) -> int:
    """Kill the group of a process that was not waited for, and what left the group but descends from it.

    A worker is the parent of all orphans among its descendants (``descent.adopt``), so that while it lives
    they are found, whatever they did to hide.

    Returns:
        How many had left the group.
    """
    away = [one for one in descendants(pid) if _left(one, group=pid)]
    kill_group(pid)
    for one in away:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one, signal.SIGKILL)
    return len(away)


def _left(pid: int, *, group: int) -> bool:
    try:
        return os.getpgid(pid) != group
    except (ProcessLookupError, PermissionError):
        return False


def kill_marked(token: str, own: int) -> int:
    """Kill what is left, until a look finds nothing more (a fork bomb may outrun one look)."""
    killed: set[int] = set()
    for _ in range(20):
        left = [pid for pid in _marked(token) if pid != own]
        if not left:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.005)
    return len(killed)


@contextlib.contextmanager
def started(
    command: Sequence[str] | Worker, *, cwd: Path, environ: Mapping[str, str], token: str, stdin: Path | None = None
) -> Iterator[tuple[subprocess.Popen[bytes] | Forked, int]]:
    """The started process and the reading end of its result pipe; whatever happens, nothing of it is left.

    Its standard input is the file ``stdin``, or empty.
    """
    read_end, write_end = os.pipe()
    try:
        try:
            with (stdin or Path(os.devnull)).open("rb") as given:
                process = _start(command, cwd=cwd, environ=environ, token=token, stdin=given.fileno(), result=write_end)
        finally:
            os.close(write_end)
        try:
            yield process, read_end
        finally:
            if process.poll() is None:
                kill_family(process.pid)
            else:
                kill_group(process.pid)
            process.wait()
            kill_marked(token, os.getpid())
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            if not isinstance(process, subprocess.Popen):
                process.close()
    finally:
        os.close(read_end)


def _start(
    command: Sequence[str] | Worker, *, cwd: Path, environ: Mapping[str, str], token: str, stdin: int, result: int
) -> subprocess.Popen[bytes] | Forked:
    """Have it forked where that can be, and start it from nothing otherwise."""
    if isinstance(command, Worker):
        from pytest_nvfp4.isolation.nursery import NURSERIES, Birth

        birth = Birth(
            cwd=cwd, environ=environ, token=token, stdin=stdin, result=result, result_variable=RESULT_VARIABLE
        )
        forked = NURSERIES.fork(command, birth)
        if forked is not None:
            return forked
        command = command.command
    return subprocess.Popen(
        command,
        cwd=cwd,
        env={**environ, RESULT_VARIABLE: str(result), TOKEN_VARIABLE: token},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(result,),
        start_new_session=True,
    )


def run(
    command: Sequence[str] | Worker,
    *,
    cwd: Path,
    deadline_s: float,
    environ: Mapping[str, str] | None = None,
    memory_bytes: int | None = None,
    file_bytes: int | None = None,
    output_bytes: int = 1 << 20,
    result_bytes: int = 256 << 20,
) -> Outcome:
    """Run ``command`` isolated and wait for its end.

    The command gets a scrubbed environment with ``environ`` on top, no standard input, and a descriptor (named by
    ``NVFP4_RESULT_FD``) on which it returns its result. It leads its own session. When it ends, when the deadline
    passes, or when this call is interrupted, it and everything it started are killed: its process group, and by a
    token in the environment also children that left the group.

    Args:
        command: Program and arguments, or a worker, which may be forked (see ``isolation.nursery``). Memory and file
            limits take effect where the command calls ``pytest_nvfp4.isolation.limits.apply`` on itself, as this
            project's workers do.
        cwd: Its working directory.
        deadline_s: Seconds after which it is killed.
        environ: Variables on top of the scrubbed environment.
        memory_bytes: Limit on its private memory.
        file_bytes: Limit on the size of any file it writes.
        output_bytes: How much of each output stream is kept (half from the start, half from the end); the rest is
            read and dropped, so that a flood costs neither memory nor disk.
        result_bytes: The largest result that is accepted.

    Raises:
        OSError: the command could not be started.
        StoppedError: this thread was to stop meanwhile (see ``stopped_by``).
    """
    token = secrets.token_hex(16)
    settings = {PARENT_VARIABLE: str(os.getpid()), **(environ or {})}
    if memory_bytes is not None:
        settings[MEMORY_VARIABLE] = str(memory_bytes)
    if file_bytes is not None:
        settings[FILE_VARIABLE] = str(file_bytes)
    out, err, result = _Tail(output_bytes), _Tail(output_bytes), _Result(result_bytes)
    timed_out = False
    stragglers = 0
    with (
        started(command, cwd=cwd, environ=scrubbed(os.environ, settings), token=token) as (process, read_end),
        selectors.DefaultSelector() as selector,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        for descriptor, sink in ((process.stdout.fileno(), out), (process.stderr.fileno(), err), (read_end, result)):
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ, sink)
        start = time.monotonic()  # what it waited for a nursery is no time of its own
        until = start + deadline_s
        ended = False
        while selector.get_map():
            stopping.check()
            left = until - time.monotonic()
            if left <= 0:
                if ended:
                    break  # a straggler holds a pipe open: it is killed below, what it has to say does not count
                timed_out = True
                stragglers += kill_family(process.pid)
                ended, until = True, time.monotonic() + _DRAIN_S
                continue
            for key, _ in selector.select(timeout=min(left, _LOOK_S)):
                try:
                    chunk = os.read(key.fd, 1 << 16)
                except BlockingIOError:
                    continue
                if chunk:
                    key.data.feed(chunk)
                else:
                    selector.unregister(key.fd)
            if not ended and process.poll() is not None:
                kill_group(process.pid)
                stragglers += kill_marked(token, os.getpid())  # they may hold a pipe open
                ended, until = True, min(until, time.monotonic() + _DRAIN_S)
        while not ended and process.poll() is None:  # it closed its pipes and runs on
            stopping.check()
            try:
                process.wait(timeout=min(_LOOK_S, max(0.0, until - time.monotonic())))
            except subprocess.TimeoutExpired:
                if time.monotonic() >= until:
                    ended = timed_out = True
                    stragglers += kill_family(process.pid)
        wall = time.monotonic() - start
        returncode = process.wait()
        stragglers += kill_marked(token, os.getpid())
    return Outcome(
        returncode=returncode,
        timed_out=timed_out,
        result=result.value(),
        result_overflow=result.overflow,
        stdout=out.captured(),
        stderr=err.captured(),
        wall_s=wall,
        stragglers=stragglers,
    )
