"""CUDA graphs of torch over the launches of compiled host code."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.host.graphs import Graph, LaunchQueue
from tests.host.redirect_worker import run_script


def test_launches_of_a_capture_are_issued_at_each_replay() -> None:
    issued: list[object] = []
    queue = LaunchQueue(issued.append)
    graph = Graph(queue)
    queue("before")  # type: ignore[arg-type]
    graph.capture_begin()
    assert queue.capturing
    queue("a")  # type: ignore[arg-type]
    queue("b")  # type: ignore[arg-type]
    graph.capture_end()
    assert issued == ["before"]
    graph.replay()
    queue("between")  # type: ignore[arg-type]
    graph.replay()
    assert issued == ["before", "a", "b", "between", "a", "b"]


def test_misuse_is_refused() -> None:
    queue = LaunchQueue([].append)
    graph = Graph(queue)
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with pytest.raises(HostSideError, match="no CUDA graph"):
        graph.capture_end()
    graph.capture_begin()
    with pytest.raises(HostSideError, match="already"):
        Graph(queue).capture_begin()
    graph.capture_end()
    graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding"):
        graph.replay()


@pytest.mark.slow
def test_torch_captures_a_kernel(tmp_path: Path) -> None:
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    said = run_script(
        """
@cute.kernel
def touch(x: cute.Tensor, n: cutlass.Int32):
    x[0] = n

@cute.jit
def go(x: cute.Tensor, n: cutlass.Int32, stream: cuda.CUstream):
    touch(x, n).launch(grid=[n, 1, 1], block=[32, 1, 1], stream=stream)

x = torch.zeros(4, dtype=torch.int32, device="cuda")
tensor = from_dlpack(x)
go(tensor, 1, cuda.CUstream(torch.cuda.current_stream().cuda_stream))
graph = torch.cuda.CUDAGraph()
stream = torch.cuda.Stream()
with torch.cuda.graph(graph, stream=stream):
    said["capturing"] = torch.cuda.is_current_stream_capturing()
    said["streams_capturing"] = [s.is_capturing() for s in (torch.cuda.current_stream(), torch.cuda.default_stream())]
    go(tensor, 2, cuda.CUstream(torch.cuda.current_stream().cuda_stream))
    go(tensor, 3, cuda.CUstream(torch.cuda.current_stream().cuda_stream))
x.record_stream(stream)
said["after_capture"] = [l.grid[0] for l in launches]
graph.replay()
graph.replay()
said["after_replay"] = [l.grid[0] for l in launches]
said["streams"] = [l.stream == stream.cuda_stream for l in launches[:3]]
said["outside"] = torch.cuda.is_current_stream_capturing()
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        1 / 0
except ZeroDivisionError:
    said["after_failure"] = torch.cuda.is_current_stream_capturing()
""",
        tmp_path,
    )
    assert said["capturing"]
    assert said["streams_capturing"] == [True, False]
    assert said["after_capture"] == [1]
    assert said["after_replay"] == [1, 2, 3, 2, 3]
    assert said["streams"] == [False, True, True]
    assert not said["outside"]
    assert not said["after_failure"]
