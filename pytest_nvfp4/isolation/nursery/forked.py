"""A process that a nursery forked, for the one that asked for it: as much of ``subprocess.Popen`` as is needed."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import select
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

_TELLING_S = 5.0
"""How long a nursery that somebody has stopped may take to tell of an end that shows, should he let it go on."""
_BUSY_S = 120.0
"""How long one may take that was not: it may just be importing for another job, on a machine that is slow."""
_LOOK_S = 0.2


class Forked:
    """A forked process. Until :meth:`close` its number is not given to another, as it has not been waited for.

    Attributes:
        pid: Its number.
        stdout: The reading end of its standard output.
        stderr: That of its standard error.
        returncode: Its exit status, negative for a signal; None while it runs.

    Raises:
        OSError: there is no such process.
    """

    def __init__(self, pid: int, channel: socket.socket, *, stdout: io.FileIO, stderr: io.FileIO) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        self._channel = channel
        self._handle = io.FileIO(os.pidfd_open(pid), "rb")  # an object, which closes it
        self._ended: float | None = None

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        if self.returncode is None:
            self._look(timeout=0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = until - time.monotonic()
            self._look(timeout=max(0.0, min(left, _LOOK_S)))
            if self.returncode is None and timeout is not None and left <= 0:
                raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout)
        return self.returncode

    def close(self) -> None:
        """Have the nursery wait for it, and end it if it has not ended."""
        self._handle.close()
        self._channel.close()

    def _look(self, *, timeout: float) -> None:
        message = heard(self._channel, timeout=timeout)
        if message is None and self._overdue():
            message = {}
        if message is not None:
            # Without a word the nursery itself has ended, and the kernel sends this signal to all its children.
            self.returncode = int(message.get("ended", -signal.SIGKILL))

    def _overdue(self) -> bool:
        if self._ended is None:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            if poll.poll(0):
                self._ended = time.monotonic()
        waited = 0.0 if self._ended is None else time.monotonic() - self._ended
        return waited > _TELLING_S and (waited > _BUSY_S or _stopped(_parent(self.pid)))


def heard(channel: socket.socket, *, timeout: float | None) -> dict[str, Any] | None:
    """The next message about a process: empty where there will be none, None where there was none in time."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    if not poll.poll(None if timeout is None else timeout * 1000):
        return None
    data = b""
    with contextlib.suppress(ConnectionError):
        data = channel.recv(1 << 16)
    message: dict[str, Any] = json.loads(data) if data else {}
    return message


def _parent(pid: int) -> int:
    """The parent of a process, 0 where it has none any more; that of one that was not waited for is still known."""
    found = _stat(pid)
    return int(found[1]) if found else 0


def _stopped(pid: int) -> bool:
    """Whether a process was stopped, by a signal or by who traces it."""
    found = _stat(pid)
    return bool(found) and found[0] in "Tt"


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
