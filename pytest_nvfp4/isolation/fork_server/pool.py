"""The fork servers of this process: one for each combination of environment and inherited state, with torch or without.

A fork copies the page tables of all that its server has imported: 18 ms with torch, 3 ms without (measured), and a
worker behind a wall takes three of them. So workers that need no torch are not forked from a server that has it.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pytest_nvfp4.isolation.fork_server import compatibility
from pytest_nvfp4.isolation.fork_server.messages import ForkRequest
from pytest_nvfp4.isolation.fork_server.process import ForkedProcess, ForkServer, SharedForkServer
from pytest_nvfp4.isolation.worker import Worker

SWITCH_VARIABLE: Final = "NVFP4_FORK_SERVER"
"""Environment variable: ``0`` disables fork servers; ``FOLDER:PID`` makes processes share them.

For scripts and tests that start many commands, each of which would import torch. The sockets are in FOLDER, which must
belong to the user alone: whoever can connect starts processes as the user. The servers end with process PID, or when
none is connected for half a minute.
"""
_LARGE: Final = "torch"
_MOST_SERVERS: Final = 3
"""Each server holds the memory of what it has imported."""
_MOST_REFUSED_KEYS: Final = 32

_log = logging.getLogger(__name__)


class ForkServers:
    """Fork servers by compatibility key. They end with :meth:`close`."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start without servers, also after a fork of this process: the parent owns them, and may hold the lock."""
        self._lock = threading.Lock()
        self._servers: dict[object, ForkServer | None] = {}  # in order of use; None if a server has failed
        self._refused_keys: deque[object] = deque(maxlen=_MOST_REFUSED_KEYS)

    def fork(self, worker: Worker, request: ForkRequest) -> ForkedProcess | None:
        """Return a process that runs ``worker``, or None if the caller must start a plain one.

        Raises:
            StoppedError: This thread was stopped.
        """
        if not _supported(worker, request.environ):
            return None
        environ = compatibility.shared_environment(request.environ)
        key: object = None
        try:
            large = _LARGE in worker.preload
            key = (worker.launcher, frozenset(environ.items()), compatibility.inherited_state(), large)
            server = self._acquire(key, worker.launcher, environ, large=large)
            if server is None:
                return None
            with contextlib.ExitStack() as resources:
                resources.callback(self._release, server)
                return server.fork(worker, request, resources)
        except (OSError, ValueError) as error:
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
            servers, self._servers = self._servers, {}
            self._refused_keys.clear()
        for server in servers.values():
            if server is not None:
                server.close()

    def _acquire(
        self, key: object, launcher: tuple[str, ...], environ: Mapping[str, str], *, large: bool
    ) -> ForkServer | None:
        """Return the server of a key, started if there is room for it, and count a user of it."""
        with self._lock:
            if key in self._servers:
                self._servers[key] = server = self._servers.pop(key)
            elif self._make_room(key):
                self._servers[key] = None  # stays so if the server cannot be started
                self._servers[key] = server = _start(launcher, environ, large=large)
            else:
                return None
            if server is not None:
                server.users += 1
            return server

    def _release(self, server: ForkServer) -> None:
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
            self._refused_keys.append(key)
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


def _start(launcher: tuple[str, ...], environ: Mapping[str, str], *, large: bool) -> ForkServer:
    folder, _, owner = os.environ.get(SWITCH_VARIABLE, "").rpartition(":")
    if not folder:
        return ForkServer(launcher, environ)
    # Not of the key: the order of a set of texts differs from process to process.
    key = repr((launcher, sorted(environ.items()), compatibility.inherited_state(), large))
    path = Path(folder) / hashlib.sha256(key.encode()).hexdigest()[:16]
    return SharedForkServer(launcher, environ, path=path, owner=int(owner))


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
atexit.register(FORK_SERVERS.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=FORK_SERVERS.forget)
