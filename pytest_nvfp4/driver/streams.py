"""The order of work on a device: streams, events, and synchronisation by the host.

Without a watcher nothing is recorded. A watcher gets every piece of work with its position in the order that a device
must respect, as a vector clock over streams (CUDA C++ Programming Guide, "Streams", "Default Stream", "Events"):

- The work of a stream is in order.
- An event is ordered behind the work of its stream at the time of its record; a stream that waits for it, behind it.
- The legacy default stream (handles 0 and 1) and the *blocking* streams wait for each other. Streams made with
  ``cudaStreamNonBlocking``, as all of torch's are, wait for no other. The default stream of a thread (handle 2) blocks.
- Work that the host has synchronised with, or that a query reported as complete, is before all work issued later. All
  threads count as one host: synchronisation between them is not observed, and must not cause false findings.
- The work of a CUDA graph is between the earlier and later work of its stream; inside, in the order of its capture.

Torch's blocks return to the pool of the stream that they were allocated on; ``cudaFree`` waits for the whole device.
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

LEGACY: Final = 0
"""The default stream; ``CU_STREAM_LEGACY`` (1) is the same."""
PER_THREAD: Final = 2
"""``CU_STREAM_PER_THREAD``: the default stream of the calling thread."""
ALLOCATES: Final = "cudaMallocAsync"
"""What an allocation in the order of a stream is called: its block counts as used, and holds no values yet."""
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
        what: Description for messages.
        stream, tick: Its stream and its number there.
        clock: By stream, the number up to which work is ordered before it, itself included.
        line: The user's line that issued it; None for the caller of the user's code.
    """

    what: str
    stream: Key
    tick: int
    clock: Clock
    line: UserLine | None

    def after(self, other: Work) -> bool:
        """Return whether other work is ordered before this."""
        return self.clock.get(other.stream, 0) >= other.tick


class Caller(NamedTuple):
    """What issues work: the number of a thread, torch's current stream there, and the user's line."""

    thread: int
    current: int
    line: UserLine | None


class Watcher(Protocol):
    """Observer of work and memory."""

    def worked(self, work: Work, reads: Sequence[Extent], writes: Sequence[Extent]) -> None:
        """Record issued work."""

    def allocated(self, address: int, size: int, stream: Key, line: UserLine | None, *, pooled: bool) -> None:
        """Add a block; ``pooled``: it comes from the pool of a stream, and returns there."""

    def freed(self, address: int, line: UserLine | None) -> None:
        """Remove the block at an address. This may be called inside any other method."""

    def recorded(self, address: int, stream: Key) -> None:
        """Record that the block of an address is not reused before a stream's present work is complete."""

    def block(self, address: int) -> Extent | None:
        """Return the block that contains an address."""


class Streams:
    """The streams of a device and their order.

    Attributes:
        watcher: The observer; None to record nothing.
        captured: While a graph is captured: the actions of its replay.
        caller: What issues work on behalf of another process; None if the calling thread itself does.
    """

    def __init__(self) -> None:
        self.caller: Caller | None = None
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
        """Handle of torch's current stream in this thread."""
        if self.caller is not None:
            return self.caller.current
        return getattr(self._thread, "current", LEGACY)

    @current.setter
    def current(self, handle: int) -> None:
        self._thread.current = handle

    def made_at(self) -> str | None:
        """Return the user's line that issues the present work, as ``made at FILE:LINE``; None if it is unknown."""
        line = self._line()
        return None if line is None else f"made at {line}"

    def _line(self) -> UserLine | None:
        return user_line() if self.caller is None else self.caller.line

    @property
    def current_key(self) -> Key:
        """The stream of work that is issued now without naming one."""
        return self._key(self.current)

    def add(self, handle: int, *, blocking: bool) -> int:
        """Add a stream and return its handle."""
        if not blocking:
            self._alone.add(handle)
        if self.watcher is not None:
            self._made[handle] = (len(self._made) + 1, self._line())
        return handle

    def new_event(self) -> int:
        """Return the handle of a new event."""
        return next(self._numbers)

    def name(self, stream: Key) -> str:
        """Return the name of a stream, for messages."""
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
            key = ("thread", threading.get_ident() if self.caller is None else self.caller.thread)
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
        """Issue work, by default to the current stream; with ``waits`` the host then waits for the stream."""
        if self.watcher is not None:
            handle = self.current if stream is None else stream
            self._later(partial(self._work, what, handle, self._line(), reads=reads, writes=writes, waits=waits))

    def launched(self, what: str, stream: int, report: Callable[[Work], None]) -> None:
        """Issue a kernel launch and call ``report`` with it."""
        if self.watcher is not None:
            line = self._line() if self._replay is None else self._replay.line
            with self._lock:
                report(self._issue(what, stream, line))

    def copied(self, what: str, to: int, source: int, size: int, *, stream: int = LEGACY, waits: bool = True) -> None:
        """Issue a copy. The host waits for copies to the host, and with ``waits`` for copies from it."""
        if self.watcher is None:
            return
        to_device, from_device = self.watcher.block(to) is not None, self.watcher.block(source) is not None
        self.work(
            what,
            stream=stream,
            reads=[Extent(source, size)] if from_device else [],
            writes=[Extent(to, size)] if to_device else [],
            waits=not to_device or (waits and not from_device),
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
        """Return the clock of a stream, with everything that work issued to it now is ordered behind."""
        clock = self._clocks.setdefault(key, {})
        _join(clock, self._host)
        if key == LEGACY:
            for other, other_clock in self._clocks.items():
                if self._blocks(other):
                    _join(clock, other_clock)
        elif self._blocks(key):
            _join(clock, self._clocks.get(LEGACY, {}))
        elif self._replay is not None:
            self._replay.begin(key, clock)
        return clock

    def _blocks(self, key: Key) -> bool:
        """Return whether a stream and the legacy default stream wait for each other."""
        return key != LEGACY and key not in self._alone and not (isinstance(key, tuple) and key[0] == "graph")

    def order(self, work: Work, after: Work) -> None:
        """Order work behind other work from now on, because a race between them was reported."""
        for clock in (work.clock, self._clocks[work.stream]):
            _join(clock, after.clock)

    def done(self, work: Work) -> bool:
        """Return whether the host has synchronised with work."""
        return self._host.get(work.stream, 0) >= work.tick

    def ordered(self, stream: Key, work: Work) -> bool:
        """Return whether work is ordered before everything that a stream gets from now on."""
        with self._lock:
            return self._begin(stream).get(work.stream, 0) >= work.tick

    # ---- edges ---------------------------------------------------------------------------------------------------

    def record(self, event: int, stream: int | None = None) -> None:
        """Record an event on a stream."""
        if self.watcher is not None:
            self._later(partial(self._record, event, self.current if stream is None else stream))

    def _record(self, event: int, handle: int) -> None:
        with self._lock:
            self._events[self._event(event)] = dict(self._begin(self._key(handle)))

    def wait(self, event: int, stream: int | None = None) -> None:
        """Let a stream wait for an event. An event that was never recorded orders nothing."""
        if self.watcher is not None:
            self._later(partial(self._wait, event, self.current if stream is None else stream))

    def _wait(self, event: int, handle: int) -> None:
        with self._lock:
            key = self._key(handle)
            _join(self._begin(key), self._events.get(self._event(event), {}))

    def synchronize(self, stream: int) -> None:
        """Let the host wait for a stream."""
        if self.watcher is not None and self.captured is None:
            with self._lock:
                _join(self._host, self._begin(self._key(stream)))

    def synchronize_event(self, event: int) -> None:
        """Let the host wait for an event, or learn from a query that it is complete."""
        if self.watcher is not None and self.captured is None:
            _join(self._host, self._events.get(event, {}))

    def synchronize_device(self) -> None:
        """Let the host wait for all streams."""
        if self.watcher is not None and self.captured is None:
            with self._lock:
                for clock in self._clocks.values():
                    _join(self._host, clock)

    # ---- memory --------------------------------------------------------------------------------------------------

    def allocated(self, address: int, size: int, *, stream: int | None = None, pooled: bool = False) -> None:
        """Add a block: from the pool of the current stream, in the order of a stream, or in that of the device."""
        if self.watcher is None:
            return
        key = self._key(self.current if stream is None else stream)
        with self._lock:
            self.watcher.allocated(address, size, key, self._line(), pooled=pooled)
        if stream is not None:
            self.work(ALLOCATES, stream=stream, writes=[Extent(address, size)])

    def freed(self, address: int, *, stream: int | None = None, pooled: bool = False) -> None:
        """Remove a block: back to its pool, in the order of a stream, or when the device is idle."""
        if self.watcher is None or not address:
            return
        if stream is not None:
            block = self.watcher.block(address)
            if block is not None:
                self.work("cudaFreeAsync", stream=stream, writes=[block])
        elif not pooled:
            self.synchronize_device()
        self.watcher.freed(address, self._line())

    def record_stream(self, address: int, stream: int) -> None:
        """Execute ``Tensor.record_stream``."""
        if self.watcher is not None:
            self.watcher.recorded(address, self._key(stream))

    # ---- graphs --------------------------------------------------------------------------------------------------

    def _later(self, act: Callable[[], None]) -> None:
        """Act now or, during a capture, whenever the graph is replayed."""
        if self.captured is None:
            act()
        else:
            self.captured.append(act)

    def _event(self, event: int) -> Key:
        return event if self._replay is None else self._replay.key(event)

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Treat the work issued inside as that of a graph launched on the current stream."""
        if self.watcher is None or self._replay is not None:
            yield
            return
        key = self._key(self.current)
        clock = self._begin(key)
        self._replay = _Replay(key, dict(clock), self._line())
        try:
            yield
        finally:
            used, self._replay = self._replay.used, None
            for stream in used:
                _join(clock, self._clocks[stream])


class _Replay:
    """The launch of a graph. Each stream of its capture is a stream beside the launching stream."""

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
