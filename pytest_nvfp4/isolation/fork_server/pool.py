"""The fork servers of this process: one for each combination of environment and inherited state."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import io
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Final

from pytest_nvfp4.isolation import cancellation
from pytest_nvfp4.isolation.environment import TOKEN_VARIABLE
from pytest_nvfp4.isolation.fork_server import compatibility
from pytest_nvfp4.isolation.fork_server.child import TOKEN_PLACEHOLDER
from pytest_nvfp4.isolation.fork_server.messages import Descriptors, ForkRequest, receive_report
from pytest_nvfp4.isolation.fork_server.process import ForkedProcess
from pytest_nvfp4.isolation.worker import Worker

SWITCH_VARIABLE: Final = "NVFP4_FORK_SERVER"
"""Environment variable that disables fork servers if it is ``0``."""
_MODULE = "pytest_nvfp4.isolation.fork_server.server"
_MOST_SERVERS: Final = 3
"""Each server holds the memory of what it has imported."""
_MOST_REFUSED_KEYS: Final = 32
_START_S = 60.0
"""Seconds until a child must have started: many times what all imports take on a busy machine."""
_POLL_S = 0.05

_log = logging.getLogger(__name__)


class ServerLostError(Exception):
    """A fork server has ended or does not respond."""


class _ForkServer:
    """The process of one fork server.

    Args:
        launcher: Command that starts a module of this package (see ``Worker.launcher``).
        environ: Environment of the server.

    Attributes:
        users: Number of pending requests and of children that have not been closed.

    Raises:
        OSError: The server could not be started.
    """

    def __init__(self, launcher: tuple[str, ...], environ: Mapping[str, str]) -> None:
        self.users = 0
        self._control, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        package = __name__.partition(".")[0]
        with server_end:
            self._process = subprocess.Popen(
                [*launcher, _MODULE, str(server_end.fileno()), str(os.getpid()), package],
                cwd="/",
                env={**environ, TOKEN_VARIABLE: TOKEN_PLACEHOLDER},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # Python buffers a stream to a pipe as a worker's; the server replaces it
                stderr=subprocess.PIPE,
                pass_fds=(server_end.fileno(),),
                start_new_session=True,
            )
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    @property
    def pid(self) -> int:
        """Number of the server's process."""
        return self._process.pid

    def fork(self, worker: Worker, request: ForkRequest, resources: contextlib.ExitStack) -> ForkedProcess | None:
        """Return a child that runs ``worker`` and owns ``resources``; None if the server refuses this one.

        Raises:
            ServerLostError: The server has ended or does not respond.
            StoppedError: This thread was stopped.
        """
        reports, child_reports = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        resources.callback(reports.close)
        stdout, child_stdout = _pipe(resources)
        stderr, child_stderr = _pipe(resources)
        with child_reports, child_stdout, child_stderr:
            descriptors = Descriptors(
                stdin=request.stdin,
                stdout=child_stdout.fileno(),
                stderr=child_stderr.fileno(),
                result=request.result,
                reports=child_reports.fileno(),
            )
            self._send(worker, request, descriptors)
        pid = _receive_start(reports)
        if pid is None:
            return None
        pidfd = os.pidfd_open(pid)
        resources.callback(os.close, pidfd)
        owned = resources.pop_all()
        return ForkedProcess(pid, pidfd=pidfd, reports=reports, stdout=stdout, stderr=stderr, resources=owned)

    def _send(self, worker: Worker, request: ForkRequest, descriptors: Descriptors) -> None:
        message = {
            "worker": dataclasses.asdict(worker),
            "environ": dict(request.environ),
            "cwd": str(request.cwd),
            "token": request.token,
        }
        with os.fdopen(os.memfd_create("nvfp4-fork-request"), "wb") as file:
            file.write(json.dumps(message).encode())
            file.flush()
            try:
                socket.send_fds(self._control, [b"\0"], [file.fileno(), *descriptors])
            except OSError as error:
                raise ServerLostError(f"it has ended: {error}") from error

    def close(self) -> None:
        """Kill the server; its children end with it."""
        self._process.kill()
        self._process.wait()
        self._control.close()


def _pipe(resources: contextlib.ExitStack) -> tuple[io.FileIO, io.FileIO]:
    """Return the reading and the writing end of a pipe, which ``resources`` closes."""
    read, write = os.pipe()
    ends = io.FileIO(read, "rb"), io.FileIO(write, "wb")
    for end in ends:
        resources.callback(end.close)
    return ends


def _receive_start(reports: socket.socket) -> int | None:
    """Wait until a child has started, and return its number; None if it was refused."""
    until = time.monotonic() + _START_S
    while (report := receive_report(reports, timeout_s=_POLL_S)) is None:
        cancellation.check()
        if time.monotonic() >= until:
            raise ServerLostError(f"it has not responded in {_START_S:.0f} s")
    if not report:
        raise ServerLostError("it has ended")
    if "refused" in report:
        _log.debug("not forked: %s", report["refused"])
    pid: int | None = report.get("started")
    return pid


class ForkServers:
    """Fork servers by compatibility key. They end with this process, or with :meth:`close`."""

    def __init__(self) -> None:
        self._forget()
        self._registered = False

    def _forget(self) -> None:
        """Start without servers, also after a fork of this process: the parent owns them, and may hold the lock."""
        self._lock = threading.Lock()
        self._servers: dict[object, _ForkServer | None] = {}  # in order of use; None if a server has failed
        self._refused_keys: dict[object, None] = {}

    def fork(self, worker: Worker, request: ForkRequest) -> ForkedProcess | None:
        """Return a process that runs ``worker``, or None if the caller must start a plain one.

        Raises:
            StoppedError: This thread was stopped.
        """
        if not _supported(worker, request.environ):
            return None
        shared = compatibility.shared_environment(request.environ)
        key: object = None
        try:
            key = (worker.launcher, frozenset(shared.items()), compatibility.inherited_state())
            with contextlib.ExitStack() as resources:
                server = self._acquire(key, worker, shared, resources)
                return None if server is None else server.fork(worker, request, resources)
        except (ServerLostError, OSError, ValueError) as error:
            _log.debug("no fork server: %s", error)
            self._drop(key)
            return None

    @property
    def pids(self) -> list[int]:
        """Process numbers of the running servers."""
        servers = list(self._servers.values())  # another thread may be adding one
        return [server.pid for server in servers if server is not None]

    def close(self) -> None:
        """End all servers. A later request starts new ones."""
        with self._lock:
            servers, self._servers, self._refused_keys = self._servers, {}, {}
        for server in servers.values():
            if server is not None:
                server.close()

    def _acquire(
        self, key: object, worker: Worker, environ: Mapping[str, str], resources: contextlib.ExitStack
    ) -> _ForkServer | None:
        """Return the server of a key, started if there is room for it, and count a user until ``resources`` close."""
        with self._lock:
            if key in self._servers:
                self._servers[key] = server = self._servers.pop(key)
            elif self._make_room(key):
                self._servers[key] = None  # stays so if the server cannot be started
                self._servers[key] = server = _ForkServer(worker.launcher, environ)
                if not self._registered:
                    atexit.register(self.close)
                    os.register_at_fork(after_in_child=self._forget)
                    self._registered = True
            else:
                return None
            if server is not None:
                server.users += 1
                resources.callback(self._release, server)
            return server

    def _release(self, server: _ForkServer) -> None:
        with self._lock:
            server.users -= 1

    def _make_room(self, key: object) -> bool:
        """Return whether another server may start, after ending an unused one for a key that was refused before.

        To start a server for a single child takes longer than to start that child as a plain process, so the first
        request with a new key ends no other server.
        """
        running = [(other, server) for other, server in self._servers.items() if server is not None]
        if len(running) < _MOST_SERVERS:
            return True
        if key not in self._refused_keys:
            self._refused_keys[key] = None
            while len(self._refused_keys) > _MOST_REFUSED_KEYS:
                del self._refused_keys[next(iter(self._refused_keys))]
            return False
        for other, server in running:
            if not server.users:
                del self._servers[other]
                server.close()
                return True
        return False

    def _drop(self, key: object) -> None:
        """End a server that has failed, and start none for its key again: what ended it would do so again."""
        with self._lock:
            if (server := self._servers.get(key)) is not None:
                self._servers[key] = None
                server.close()


def _supported(worker: Worker, environ: Mapping[str, str]) -> bool:
    return bool(
        worker.preload
        and sys.platform == "linux"
        and hasattr(os, "pidfd_open")
        and worker.launcher[:1] == (sys.executable,)
        and os.environ.get(SWITCH_VARIABLE) != "0"
        and environ.get(SWITCH_VARIABLE) != "0"
    )


FORK_SERVERS: Final = ForkServers()
"""The fork servers of this process."""
