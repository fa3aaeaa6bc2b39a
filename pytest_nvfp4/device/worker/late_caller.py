"""The schedule of a stream whose work before a call is late, and whose work after it is early, for simulated launches.

The simulated device completes work when it is issued. Here a launch that is not ordered after the caller's last work
before the call sees the inputs as they were before that, and the caller's first work after the call sees nothing of a
launch that it is not ordered after. Torch's own operators are not rescheduled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from pytest_nvfp4.device.worker.memory import DeviceMemory
from pytest_nvfp4.driver.launches import Launch
from pytest_nvfp4.driver.streams import Extent, Key, Streams, Work
from pytest_nvfp4.driver.user_line import UserLine


class _Clocks:
    """A watcher that keeps no more than the last work, so that the order of streams is computed."""

    last: Work | None = None

    def worked(self, work: Work, reads: Sequence[Extent], writes: Sequence[Extent]) -> None:  # noqa: ARG002
        """See ``Watcher``."""
        self.last = work

    def allocated(self, address: int, size: int, stream: Key, line: UserLine | None, *, pooled: bool) -> None:
        """See ``Watcher``."""

    def freed(self, address: int, line: UserLine | None) -> None:
        """See ``Watcher``."""

    def recorded(self, address: int, stream: Key) -> None:
        """See ``Watcher``."""

    def block(self, address: int) -> Extent | None:  # noqa: ARG002
        """See ``Watcher``."""
        return None


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """A launch, and the bytes of the outputs before and after it."""

    work: Work
    before: list[bytes]
    after: list[bytes]


class LateCaller:
    """A caller with inputs and outputs at ``extents``; ``poison`` holds the bytes of the inputs before they come."""

    def __init__(
        self,
        streams: Streams,
        memory: DeviceMemory,
        *,
        inputs: Sequence[tuple[Extent, bytes]],
        outputs: Sequence[Extent],
    ) -> None:
        self._streams = streams
        self._memory = memory
        self._inputs = inputs
        self._outputs = outputs
        self._clocks = _Clocks()
        self._filled: Work | None = None
        self._launches: list[_Unfinished] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Compute the order of streams meanwhile."""
        before, self._streams.watcher = self._streams.watcher, self._clocks
        try:
            yield
        finally:
            self._streams.watcher = before

    @contextmanager
    def between(self) -> Iterator[None]:
        """Surround the call, on the caller's stream."""
        self._streams.work("the caller")
        self._filled = self._clocks.last
        yield
        self._streams.work("the caller")
        taken = self._clocks.last
        assert taken is not None
        for launch in reversed(self._launches):
            if not taken.after(launch.work):
                self._undo(launch)

    @contextmanager
    def launch(self, launch: Launch) -> Iterator[None]:
        """Surround a launch."""
        works: list[Work] = []
        self._streams.launched(launch.kernel, launch.stream, works.append)
        if self._filled is None or not works:
            yield
            return
        before = self._read(self._outputs)
        late = not works[0].after(self._filled)
        arrived = self._read([extent for extent, _ in self._inputs])
        if late:
            for extent, poison in self._inputs:
                self._memory.write(extent.address, poison)
        try:
            yield
        finally:
            if late:
                for (extent, _), data in zip(self._inputs, arrived, strict=True):
                    self._memory.write(extent.address, data)
        self._launches.append(_Unfinished(works[0], before, self._read(self._outputs)))

    def _read(self, extents: Sequence[Extent]) -> list[bytes]:
        return [self._memory.read(extent.address, extent.size) for extent in extents]

    def _undo(self, launch: _Unfinished) -> None:
        """Take back what a launch has written, where nothing has written since."""
        for extent, before, after in zip(self._outputs, launch.before, launch.after, strict=True):
            old, new = (np.frombuffer(data, dtype=np.uint8) for data in (before, after))
            now = np.frombuffer(self._memory.read(extent.address, extent.size), dtype=np.uint8)
            self._memory.write(extent.address, np.where((old != new) & (now == new), old, now).tobytes())
