"""CUDA graphs without a GPU: the launches of a capture are kept, and issued at each replay.

Only launches are captured. Operators of torch inside a capture run once, when it is made, and not again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeAlias

from pytest_nvfp4.driver.launches import HostSideError, Launch
from pytest_nvfp4.driver.streams import Streams

__all__ = ["Captured", "Graph", "LaunchQueue"]

Captured: TypeAlias = tuple[Callable[[], None], ...]
"""What happens at each replay of a graph."""


class LaunchQueue:
    """Hands launches on as they are issued, or keeps them while a capture is open, with what ``streams`` hears then."""

    def __init__(self, on_launch: Callable[[Launch], None], streams: Streams | None = None) -> None:
        self._on_launch = on_launch
        self.streams = streams or Streams()

    @property
    def capturing(self) -> bool:
        """Whether a capture is open."""
        return self.streams.captured is not None

    def __call__(self, launch: Launch) -> None:
        """Issue a launch, or keep it."""
        if self.streams.captured is None:
            self._on_launch(launch)
        else:
            self.streams.captured.append(partial(self, launch))

    def begin(self) -> None:
        """Open a capture.

        Raises:
            HostSideError: one is open already.
        """
        if self.streams.captured is not None:
            raise HostSideError("a CUDA graph is being captured already: end that capture first")
        self.streams.captured = []

    def end(self) -> Captured:
        """Close the capture and return what it kept.

        Raises:
            HostSideError: none is open.
        """
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
        """Start to keep launches instead of issuing them."""
        self._queue.begin()

    def capture_end(self) -> None:
        """Stop to keep launches."""
        self._captured = self._queue.end()

    def instantiate(self) -> None:
        """Nothing: there is no graph object to make."""

    def replay(self) -> None:
        """Issue the captured launches.

        Raises:
            RuntimeError: nothing was captured, as torch has it.
        """
        if self._captured is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        with self._queue.streams.replay():
            for act in self._captured:
                act()

    def reset(self) -> None:
        """Forget what was captured."""
        self._captured = None

    def pool(self) -> tuple[int, int]:
        """A handle that stands for its memory pool."""
        return (0, 1)

    def enable_debug_mode(self) -> None:
        """Nothing: no graph can be dumped."""


def torch_table(queue: LaunchQueue, stream_context: Callable[[Any], AbstractContextManager[None]]) -> dict[str, Any]:
    """What ``torch.cuda`` offers for graphs, by name.

    Args:
        queue: Where launches go.
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
