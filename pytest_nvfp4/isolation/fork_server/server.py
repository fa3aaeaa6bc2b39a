"""The fork server: ``python -m pytest_nvfp4.isolation.fork_server.server CONTROL PARENT PACKAGE``.

CONTROL is the descriptor of the socket on which requests arrive, PARENT the process with which the server ends, and
PACKAGE the name of the package that every child loads from its folder. CONTROL is connected to PARENT, or listens for
connections of several processes (``pool.SWITCH_VARIABLE``).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pytest_nvfp4.collection import frozen_before
from pytest_nvfp4.isolation.environment import RESULT_VARIABLE
from pytest_nvfp4.isolation.fork_server import compatibility
from pytest_nvfp4.isolation.fork_server.messages import Descriptors, send_report
from pytest_nvfp4.isolation.limits import PARENT_VARIABLE
from pytest_nvfp4.isolation.prctl import become_subreaper, die_with_parent, set_dumpable
from pytest_nvfp4.isolation.process_tree import kill, kill_group, kill_tree, processes
from pytest_nvfp4.isolation.worker import Worker

_THREADS = Path("/proc/self/task")
_PARENT_CHECK_S = 0.5
_UNUSED_S = 30
"""Seconds without a connection after which a shared server ends: it holds some hundred MB."""
_ORPHAN_PASSES = 50


class _RefusedError(Exception):
    """This server cannot fork the requested child."""


@dataclass(slots=True)
class _Child:
    """A forked process that has not been reaped, as its server sees it.

    Attributes:
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

    def close(self) -> None:
        """Close the descriptors, without effect on the process."""
        os.close(self.pidfd)
        self.reports.close()


class _Server:
    """Forks children on request until its parent ends (for the arguments see the module)."""

    def __init__(self, control: socket.socket, *, parent: int, package: str) -> None:
        listens = control.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        self._listener = control if listens else None
        self._sockets = [control]
        self._parent = os.pidfd_open(parent)
        self._package = package
        self._base_path = list(sys.path)
        self._children: list[_Child] = []
        self._loaded: dict[str, frozenset[str]] = {}
        """By preloaded module, the modules of the package that were imported when it was."""
        self._failure: str | None = None
        # The end of the control socket shows the end of the parent only between requests, and not if a process that the
        # parent has forked holds the other side open. PDEATHSIG cannot be used: it follows the parent's thread.
        signal.signal(signal.SIGALRM, lambda *_: self._exit() if _is_ready(self._parent) else None)
        signal.siginterrupt(signal.SIGALRM, False)
        signal.setitimer(signal.ITIMER_REAL, _PARENT_CHECK_S, _PARENT_CHECK_S)
        become_subreaper()

    def serve(self) -> _ForkedChild:
        """Serve requests to the end of this process; only a forked child returns from here."""
        while True:
            poll = select.poll()
            for control in self._sockets:
                poll.register(control, select.POLLIN)
            for child in self._children:
                poll.register(child.reports, select.POLLIN)
                if not child.ended:
                    poll.register(child.pidfd, select.POLLIN)
            unused = self._sockets == [self._listener] and not self._children
            ready = {descriptor for descriptor, _ in poll.poll(_UNUSED_S * 1000 if unused else None)}
            if not ready:
                self._exit()
            for child in [*self._children]:
                if child.pidfd in ready and not child.ended:
                    self._report_end(child)
                if child.reports.fileno() in ready:
                    self._reap(child)
            for control in [one for one in self._sockets if one.fileno() in ready]:
                if control is self._listener:
                    self._sockets.append(control.accept()[0])
                elif (forked := self._handle_request(control)) is not None:
                    return forked

    def _handle_request(self, control: socket.socket) -> _ForkedChild | None:
        """Fork a child or refuse it; only the child returns a value."""
        data, passed, _, _ = socket.recv_fds(control, 1, 1 + len(Descriptors._fields))
        if not data:
            if self._listener is None:
                self._exit()
            self._sockets.remove(control)
            control.close()
            return None
        with os.fdopen(passed[0], "rb") as file:
            file.seek(0)
            request = json.load(file)
        descriptors = Descriptors(*passed[1:])
        reports = socket.socket(fileno=descriptors.reports)
        server, pid = os.getpid(), -1
        try:
            self._preload(request["worker"]["preload"])
            path = compatibility.import_path(request["environ"], base=self._base_path, cwd=request["cwd"])
            if reason := compatibility.shadowing(path, package=self._package):
                raise _RefusedError(reason)
            pid = os.fork()
            if pid:
                self._children.append(_Child(pid, os.pidfd_open(pid), reports))
        except (_RefusedError, OSError) as error:
            if pid > 0:
                kill(pid)
                os.waitpid(pid, 0)
            send_report(reports, refused=str(error))
            reports.close()
        if pid == 0:
            self._close_in_child()
            self._forget_others(request["worker"]["preload"])
            return _ForkedChild(request, descriptors, reports, path, server)
        for descriptor in descriptors[:-1]:
            os.close(descriptor)
        return None

    def _close_in_child(self) -> None:
        """Close the descriptors of the server and of other jobs, and reset its signal; a fork inherits no timer."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        os.close(self._parent)
        for control in self._sockets:
            control.close()
        for child in self._children:
            child.close()

    def _forget_others(self, names: Sequence[str]) -> None:
        """Forget the modules of the package that were preloaded for other workers, and which this one might not import.

        A worker that seals its memory would list and compare them (``isolation.seal``).
        """
        own = self._loaded[names[-1]]
        for name in self._own_modules() - own:
            del sys.modules[name]

    def _own_modules(self) -> frozenset[str]:
        return frozenset(name for name in sys.modules if name.partition(".")[0] == self._package)

    def _preload(self, names: Sequence[str]) -> None:
        """Import the modules that have not been imported yet, and prepare this process for forking."""
        if self._failure is not None:
            raise _RefusedError(self._failure)
        names = [name for name in names if name not in self._loaded]
        if not names:
            return
        for name in names:
            try:
                importlib.import_module(name)
            except Exception as error:
                # A half-imported module must not be imported again, and a plain process shows the whole error.
                self._failure = f"{name} cannot be imported: {type(error).__name__}: {error}"
                raise _RefusedError(self._failure) from error
            self._loaded[name] = self._own_modules()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        ctypes.CDLL(None).fflush(None)  # every child would write what is still buffered
        gc.freeze()  # a collection would write to the headers of all objects and so copy the pages shared with children
        frozen_before()  # its children inherit the answer
        self._require_single_thread()

    def _require_single_thread(self) -> None:
        """Refuse all requests if another thread runs: a child would have its locks, but not the thread.

        OpenBLAS stops its threads before a fork and starts them again when it needs them, so one fork shows whether the
        remaining threads are of that kind.
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
        """Kill and reap a child that is no longer needed, and what it left behind."""
        if not child.ended:
            kill_tree(child.pid)
        child.kill()
        os.waitpid(child.pid, 0)
        child.close()
        self._children.remove(child)
        own = {other.pid for other in self._children}
        for _ in range(_ORPHAN_PASSES):
            if not _kill_orphans(own):
                break

    def _exit(self) -> NoReturn:
        for child in self._children:
            child.kill()
        os._exit(0)


def _is_ready(descriptor: int) -> bool:
    """Return whether a descriptor can be read; one of a process can once that has ended."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _kill_orphans(own: set[int]) -> bool:
    """Kill and reap the adopted orphaned processes, and return whether there were any.

    A worker's own subreaper adopts what the worker leaves behind (``wall.supervisor``), so what arrives here belongs to
    a worker that has ended without one.
    """
    killed = False
    for orphan in [entry for entry in processes() if entry.parent == os.getpid() and entry.pid not in own]:
        killed |= orphan.state not in "ZX" and kill(orphan.pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(orphan.pid, 0)
    return killed


@dataclass(frozen=True, slots=True)
class _ForkedChild:
    """A newly forked process, which becomes the requested worker; ``path`` is its ``sys.path``."""

    request: Mapping[str, Any]
    descriptors: Descriptors
    reports: socket.socket
    path: list[str]
    server: int

    def run(self) -> None:
        """Set up this process and run the worker's module; its end is that of a process whose ``__main__`` it is."""
        with self.reports as reports:
            try:
                self._set_up()
            except BaseException as error:
                send_report(reports, refused=f"{type(error).__name__}: {error}")
                os._exit(1)
            send_report(reports, started=os.getpid())
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=False)

    def _set_up(self) -> None:
        die_with_parent(self.server)
        os.setsid()
        *standard, result, _ = self.descriptors
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.set_inheritable(result, True)
        os.environ.clear()
        os.environ.update(self.request["environ"])
        os.environ[RESULT_VARIABLE] = str(result)
        os.environ[PARENT_VARIABLE] = str(self.server)
        os.chdir(self.request["cwd"])
        sys.path[:] = self.path
        worker = Worker(**self.request["worker"])
        sys.orig_argv[:] = worker.command
        sys.argv = [worker.module, *worker.arguments]
        _reseed()
        set_dumpable(True)
        gc.enable()


def _reseed() -> None:
    """Seed the generators that a process seeds at start; the module ``random`` does so by itself after a fork."""
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()
    if (multiprocessing := sys.modules.get("multiprocessing")) is not None:
        multiprocessing.current_process().authkey = os.urandom(32)


def _serve() -> _ForkedChild:
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
