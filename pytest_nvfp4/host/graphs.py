"""CUDA graphs without a GPU: launches are recorded during a capture and issued at each replay.

Only launches are captured. Operators of torch inside a capture run once, during the capture, and not at a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeAlias

from pytest_nvfp4.driver.launches import HostSideError, Launch
from pytest_nvfp4.driver.streams import Streams

Captured: TypeAlias = tuple[Callable[[], None], ...]
"""The actions of each replay of a graph."""


class LaunchQueue:
    """Passes launches on, or records them while a capture is open, together with the reports to ``streams``."""

    def __init__(self, on_launch: Callable[[Launch], None], streams: Streams | None = None) -> None:
        self._on_launch = on_launch
        self.streams = streams or Streams()

    @property
    def capturing(self) -> bool:
        """Whether a capture is open."""
        return self.streams.captured is not None

    def __call__(self, launch: Launch) -> None:
        """Issue a launch, or record it."""
        if self.streams.captured is None:
            self._on_launch(launch)
        else:
            self.streams.captured.append(partial(self, launch))

    def begin(self) -> None:
        """Open a capture. Raises HostSideError if one is open already."""
        if self.streams.captured is not None:
            raise HostSideError("a CUDA graph is being captured already: end that capture first")
        self.streams.captured = []

    def end(self) -> Captured:
        """Close the capture and return what it recorded. Raises HostSideError if none is open."""
        if self.streams.captured is None:
            raise HostSideError("no CUDA graph is being captured")
        captured, self.streams.captured = tuple(self.streams.captured), None
        return captured


class Graph:
    """``torch.cuda.CUDAGraph``."""

    def __init__(self, queue: LaunchQueue) -> None:
        self._queue = queue
        self._captured: Captured | None = None

    def capture_begin(self, *_: Any, **__: Any) -> None:
        """Begin to record launches instead of issuing them."""
        self._queue.begin()

    def capture_end(self) -> None:
        """End the capture."""
        self._captured = self._queue.end()

    def instantiate(self) -> None:
        """Do nothing: there is no executable graph to make."""

    def replay(self) -> None:
        """Issue the captured launches.

        Raises:
            RuntimeError: nothing was captured, with torch's message.
        """
        if self._captured is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        with self._queue.streams.replay():
            for act in self._captured:
                act()

    def reset(self) -> None:
        """Drop the capture."""
        self._captured = None

    def pool(self) -> tuple[int, int]:
        """Return a handle of its memory pool."""
        return (0, 1)

    def enable_debug_mode(self) -> None:
        """Do nothing: graphs cannot be dumped."""


def torch_table(queue: LaunchQueue, stream_context: Callable[[Any], AbstractContextManager[None]]) -> dict[str, Any]:
    """Return ``torch.cuda``'s functions for graphs, by name.

    Args:
        queue: Receives the launches.
        stream_context: ``torch.cuda.stream``.
    """

    class CUDAGraph(Graph):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__(queue)

    @contextmanager
    def graph(cuda_graph: Graph, pool: Any = None, stream: Any = None, **_: Any) -> Iterator[None]:  # noqa: ARG001
        queue.streams.synchronize_device()
        with stream_context(stream):
            cuda_graph.capture_begin()
            try:
                yield
            finally:
                cuda_graph.capture_end()

    return {
        "CUDAGraph": CUDAGraph,
        "graph": graph,
        "graph_pool_handle": lambda: (0, 1),
        "is_current_stream_capturing": lambda: queue.capturing,
    }
