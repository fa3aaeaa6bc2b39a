"""A process that a fork server has forked, as seen by the process that requested it."""

from __future__ import annotations

import io
import math
import os
import select
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from pytest_nvfp4.isolation.fork_server.messages import receive_report

_REPORT_S = 30.0
"""Seconds from the end of a process to the server's report; the server may be importing modules for another job."""
_POLL_S = 0.2


class ForkedProcess:
    """A forked process, with the part of the interface of ``subprocess.Popen`` that is needed.

    Its number is not given to another process before :meth:`close`, because the server does not reap it until then.

    Args:
        pid: Its number.
        pidfd: Descriptor that is readable once it has ended.
        reports: Socket on which the server reports its end.
        stdout: Reading end of its standard output.
        stderr: Reading end of its standard error.
        resources: Closes all of these descriptors.

    Attributes:
        returncode: Exit status, negative for a signal; None while it runs.
    """

    def __init__(
        self,
        pid: int,
        *,
        pidfd: int,
        reports: socket.socket,
        stdout: io.FileIO,
        stderr: io.FileIO,
        resources: ExitStack,
    ) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        self._reports = reports
        self._pidfd = pidfd
        self._resources = resources
        self._ended_at: float | None = None

    def poll(self) -> int | None:
        """Return the exit status, None while the process runs."""
        if self.returncode is None:
            self._receive_end(timeout_s=0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process. Raises subprocess.TimeoutExpired."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = until - time.monotonic()
            self._receive_end(timeout_s=max(0.0, min(left, _POLL_S)))
            if self.returncode is None and timeout is not None and left <= 0:
                raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout)
        return self.returncode

    def close(self) -> None:
        """Have the server reap the process, and kill it if it still runs."""
        self._resources.close()

    def _receive_end(self, *, timeout_s: float) -> None:
        report = receive_report(self._reports, timeout_s=timeout_s)
        if report is not None:
            # Without a report the server itself has ended, and the kernel kills its children (`die_with_parent`).
            self.returncode = int(report.get("ended", -signal.SIGKILL))
        elif self._unreported_s() > _REPORT_S:  # the server has been stopped (SIGSTOP), or is busy
            self.returncode = _zombie_status(self.pid)

    def _unreported_s(self) -> float:
        """Seconds since the process was first seen to have ended."""
        if self._ended_at is None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if not poll.poll(0):
                return 0.0
            self._ended_at = time.monotonic()
        return time.monotonic() - self._ended_at


def _zombie_status(pid: int) -> int:
    """Return the exit status of a process that ended and was not reaped, -SIGKILL if it was.

    It is the last field of ``/proc/PID/stat`` (proc(5), ``exit_code``). The server's report is preferred, because a
    process that has made itself undumpable shows 0 there.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return -signal.SIGKILL
    return os.waitstatus_to_exitcode(int(fields[-1])) if fields[0] == "Z" else -signal.SIGKILL
