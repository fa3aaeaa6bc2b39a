"""The fork server: ``python -m pytest_nvfp4.isolation.fork_server.server CONTROL PARENT PACKAGE``.

CONTROL is the descriptor of the socket on which requests arrive, PARENT the process that sends them, and PACKAGE the
name of the package that every child loads from its folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pytest_nvfp4.isolation.environment import TOKEN_VARIABLE
from pytest_nvfp4.isolation.fork_server import compatibility
from pytest_nvfp4.isolation.fork_server.child import ForkedChild
from pytest_nvfp4.isolation.fork_server.messages import Descriptors, send_report
from pytest_nvfp4.isolation.prctl import become_subreaper, set_dumpable
from pytest_nvfp4.isolation.process_tree import environment_of, kill, kill_group, processes

_THREADS = Path("/proc/self/task")
_PARENT_CHECK_S = 0.5
_ORPHAN_PASSES = 50


@dataclass(slots=True)
class _Child:
    """A forked process that has not been reaped.

    Attributes:
        pid: Its number.
        pidfd: Readable once it has ended.
        reports: Socket on which its end is reported; the other side hangs up when it no longer needs the child.
        ended: Whether its end was reported.
    """

    pid: int
    pidfd: int
    reports: socket.socket
    ended: bool = False

    def kill(self) -> None:
        """Kill the process and the group that it leads, if it has come so far."""
        kill_group(self.pid)
        kill(self.pid)


class _RefusedError(Exception):
    """This server cannot fork the requested child."""


class _Server:
    """Forks children on request until the process that started it ends.

    Args:
        control: Socket on which requests arrive. Its end is not enough to notice the end of the parent: a process that
            the parent has forked may hold the other side open.
        parent: The process that started this one.
        package: Name of the package that every child loads from its folder.
    """

    def __init__(self, control: socket.socket, *, parent: int, package: str) -> None:
        self._control = control
        self._package = package
        self._base_path = list(sys.path)
        self._children: list[_Child] = []
        self._loaded: set[str] = set()
        self._failure: str | None = None
        self._library_descriptors: set[int] = set()
        self._parent = os.pidfd_open(parent)
        if os.getppid() != parent:
            self._exit()
        become_subreaper()

    def serve(self) -> ForkedChild:
        """Serve requests to the end of this process; only a forked child returns from here."""
        while True:
            poll = select.poll()
            poll.register(self._control, select.POLLIN)
            poll.register(self._parent, select.POLLIN)
            for child in self._children:
                poll.register(child.reports, select.POLLIN)
                if not child.ended:
                    poll.register(child.pidfd, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._parent in ready:
                self._exit()
            for child in [*self._children]:
                if child.pidfd in ready and not child.ended:
                    self._report_end(child)
                if child.reports.fileno() in ready:
                    self._reap(child)
            if self._control.fileno() in ready and (forked := self._handle_request()) is not None:
                return forked

    def _handle_request(self) -> ForkedChild | None:
        """Fork a child or refuse it; only the child returns a value."""
        data, passed, _, _ = socket.recv_fds(self._control, 1, 1 + len(Descriptors._fields))
        if not data:
            self._exit()
        with os.fdopen(passed[0], "rb") as file:
            file.seek(0)
            request = json.load(file)
        descriptors = Descriptors(*passed[1:])
        try:
            self._preload(request["worker"]["preload"])
            path = compatibility.import_path(request["environ"], base=self._base_path, cwd=request["cwd"])
            if reason := compatibility.shadowing(path, package=self._package):
                raise _RefusedError(reason)
            server = os.getpid()
            pid = os.fork()
            if pid == 0:
                return ForkedChild(request, descriptors, path, server, frozenset(self._library_descriptors))
            self._children.append(_watched(pid, descriptors))
        except (_RefusedError, OSError) as error:
            with socket.socket(fileno=os.dup(descriptors.reports)) as reports:
                send_report(reports, refused=str(error))
        for descriptor in descriptors:
            os.close(descriptor)
        return None

    def _preload(self, names: Sequence[str]) -> None:
        """Import the modules that have not been imported yet, and prepare this process for forking."""
        if self._failure is not None:
            raise _RefusedError(self._failure)
        names = [name for name in names if name not in self._loaded]
        if not names:
            return
        before = _open_descriptors()
        with self._watching_parent():
            for name in names:
                try:
                    importlib.import_module(name)
                except Exception as error:
                    # A half-imported module must not be imported again, and a plain process shows the whole error.
                    self._failure = f"{name} cannot be imported: {type(error).__name__}: {error}"
                    raise _RefusedError(self._failure) from error
                self._loaded.add(name)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        ctypes.CDLL(None).fflush(None)  # every child would write what is still buffered
        gc.freeze()  # a collection would write to the headers of all objects and so copy the pages shared with children
        self._library_descriptors |= _open_descriptors() - before
        self._require_single_thread()

    @contextlib.contextmanager
    def _watching_parent(self) -> Iterator[None]:
        """Notice the end of the parent during a long import, too."""

        def check(*_: object) -> None:
            poll = select.poll()
            poll.register(self._parent, select.POLLIN)
            if poll.poll(0):
                self._exit()

        signal.signal(signal.SIGALRM, check)
        signal.siginterrupt(signal.SIGALRM, False)
        signal.setitimer(signal.ITIMER_REAL, _PARENT_CHECK_S, _PARENT_CHECK_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _require_single_thread(self) -> None:
        """Refuse all requests if another thread runs: a child would have its locks, but not the thread.

        OpenBLAS stops its threads before a fork and starts them again when it
        needs them, so one fork shows whether the remaining threads are of that kind.
        """
        if len(list(_THREADS.iterdir())) > 1:
            if (pid := os.fork()) == 0:
                os._exit(0)
            os.waitpid(pid, 0)
        if len(list(_THREADS.iterdir())) > 1:
            self._failure = "a preloaded module has started threads"
            raise _RefusedError(self._failure)

    def _report_end(self, child: _Child) -> None:
        """Report the exit status without reaping (``WNOWAIT``): until then no other process gets the child's number."""
        end = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert end is not None
        send_report(child.reports, ended=end.si_status if end.si_code == os.CLD_EXITED else -end.si_status)
        child.ended = True

    def _reap(self, child: _Child) -> None:
        """Kill and reap a child that is no longer needed, and the orphaned processes that it left behind."""
        child.kill()
        os.waitpid(child.pid, 0)
        os.close(child.pidfd)
        child.reports.close()
        self._children.remove(child)
        own = {other.pid for other in self._children}
        for _ in range(_ORPHAN_PASSES):
            if not _kill_orphans(own):
                break

    def _exit(self) -> NoReturn:
        for child in self._children:
            child.kill()
        os._exit(0)


def _watched(pid: int, descriptors: Descriptors) -> _Child:
    try:
        return _Child(pid, os.pidfd_open(pid), socket.socket(fileno=os.dup(descriptors.reports)))
    except OSError:
        kill(pid)
        os.waitpid(pid, 0)
        raise


def _kill_orphans(own: set[int]) -> bool:
    """Kill the adopted orphaned processes that carry no token, and return whether there were any.

    Such a process cleared its environment and was re-parented to this subreaper (``process_tree``). One that carries
    a token may belong to a job that still runs; whoever ends that job kills it by its token.
    """
    killed = False
    for orphan in [entry for entry in processes() if entry.parent == os.getpid() and entry.pid not in own]:
        marked = any(entry.startswith(f"{TOKEN_VARIABLE}=".encode()) for entry in environment_of(orphan.pid))
        if not marked and orphan.state not in "ZX":
            killed |= kill(orphan.pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(orphan.pid, os.WNOHANG if marked else 0)
    return killed


def _open_descriptors() -> set[int]:
    return {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}


def _serve() -> ForkedChild:
    """Start the server. The child returns, and nothing of the server is referenced any more then."""
    gc.disable()
    control, parent, package = sys.argv[1:]
    set_dumpable(False)  # a kernel in a child must not trace the process from which all later children come
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):  # `sys.stdout` was made for a pipe, as a worker's is; the server's own output is not read
        os.dup2(null, stream)
    os.close(null)
    return _Server(socket.socket(fileno=int(control)), parent=int(parent), package=package).serve()


if __name__ == "__main__":
    _serve().run()
