"""A nursery, for the process that started it."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.isolation import stopping
from pytest_nvfp4.isolation.environment import TOKEN_VARIABLE
from pytest_nvfp4.isolation.nursery import channel
from pytest_nvfp4.isolation.nursery.forked import Forked, heard
from pytest_nvfp4.isolation.nursery.mark import PLACEHOLDER
from pytest_nvfp4.isolation.worker import Worker

_MODULE = "pytest_nvfp4.isolation.nursery.__main__"
_LONGEST_S = 60.0
"""How long a child may take: far more than to import everything on a machine that does other things too."""
_TURN_S = 0.05

_log = logging.getLogger(__name__)


class LostError(Exception):
    """The nursery has no child for anybody any more."""


@dataclass(frozen=True, slots=True)
class Birth:
    """What a child takes over from the process that asks for it.

    Attributes:
        cwd: Its working directory.
        environ: Its environment.
        token: The token it is marked with.
        stdin: Its standard input.
        result: The descriptor on which it returns its result.
        result_variable: The variable that names that descriptor.
    """

    cwd: Path
    environ: Mapping[str, str]
    token: str
    stdin: int
    result: int
    result_variable: str


class Nursery:
    """A nursery's process.

    Args:
        launcher: What starts a module of this package (see ``Worker.launcher``).
        environ: Its environment, which has to be that of its children as far as ``likeness.kept`` goes.

    Raises:
        OSError: it could not be started.
    """

    def __init__(self, launcher: tuple[str, ...], environ: Mapping[str, str]) -> None:
        self._turn = threading.Lock()
        self._children: weakref.WeakSet[Forked] = weakref.WeakSet()
        self._asking = 0
        self._control, theirs = socket.socketpair()
        package = __name__.partition(".")[0]
        with theirs:
            self._process = subprocess.Popen(
                [*launcher, _MODULE, str(theirs.fileno()), str(os.getpid()), package],
                cwd="/",
                env={**environ, TOKEN_VARIABLE: PLACEHOLDER},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def fork(self, worker: Worker, birth: Birth) -> Forked | None:
        """A child that runs ``worker``; None where this one cannot be had, and another may.

        Raises:
            LostError: the nursery has ended, or does not answer.
            StoppedError: this thread is to stop.
        """
        with contextlib.ExitStack() as stack:
            asker, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.callback(asker.close)
            out, err = _pipe(stack), _pipe(stack)
            request = {
                "command": worker.command,
                "module": worker.module,
                "arguments": worker.arguments,
                "preload": worker.preload,
                "environ": dict(birth.environ),
                "cwd": str(birth.cwd),
                "token": birth.token,
                "result_variable": birth.result_variable,
            }
            with theirs, out.theirs, err.theirs:
                given = (birth.stdin, out.theirs.fileno(), err.theirs.fileno(), birth.result, theirs.fileno())
                try:
                    with self._turn:
                        channel.send(self._control, request, given)
                except OSError as error:
                    raise LostError(f"it has ended: {error}") from error
            pid = _started(asker)
            if pid is None:
                return None
            forked = Forked(pid, asker, stdout=out.ours, stderr=err.ours)
            stack.pop_all()
            with self._turn:
                self._children.add(forked)
            return forked

    def asked(self) -> None:
        """Somebody is going to ask for a child."""
        with self._turn:
            self._asking += 1

    def answered(self) -> None:
        """Who was going to ask for a child has it, or will not ask."""
        with self._turn:
            self._asking -= 1

    @property
    def idle(self) -> bool:
        """Whether nobody asks for a child, and all children have ended."""
        with self._turn:
            return not self._asking and all(child.returncode is not None for child in self._children)

    def close(self) -> None:
        """End it; what it has forked ends with it."""
        self._process.kill()
        self._process.wait()
        self._control.close()


@dataclass(frozen=True, slots=True)
class _Pipe:
    ours: io.FileIO
    theirs: io.FileIO


def _pipe(stack: contextlib.ExitStack) -> _Pipe:
    read, write = os.pipe()
    pipe = _Pipe(io.FileIO(read, "rb"), io.FileIO(write, "wb"))
    stack.callback(pipe.ours.close)
    stack.callback(pipe.theirs.close)
    return pipe


def _started(asker: socket.socket) -> int | None:
    until = time.monotonic() + _LONGEST_S
    while (message := heard(asker, timeout=_TURN_S)) is None:
        stopping.check()
        if time.monotonic() >= until:
            raise LostError(f"it has not answered in {_LONGEST_S:.0f} s")
    if not message:
        raise LostError("it has ended")
    pid: int | None = message.get("started")
    if pid is None:
        _log.debug("not forked: %s", message.get("refused") or message.get("failed"))
    return pid
