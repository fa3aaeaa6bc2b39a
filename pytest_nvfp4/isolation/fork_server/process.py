"""A fork server and its children, as seen by the process that started the server."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import io
import json
import logging
import math
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from pytest_nvfp4.isolation import cancellation
from pytest_nvfp4.isolation.fork_server.messages import Descriptors, ForkRequest, receive_report
from pytest_nvfp4.isolation.worker import Worker

_MODULE = "pytest_nvfp4.isolation.fork_server.server"
_START_S = 60.0
"""Seconds until a child must have started: many times what all imports take on a busy machine."""
_START_POLL_S = 0.05
_REPORT_S = 30.0
"""Seconds from the end of a process to the server's report; the server may be importing modules for another job."""
_END_POLL_S = 0.2
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a peer (``struct ucred``, unix(7))."""

_log = logging.getLogger(__name__)


class ForkedProcess:
    """A forked process, with the part of the interface of ``subprocess.Popen`` that is needed.

    Its number is not given to another process before :meth:`close`, because the server does not reap it until then.
    The server reports its end on ``reports``. It takes over ``resources``, which close all descriptors.

    Attributes:
        returncode: Exit status, negative for a signal; None while it runs.
    """

    def __init__(
        self, pid: int, reports: socket.socket, *, stdout: io.FileIO, stderr: io.FileIO, resources: contextlib.ExitStack
    ) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        self._reports = reports
        self._resources = resources.pop_all()
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
            self._receive_end(timeout_s=max(0.0, min(left, _END_POLL_S)))
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
        elif (status := _exit_status(self.pid)) is not None:  # the server is busy, or has been stopped (SIGSTOP)
            self._ended_at = self._ended_at or time.monotonic()
            if time.monotonic() - self._ended_at > _REPORT_S:
                self.returncode = status


def _exit_status(pid: int) -> int | None:
    """Return the exit status of a process that was not reaped, -SIGKILL if it was; None while it runs.

    It is the last field of ``/proc/PID/stat`` (proc(5), ``exit_code``). The server's report is preferred, because a
    process that has made itself undumpable shows 0 there.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return -signal.SIGKILL
    return os.waitstatus_to_exitcode(int(fields[-1])) if fields[0] == "Z" else None


class ForkServer:
    """The process of one fork server.

    Attributes:
        users: Number of pending requests and of children that have not been closed.

    Raises:
        OSError: The server could not be started.
    """

    def __init__(self, launcher: tuple[str, ...], environ: Mapping[str, str]) -> None:
        self.users = 0
        self._control, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_end:
            self._process = _start(launcher, environ, control=server_end, parent=os.getpid())
        self.pid = self._process.pid

    def fork(self, worker: Worker, request: ForkRequest, resources: contextlib.ExitStack) -> ForkedProcess | None:
        """Return a child that runs ``worker`` and owns ``resources``; None if the server refuses this one.

        Raises:
            OSError: The server has ended or does not respond.
            StoppedError: This thread was stopped.
        """
        reports, child_reports = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        (stdout, child_stdout), (stderr, child_stderr) = _pipe(), _pipe()
        for end in (reports, stdout, stderr):
            resources.callback(end.close)
        message = {
            "worker": dataclasses.asdict(worker),
            "environ": dict(request.environ),
            "cwd": str(request.cwd),
        }
        file = os.fdopen(os.memfd_create("nvfp4-fork-request"), "wb")
        with child_reports, child_stdout, child_stderr, file:
            file.write(json.dumps(message).encode())
            file.flush()
            out, err = child_stdout.fileno(), child_stderr.fileno()
            descriptors = Descriptors(request.stdin, out, err, request.result, child_reports.fileno())
            socket.send_fds(self._control, [b"\0"], [file.fileno(), *descriptors])
        pid = _receive_start(reports)
        if pid is None:
            return None
        return ForkedProcess(pid, reports, stdout=stdout, stderr=stderr, resources=resources)

    def close(self) -> None:
        """Kill the server; its children end with it."""
        self._process.kill()
        self._process.wait()
        self._control.close()


class SharedForkServer(ForkServer):
    """A connection to a fork server that several processes use, which ends with a common ancestor of theirs.

    Args:
        path: Path of its socket. Without a server there, one is started.
        owner: The process with which it ends.

    Raises:
        OSError: There is none, and none can be started.
    """

    def __init__(self, launcher: tuple[str, ...], environ: Mapping[str, str], *, path: Path, owner: int) -> None:
        self.users = 0
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._control.connect(str(path))
            except OSError:
                path.unlink(missing_ok=True)
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                    listener.bind(str(path))
                    listener.listen()
                    _start(launcher, environ, control=listener, parent=owner).returncode = 0  # nobody waits for it
                self._control.connect(str(path))
        credentials = self._control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid = _CREDENTIALS.unpack(credentials)[0]

    def close(self) -> None:
        """Close the connection; the children that this process has not closed stay."""
        self._control.close()


def _start(
    launcher: tuple[str, ...], environ: Mapping[str, str], *, control: socket.socket, parent: int
) -> subprocess.Popen[bytes]:
    """Start the process of a fork server; see `server` for its arguments."""
    process = subprocess.Popen(
        [*launcher, _MODULE, str(control.fileno()), str(parent), __name__.partition(".")[0]],
        cwd="/",
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,  # Python buffers a stream to a pipe as a worker's; the server replaces it
        stderr=subprocess.PIPE,
        pass_fds=(control.fileno(),),
        start_new_session=True,
    )
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    return process


def _pipe() -> tuple[io.FileIO, io.FileIO]:
    """Return the reading and the writing end of a pipe."""
    read, write = os.pipe()
    return io.FileIO(read, "rb"), io.FileIO(write, "wb")


def _receive_start(reports: socket.socket) -> int | None:
    """Wait until a child has started, and return its number; None if it was refused. Raises ConnectionError."""
    until = time.monotonic() + _START_S
    while (report := receive_report(reports, timeout_s=_START_POLL_S)) is None:
        cancellation.check()
        if time.monotonic() >= until:
            raise ConnectionError(f"it has not responded in {_START_S:.0f} s")
    if not report:
        raise ConnectionError("it has ended")
    if "refused" in report:
        _log.debug("not forked: %s", report["refused"])
    pid: int | None = report.get("started")
    return pid
