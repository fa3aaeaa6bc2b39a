"""Run one command isolated: in a session of its own, with a deadline, bounded output and a pipe for its result."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_nvfp4.activity import ACTIVITIES
from pytest_nvfp4.isolation.monitor import Pipe, monitored
from pytest_nvfp4.isolation.outcome import Captured, Outcome
from pytest_nvfp4.isolation.wall.description import Wall
from pytest_nvfp4.isolation.worker import Worker


class _OutputBuffer:
    """Stores the first and the last bytes of a stream and counts the rest."""

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


class _ResultBuffer:
    """Stores a result up to a limit, and nothing of one that exceeds it."""

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
        return bytes(self._data) or None


def run(
    command: Sequence[str] | Worker,
    *,
    cwd: Path,
    deadline_s: float,
    environ: Mapping[str, str] | None = None,
    wall: Wall | None = None,
    stdin: Path | None = None,
    on_result: Callable[[bytes], None] | None = None,
    output_bytes: int = 1 << 20,
    result_bytes: int = 256 << 20,
) -> Outcome:
    """Run ``command`` isolated and wait for its end.

    The command gets a scrubbed environment with ``environ`` on top, a standard input that is empty without ``stdin``,
    and a descriptor (named by ``NVFP4_RESULT_FD``) on which it returns its result. It leads its own session. When the
    deadline passes, or when this call is interrupted, it and everything below it are killed. When it ends by itself, so
    is its process group; a worker behind a wall leaves nothing else (``wall.supervisor``).

    Args:
        command: Program and arguments, or a worker, which may be forked (see ``isolation.fork_server``).
        wall: What it may do, once it calls ``wall.move_behind``, as this project's workers do.
        stdin: File of its standard input.
        on_result: Called with each part of the result as it arrives. An exception from it ends the command.
        output_bytes: Bytes stored of each output stream (half from the start, half from the end). The rest is read and
            dropped, so that a flood costs neither memory nor disk.
        result_bytes: Size of the largest accepted result.

    Raises:
        OSError: The command could not be started.
        StoppedError: This thread was stopped (see ``stopped_by``).
    """
    settings = {**(environ or {}), **(wall.variables if wall is not None else {})}
    out, err, result = _OutputBuffer(output_bytes), _OutputBuffer(output_bytes), _ResultBuffer(result_bytes)
    buffers: dict[Pipe, _OutputBuffer | _ResultBuffer] = {"stdout": out, "stderr": err, "result": result}
    with (
        monitored(command, cwd=cwd, deadline_s=deadline_s, environ=settings, stdin=stdin) as monitor,
        contextlib.closing(monitor.output()) as output,
    ):
        for pipe, chunk in output:
            buffers[pipe].feed(chunk)
            if pipe == "result":
                ACTIVITIES.result(chunk)
                if on_result is not None:
                    on_result(chunk)
        end = monitor.end()
    return Outcome(
        returncode=end.returncode,
        timed_out=end.timed_out,
        result=result.value(),
        result_overflow=result.overflow,
        stdout=out.captured(),
        stderr=err.captured(),
        wall_s=end.wall_s,
    )
