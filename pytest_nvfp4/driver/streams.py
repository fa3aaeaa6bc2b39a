"""What host code puts in order: streams, events, and the host that waits for them.

Where nobody watches, nothing is kept. To a watcher every piece of work is told with its place in the order that a
device must respect, by vector clocks over streams (CUDA C++ Programming Guide, "Streams", "Default Stream", "Events"):

- the work of a stream is in order;
- an event has all that its stream had when it was recorded, and so has whoever waits for it;
- the legacy default stream (handles 0 and 1) and the *blocking* streams wait for each other; streams made with
  ``cudaStreamNonBlocking``, as all of torch's are, wait for no other. The default stream of a thread (handle 2) blocks;
- what the host knows to be complete (it synchronised, or a query said so) is before all that is issued later. Threads
  are taken for one host: what orders them is not seen, and nothing false is to be told;
- the work of a CUDA graph is between what its stream had and gets; inside, it is ordered as it was captured.

Torch's blocks go back to the pool of the stream that they were allocated on; ``cudaFree`` waits for the whole device.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from pytest_nvfp4.driver.user_line import UserLine, user_line

__all__ = ["LEGACY", "PER_THREAD", "Extent", "Streams", "Watcher", "Work"]

LEGACY: Final = 0
"""The default stream; ``CU_STREAM_LEGACY`` (1) is the same."""
PER_THREAD: Final = 2
"""``CU_STREAM_PER_THREAD``: the default stream of the calling thread."""
_FIRST_EVENT: Final = 0x5D0000000001

Key = Hashable
Clock = dict[Key, int]


class Extent(NamedTuple):
    """Bytes of device memory: ``size`` bytes at each place of a strided array (strides in bytes) from an address."""

    address: int
    size: int
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work on a stream.

    Attributes:
        what: What it is, for people.
        stream, tick: Its stream and its number there.
        clock: By stream, the number up to which all work is ordered before it, its own included.
        line: Where it was issued; None: by who called the user's code.
    """

    what: str
    stream: Key
    tick: int
    clock: Clock
    line: UserLine | None

    def after(self, other: Work) -> bool:
        """Whether other work is ordered before this."""
        return self.clock.get(other.stream, 0) >= other.tick


class Watcher(Protocol):
    """Who is told of work and of memory."""

    def worked(self, work: Work, reads: Sequence[Extent], writes: Sequence[Extent]) -> None:
        """Work was issued."""

    def allocated(self, address: int, size: int, stream: Key, line: UserLine | None, *, pooled: bool) -> None:
        """A block begins; ``pooled``: it comes from the pool of a stream, and goes back there."""

    def freed(self, address: int, line: UserLine | None) -> None:
        """The block at an address ends. May be called at any time: from inside any other call."""

    def lent(self, address: int, stream: Key) -> None:
        """The block that holds an address is not given to others before the work that a stream has now is complete."""

    def block(self, address: int) -> tuple[int, int] | None:
        """Address and size of the block that holds an address."""


class Streams:
    """The streams of a device, and what orders them.

    Attributes:
        watcher: Who is told; None: nothing is kept.
        captured: While a graph is captured: what happens when it is replayed.
    """

    def __init__(self) -> None:
        self.watcher: Watcher | None = None
        self.captured: list[Any] | None = None
        self._host: Clock = {}
        self._clocks: dict[Key, Clock] = {}
        self._alone: set[Key] = set()
        self._events: dict[Key, Clock] = {}
        self._numbers = itertools.count(_FIRST_EVENT)
        self._made: dict[int, tuple[int, UserLine | None]] = {}
        self._thread = threading.local()
        self._lock = threading.RLock()
        self._replay: _Replay | None = None

    # ---- names ---------------------------------------------------------------------------------------------------

    @property
    def current(self) -> int:
        """The handle of the stream that torch gives work to, of this thread."""
        return getattr(self._thread, "current", LEGACY)

    @current.setter
    def current(self, handle: int) -> None:
        self._thread.current = handle

    def made(self, handle: int, *, blocking: bool) -> int:
        """A stream was made; its handle."""
        if not blocking:
            self._alone.add(handle)
        if self.watcher is not None:
            self._made[handle] = (len(self._made) + 1, user_line())
        return handle

    def new_event(self) -> int:
        """The handle of a new event."""
        return next(self._numbers)

    def name(self, stream: Key) -> str:
        """A stream in words."""
        if stream == LEGACY:
            return "the default stream"
        if isinstance(stream, tuple):
            return "the default stream of a thread" if stream[0] == "thread" else f"{self.name(stream[2])} of a graph"
        number, line = self._made.get(stream, (None, None))  # type: ignore[call-overload]
        if number is None:
            return f"stream {stream:#x}"
        where = f" (made at {line._replace(caller=None)})" if line is not None else ""
        return f"stream {number}{where}"

    def _key(self, handle: int) -> Key:
        if handle <= 1:
            key: Key = LEGACY
        elif handle == PER_THREAD:
            key = ("thread", threading.get_ident())
        else:
            key = handle
        return key if self._replay is None else self._replay.key(key)

    # ---- work ----------------------------------------------------------------------------------------------------

    def work(
        self,
        what: str,
        *,
        stream: int | None = None,
        reads: Sequence[Extent] = (),
        writes: Sequence[Extent] = (),
        waits: bool = False,
    ) -> None:
        """Work is issued, to the current stream if to no other; with ``waits`` the host waits for the stream then."""
        if self.watcher is not None:
            handle = self.current if stream is None else stream
            self._later(partial(self._work, what, handle, user_line(), reads=reads, writes=writes, waits=waits))

    def launched(self, what: str, stream: int, told: Callable[[Work], None]) -> None:
        """A kernel is launched; ``told`` is called with it."""
        if self.watcher is not None:
            line = user_line() if self._replay is None else self._replay.line
            with self._lock:
                told(self._issue(what, stream, line))

    def copied(self, what: str, to: int, source: int, size: int, *, stream: int = LEGACY, waits: bool = True) -> None:
        """Memory is copied. The host waits for what it gets, and with ``waits`` for what it gives."""
        if self.watcher is None:
            return
        inward, outward = self.watcher.block(to) is not None, self.watcher.block(source) is not None
        self.work(
            what,
            stream=stream,
            reads=[Extent(source, size)] if outward else [],
            writes=[Extent(to, size)] if inward else [],
            waits=not inward or (waits and not outward),
        )

    def _work(
        self,
        what: str,
        handle: int,
        line: UserLine | None,
        *,
        reads: Sequence[Extent],
        writes: Sequence[Extent],
        waits: bool,
    ) -> None:
        assert self.watcher is not None
        with self._lock:
            work = self._issue(what, handle, line)
            self.watcher.worked(work, reads, writes)
            if waits:
                _join(self._host, self._clocks[work.stream])

    def _issue(self, what: str, handle: int, line: UserLine | None) -> Work:
        key = self._key(handle)
        clock = self._begin(key)
        clock[key] = tick = clock.get(key, 0) + 1
        return Work(what, key, tick, dict(clock), line)

    def _begin(self, key: Key) -> Clock:
        """The clock of a stream, with all that something issued to it now comes after."""
        clock = self._clocks.setdefault(key, {})
        _join(clock, self._host)
        if key == LEGACY:
            for other, theirs in self._clocks.items():
                if self._blocks(other):
                    _join(clock, theirs)
        elif self._blocks(key):
            _join(clock, self._clocks.get(LEGACY, {}))
        elif self._replay is not None:
            self._replay.begin(key, clock)
        return clock

    def _blocks(self, key: Key) -> bool:
        """Whether a stream and the legacy default stream wait for each other."""
        return key != LEGACY and key not in self._alone and not (isinstance(key, tuple) and key[0] == "graph")

    def order(self, work: Work, after: Work) -> None:
        """Count work as ordered behind other work from now on: a race between them was told."""
        for clock in (work.clock, self._clocks[work.stream]):
            _join(clock, after.clock)

    def done(self, work: Work) -> bool:
        """Whether the host knows that work is complete."""
        return self._host.get(work.stream, 0) >= work.tick

    def ordered(self, stream: Key, work: Work) -> bool:
        """Whether work is before all that a stream gets from now on."""
        with self._lock:
            return self._begin(stream).get(work.stream, 0) >= work.tick

    # ---- edges ---------------------------------------------------------------------------------------------------

    def record(self, event: int, stream: int | None = None) -> None:
        """An event is recorded on a stream."""
        if self.watcher is not None:
            self._later(partial(self._record, event, self.current if stream is None else stream))

    def _record(self, event: int, handle: int) -> None:
        with self._lock:
            self._events[self._event(event)] = dict(self._begin(self._key(handle)))

    def wait(self, event: int, stream: int | None = None) -> None:
        """A stream waits for an event; one that was never recorded orders nothing."""
        if self.watcher is not None:
            self._later(partial(self._wait, event, self.current if stream is None else stream))

    def _wait(self, event: int, handle: int) -> None:
        with self._lock:
            key = self._key(handle)
            _join(self._begin(key), self._events.get(self._event(event), {}))

    def synchronize(self, stream: int) -> None:
        """The host waits for a stream."""
        if self.watcher is not None and self.captured is None:
            with self._lock:
                _join(self._host, self._begin(self._key(stream)))

    def synchronize_event(self, event: int) -> None:
        """The host waits for an event, or knows that it has happened."""
        if self.watcher is not None and self.captured is None:
            _join(self._host, self._events.get(event, {}))

    def synchronize_device(self) -> None:
        """The host waits for everything."""
        if self.watcher is not None and self.captured is None:
            with self._lock:
                for clock in self._clocks.values():
                    _join(self._host, clock)

    # ---- memory --------------------------------------------------------------------------------------------------

    def allocated(self, address: int, size: int, *, stream: int | None = None, pooled: bool = False) -> None:
        """A block was allocated: from the pool of the current stream, in the order of a stream, or of the device."""
        if self.watcher is None:
            return
        key = self._key(self.current if stream is None else stream)
        with self._lock:
            self.watcher.allocated(address, size, key, user_line(), pooled=pooled)
        if stream is not None:
            self.work("cudaMallocAsync", stream=stream, writes=[Extent(address, size)])

    def freed(self, address: int, *, stream: int | None = None, pooled: bool = False) -> None:
        """A block ends: back to its pool, in the order of a stream, or once the whole device has come to rest."""
        if self.watcher is None or not address:
            return
        if stream is not None:
            block = self.watcher.block(address)
            if block is not None:
                self.work("cudaFreeAsync", stream=stream, writes=[Extent(*block)])
        elif not pooled:
            self.synchronize_device()
        self.watcher.freed(address, user_line())

    def lent(self, address: int, stream: int) -> None:
        """``Tensor.record_stream``."""
        if self.watcher is not None:
            self.watcher.lent(address, self._key(stream))

    # ---- graphs --------------------------------------------------------------------------------------------------

    def _later(self, act: Callable[[], None]) -> None:
        """Act now, or whenever the graph is replayed that is being captured."""
        if self.captured is None:
            act()
        else:
            self.captured.append(act)

    def _event(self, event: int) -> Key:
        return event if self._replay is None else self._replay.key(event)

    @contextmanager
    def replay(self) -> Iterator[None]:
        """What is issued inside is the work of a graph that is launched on the current stream."""
        if self.watcher is None or self._replay is not None:
            yield
            return
        key = self._key(self.current)
        clock = self._begin(key)
        self._replay = _Replay(key, dict(clock), user_line())
        try:
            yield
        finally:
            used, self._replay = self._replay.used, None
            for one in used:
                _join(clock, self._clocks[one])


class _Replay:
    """A graph that is being launched: each stream of its capture is one of its own beside the launching stream."""

    def __init__(self, stream: Key, before: Clock, line: UserLine | None) -> None:
        self.stream = stream
        self.before = before
        self.line = line
        self.used: set[Key] = set()

    def key(self, key: Key) -> Key:
        return ("graph", self.stream, key)

    def begin(self, key: Key, clock: Clock) -> None:
        self.used.add(key)
        _join(clock, self.before)


def _join(clock: Clock, other: Clock) -> None:
    for stream, tick in other.items():
        if clock.get(stream, 0) < tick:
            clock[stream] = tick
