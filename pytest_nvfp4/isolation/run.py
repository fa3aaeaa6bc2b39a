"""Run one command isolated: own session, deadline, bounded output, result over its own pipe, no orphans."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_nvfp4.isolation.environment import scrubbed
from pytest_nvfp4.isolation.killing import kill_marked
from pytest_nvfp4.isolation.limits import FILE_VARIABLE, MEMORY_VARIABLE, PARENT_VARIABLE
from pytest_nvfp4.isolation.monitor import Pipe, ProcessMonitor
from pytest_nvfp4.isolation.outcome import Captured, Outcome
from pytest_nvfp4.isolation.start import started
from pytest_nvfp4.isolation.worker import Worker


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
    sinks: dict[Pipe, _Tail | _Result] = {"stdout": out, "stderr": err, "result": result}
    with started(command, cwd=cwd, environ=scrubbed(os.environ, settings), token=token) as (process, read_end):
        start = time.monotonic()  # what it waited for a nursery is no time of its own
        watch = ProcessMonitor(process, read_end, token=token, until=start + deadline_s)
        with contextlib.closing(watch.output()) as output:
            for pipe, chunk in output:
                sinks[pipe].feed(chunk)
        wall = time.monotonic() - start
        returncode = process.wait()
        stragglers = watch.stragglers + kill_marked(token, os.getpid())
    return Outcome(
        returncode=returncode,
        timed_out=watch.timed_out,
        result=result.value(),
        result_overflow=result.overflow,
        stdout=out.captured(),
        stderr=err.captured(),
        wall_s=wall,
        stragglers=stragglers,
    )
