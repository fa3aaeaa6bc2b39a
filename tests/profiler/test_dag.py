"""Arrows between regions: what they join, and files that hold none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.profiler.dag import Edge, read, with_arrows
from pytest_nvfp4.profiler.perfetto_trace import Slice, perfetto_trace

EDGE = Edge("load", "mma", "smem by mbarrier")


def piece(name: str, begin: float, end: float, process: str = "CTA 0") -> Slice:
    return Slice(process, "warp 0" if name == "load" else "warp 1", name, begin, end)


def joined(slices: list[Slice]) -> list[tuple[float, float]]:
    """Begins of the slices that each arrow joins."""
    found: dict[int, list[float]] = {}
    for each in with_arrows(slices, [EDGE]):
        for flow in each.flows:
            found.setdefault(flow, []).append(each.begin_ns)
    assert all(len(begins) == 2 for begins in found.values())
    return sorted((min(begins), max(begins)) for begins in found.values())


def test_equally_many_are_joined_in_order_within_a_cta() -> None:
    slices = [piece("load", 0, 9), piece("load", 10, 19), piece("mma", 5, 15), piece("mma", 16, 30)]
    assert joined([*slices, piece("mma", 1, 2, "CTA 1")]) == [(0, 5), (10, 16)]


def test_else_the_last_that_ended_before_leads() -> None:
    slices = [piece("load", 0, 4), piece("load", 5, 9), piece("load", 10, 19), piece("mma", 9, 15), piece("mma", 1, 2)]
    assert joined(slices) == [(5, 9)]


def test_arrows_are_flows_of_the_trace() -> None:
    trace_type = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2").Trace
    trace = trace_type()
    trace.ParseFromString(perfetto_trace(with_arrows([piece("load", 0, 4), piece("mma", 5, 9)], [EDGE]), title="t"))
    flows = {p.track_event.name: list(p.track_event.flow_ids) for p in trace.packet if p.track_event.flow_ids}
    assert flows == {"load": [1], "mma": [1]}


def test_a_saved_dag_is_read(tmp_path: Path) -> None:
    file = tmp_path / "d.json"
    file.write_text(json.dumps({"name": "d", "regions": [], "edges": [{"source": "a", "target": "b", "via": "x"}]}))
    assert read(file) == [Edge("a", "b", "x")]


@pytest.mark.parametrize(
    "values", [[], {"edges": 3}, {"edges": [{"source": "a"}]}, {"edges": [{"source": 1, "target": "b"}]}]
)
def test_what_is_no_dag_is_refused(tmp_path: Path, values: object) -> None:
    file = tmp_path / "d.json"
    file.write_text(json.dumps(values))
    with pytest.raises(DoorError, match="holds no edges"):
        read(file)
