"""Watch one started process to its end: read its pipes, stop it at its deadline, and end what it left behind."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Literal

from pytest_nvfp4.isolation import stopping
from pytest_nvfp4.isolation.killing import kill_family, kill_group, kill_marked

if TYPE_CHECKING:
    from pytest_nvfp4.isolation.nursery import Forked

Pipe = Literal["stdout", "stderr", "result"]
"""What a process is read by."""

_DRAIN_S = 1.0
"""How long its pipes are read on after its end, for what is still in them."""
_LOOK_S = 0.05
_CHUNK = 1 << 16
_MOST_CHUNKS = 16
"""As much as a pipe may hold (pipe-max-size); a straggler could write without end."""


class ProcessMonitor:
    """A process on its way to its end.

    Args:
        process: The process, as :func:`~pytest_nvfp4.isolation.start.started` gave it.
        result: The reading end of its result pipe.
        token: What its environment was marked with.
        until: The time, on the monotonic clock, at which it is killed.

    Attributes:
        timed_out: It was killed because its deadline passed.
        stragglers: Processes it left behind that were killed so far.
    """

    def __init__(self, process: subprocess.Popen[bytes] | Forked, result: int, *, token: str, until: float) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.timed_out = False
        self.stragglers = 0
        self._process = process
        self._pipes: Mapping[Pipe, int] = {
            "stdout": process.stdout.fileno(),
            "stderr": process.stderr.fileno(),
            "result": result,
        }
        self._token = token
        self._until = until
        self._ended = False

    def output(self) -> Generator[tuple[Pipe, bytes], None, None]:
        """What comes out of its pipes, piece by piece, until it has ended; only waiting for it is left then.

        Raises:
            StoppedError: this thread was to stop meanwhile (see ``stopped_by``).
        """
        with selectors.DefaultSelector() as selector:
            for pipe, descriptor in self._pipes.items():
                os.set_blocking(descriptor, False)
                selector.register(descriptor, selectors.EVENT_READ, pipe)
            while selector.get_map():
                stopping.check()
                left = self._until - time.monotonic()
                if left <= 0:
                    self._notice_end()  # in time, where this process was held up and looks late
                    if self._ended:
                        yield from self._rest(selector)
                        break  # a straggler holds a pipe open: it is killed later, what it has to say does not count
                    self._stop_late()
                    continue
                for key, _ in selector.select(timeout=min(left, _LOOK_S)):
                    try:
                        chunk = os.read(key.fd, _CHUNK)
                    except BlockingIOError:
                        continue
                    if chunk:
                        yield key.data, chunk
                    else:
                        selector.unregister(key.fd)
                self._notice_end()
        self._outwait()

    def _rest(self, selector: selectors.BaseSelector) -> Generator[tuple[Pipe, bytes], None, None]:
        """What is in the pipes already: all that a process wrote, once it has ended, though it was not read yet."""
        for key in list(selector.get_map().values()):
            for _ in range(_MOST_CHUNKS):
                try:
                    chunk = os.read(key.fd, _CHUNK)
                except BlockingIOError:
                    break
                if not chunk:
                    break
                yield key.data, chunk

    def _stop_late(self) -> None:
        self.timed_out = True
        self.stragglers += kill_family(self._process.pid)
        self._ended, self._until = True, time.monotonic() + _DRAIN_S

    def _notice_end(self) -> None:
        if not self._ended and self._process.poll() is not None:
            kill_group(self._process.pid)
            self.stragglers += kill_marked(self._token, os.getpid())  # they may hold a pipe open
            self._ended, self._until = True, min(self._until, time.monotonic() + _DRAIN_S)

    def _outwait(self) -> None:
        """Wait for a process that closed its pipes and runs on."""
        while not self._ended and self._process.poll() is None:
            stopping.check()
            try:
                self._process.wait(timeout=min(_LOOK_S, max(0.0, self._until - time.monotonic())))
            except subprocess.TimeoutExpired:
                if time.monotonic() >= self._until:
                    self._stop_late()
