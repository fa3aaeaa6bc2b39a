"""CUDA graphs without a GPU: launches are recorded during a capture and issued at each replay.

Only launches are captured. Operators of torch inside a capture run once, during the capture, and not at a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from pytest_nvfp4.driver.launch_queue import Captured, LaunchQueue


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
        self._queue.replay(self._captured)

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
    }
