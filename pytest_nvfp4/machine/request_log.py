"""The requests of a call, and their execution again on what device memory then holds.

While requests are logged, blocks that the kernel's process frees keep their memory, so that a repetition finds every
block at its address; addresses are part of what the host sends (parameters, tables of pointers).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import Final

from pytest_nvfp4.machine.requests import Executed, Kind, NoObserver, Observer
from pytest_nvfp4.machine.server import Server
from pytest_nvfp4.machine.wire import Answer, Message

_MOST_REQUESTS: Final = 50_000
_MOST_BYTES: Final = 1 << 30
"""Bytes that logged requests bring, and bytes of freed blocks that are kept."""
_MOST_RESTORED: Final = 64 << 20
"""Bytes of the kernel's blocks that are restored for a repetition and after it. With more, it begins with what the call
left, and leaves what it wrote itself; a kernel must tolerate that between two calls, too. Only blocks that the caller
keeps, the outputs of calls, hold the same afterwards."""
_REPEATED: Final = frozenset({Kind.ALLOCATE, Kind.OPERATOR, Kind.COPY, Kind.FILL, Kind.LAUNCH})


class Observers:
    """Several observers of executed requests, in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def executed(self, request: Executed) -> None:
        """See ``Observer``."""
        for observer in self._observers:
            observer.executed(request)


class RequestLog:
    """The requests since ``begin`` that change device memory; an observer of ``server``.

    Attributes:
        incomplete: Why they cannot be repeated; empty if they can.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._messages: list[Message] = []
        self._bytes = 0
        self._before: list[tuple[int, bytes]] = []
        self.incomplete = ""

    def begin(self) -> None:
        """Begin a new log."""
        self.end()
        self._before = self._server.blocks.contents(most=_MOST_RESTORED)
        self._server.blocks.keep_freed(most=_MOST_BYTES)

    def end(self) -> None:
        """Drop the log, and the memory of blocks that were freed."""
        self._messages, self._bytes, self._before, self.incomplete = [], 0, [], ""
        self._server.blocks.drop_freed()

    def executed(self, request: Executed) -> None:
        """See ``Observer``."""
        message = request.message
        if message is None or request.kind not in _REPEATED or self.incomplete:
            return
        if self._messages and self._messages[-1] is message:
            return  # a graph issues several launches
        self._messages.append(message)
        self._bytes += sum(map(len, message.blobs))
        if len(self._messages) > _MOST_REQUESTS or self._bytes > _MOST_BYTES or self._server.blocks.dropped:
            self.incomplete = (
                f"the call made more than {_MOST_REQUESTS:,} requests, sent more than {_MOST_BYTES >> 20} MiB, or "
                "freed more device memory than that"
            )
            self._messages = []
            self._server.blocks.drop_freed()

    @contextlib.contextmanager
    def repeated(self, observer: Observer | None = None) -> Iterator[None]:
        """Execute the requests again, with the same new blocks, on what the kernel's blocks held before.

        Only the given observer gets them. At the end of the context the blocks (see ``_MOST_RESTORED``) hold what they
        held at its beginning. The error of a request is dropped, as the kernel's code may have done; the device records
        faults.
        """
        blocks = self._server.blocks
        after = blocks.contents(most=_MOST_RESTORED) or blocks.kept_contents()
        try:
            with self._executed_again(self._messages, observer):
                yield
        finally:
            for address, data in after:
                ctypes.memmove(address, data, len(data))

    def answer(self, message: Message) -> Answer:
        """Execute the requests again, as ``repeated`` does, and then a request; return the answer to that one.

        The blocks keep what they then hold. Raises what the request raises.
        """
        logged = bool(self._messages) and self._messages[-1] is message
        with self._executed_again(self._messages[:-1] if logged else self._messages):
            return self._server.execute(message)

    @contextlib.contextmanager
    def _executed_again(self, messages: Sequence[Message], observer: Observer | None = None) -> Iterator[None]:
        server = self._server
        before, reads = server.observer, server.reads
        server.observer, server.reads = observer or NoObserver(), None
        for address, data in self._before:
            ctypes.memmove(address, data, len(data))
        try:
            with server.blocks.repeated():
                for message in messages:
                    with contextlib.suppress(Exception):
                        server.execute(message)
                yield
        finally:
            server.observer, server.reads = before, reads
