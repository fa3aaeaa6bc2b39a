"""The nursery itself: it imports what its children need, forks them, and says how they ended."""

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
from typing import Any, NoReturn

from pytest_nvfp4.isolation.descent import adopt
from pytest_nvfp4.isolation.nursery import channel, likeness, orphans
from pytest_nvfp4.isolation.nursery.newborn import Newborn

_THREADS = Path("/proc/self/task")
_TURN_S = 0.5


@dataclass(slots=True)
class _Child:
    """A process that was forked and has not been waited for.

    Attributes:
        pid: Its number.
        handle: Readable once it has ended.
        asker: Where its end is told; hung up when the asker has no more use for it.
        ended: Its end was told.
    """

    pid: int
    handle: int
    asker: socket.socket
    ended: bool = False


class _RefusedError(Exception):
    """This process cannot have the child that is asked for."""


class Server:
    """Forks children until the one who asks for them is gone.

    Args:
        control: Where it is asked.
        parent: The process that asks. Its end is the end of this one, even if a process that it forked keeps the other
            side of ``control`` open.
        package: The name of the package that every child has from its folder.
    """

    def __init__(self, control: socket.socket, *, parent: int, package: str) -> None:
        self._control = control
        self._package = package
        self._base = list(sys.path)
        self._children: list[_Child] = []
        self._loaded: set[str] = set()
        self._failed = ""
        self._of_libraries: set[int] = set()
        self._parent = os.pidfd_open(parent)
        if os.getppid() != parent:
            self._leave()
        adopt()

    def serve(self) -> Newborn:
        """Serve to the end of this process. In a child, the child comes back from here."""
        while True:
            poll = select.poll()
            poll.register(self._control, select.POLLIN)
            poll.register(self._parent, select.POLLIN)
            for child in self._children:
                poll.register(child.asker, select.POLLIN)
                if not child.ended:
                    poll.register(child.handle, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._parent in ready:
                self._leave()
            for child in [*self._children]:
                if child.handle in ready and not child.ended:
                    self._tell(child)
                if child.asker.fileno() in ready:
                    self._wait_for(child)
            if self._control.fileno() in ready and (newborn := self._asked()) is not None:
                return newborn

    def _asked(self) -> Newborn | None:
        try:
            request, descriptors = channel.receive(self._control)
        except OSError:
            self._leave()
        *streams, asking = descriptors
        asker = socket.socket(fileno=asking)
        try:
            self._load(request["preload"])
            path = likeness.import_path(request["environ"], base=self._base, cwd=request["cwd"])
            if why := likeness.shadowed(path, base=self._base, own=self._package):
                raise _RefusedError(why)
            newborn = self._fork(request, streams, asker, path)
        except (_RefusedError, OSError) as error:
            with contextlib.suppress(OSError):
                asker.send(json.dumps({"refused": str(error)}).encode())
            asker.close()
            newborn = None
        if newborn is None:
            for one in streams:
                os.close(one)
        return newborn

    def _load(self, names: Sequence[str]) -> None:
        """Import what was not imported yet, without a look for garbage meanwhile, as it is all there to stay."""
        if self._failed:
            raise _RefusedError(self._failed)
        names = [name for name in names if name not in self._loaded]
        if not names:
            return
        before = _descriptors()
        with self._looking_up():
            for name in names:
                try:
                    importlib.import_module(name)
                except Exception as error:
                    # What is half imported may not be imported again: a process from nothing is to say what is wrong.
                    self._failed = f"{name} cannot be imported: {type(error).__name__}: {error}"
                    raise _RefusedError(self._failed) from error
                self._loaded.add(name)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        ctypes.CDLL(None).fflush(None)  # what is not written yet would be written by every child
        gc.freeze()
        self._of_libraries |= _descriptors() - before
        self._alone()

    @contextlib.contextmanager
    def _looking_up(self) -> Iterator[None]:
        """Notice the end of the parent also in the middle of a long import."""

        def look(*_: object) -> None:
            poll = select.poll()
            poll.register(self._parent, select.POLLIN)
            if poll.poll(0):
                self._leave()

        signal.signal(signal.SIGALRM, look)
        signal.siginterrupt(signal.SIGALRM, False)
        signal.setitimer(signal.ITIMER_REAL, _TURN_S, _TURN_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _alone(self) -> None:
        """Make sure that no thread runs beside this one: a child would have what it holds, and not have it.

        OpenBLAS ends its threads before a fork and starts them anew where they are needed, so a fork shows.
        """
        if len(list(_THREADS.iterdir())) > 1:
            if (pid := os.fork()) == 0:
                os._exit(0)
            os.waitpid(pid, 0)
        if len(list(_THREADS.iterdir())) > 1:
            self._failed = "what was imported has started threads"
            raise _RefusedError(self._failed)

    def _fork(
        self, request: dict[str, Any], streams: list[int], asker: socket.socket, path: list[str]
    ) -> Newborn | None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            return Newborn(request, streams, asker, path=path, parent=parent, keep=frozenset(self._of_libraries))
        try:
            self._children.append(_Child(pid, os.pidfd_open(pid), asker))
        except OSError:
            _kill(pid)
            os.waitpid(pid, 0)
            raise
        return None

    def _tell(self, child: _Child) -> None:
        """Say how a child ended, and leave it unwaited for: its number is still what it is known by."""
        found = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert found is not None
        status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        with contextlib.suppress(OSError):
            child.asker.send(json.dumps({"ended": status}).encode())
        child.ended = True

    def _wait_for(self, child: _Child) -> None:
        """The one who asked for it is gone, or has no more use for it."""
        _kill(child.pid)
        os.waitpid(child.pid, 0)
        os.close(child.handle)
        child.asker.close()
        self._children.remove(child)
        orphans.end(known=[one.pid for one in self._children])

    def _leave(self) -> NoReturn:
        for child in self._children:
            _kill(child.pid)
        os._exit(0)


def _kill(pid: int) -> None:
    """Kill a child, which was not waited for yet, and its group, if it leads one already."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _descriptors() -> set[int]:
    return {int(one.name) for one in Path("/proc/self/fd").iterdir()}
