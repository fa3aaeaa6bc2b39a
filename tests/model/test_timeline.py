"""Native Perfetto traces, read back with the classes of the format."""

from __future__ import annotations

import sys
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.model.constants import load_device
from pytest_nvfp4.model.replay import replay_sequence
from pytest_nvfp4.model.timeline import slices_of
from pytest_nvfp4.profiler.perfetto_trace import Slice, TimelineUnavailableError, perfetto_trace, rows

from .main_loop import SITES, main_loop

SLICES = (
    Slice("SM 0", "warp 4 mma", "run", 0.0, 20.0),
    Slice("SM 0", "warp 4 mma", "wait", 20.0, 1020.4, {"for": "k.py:12", "phase": 3, "share": 0.5}),
    Slice("SM 0", "TMA", "load", 5.0, 300.0),
    Slice("SM 0", "TMA", "load", 100.0, 400.0),
    Slice("SM 1", "TMA", "load", 5.0, 301.0),
)


def read(data: bytes) -> dict[tuple[str, ...], list[tuple[str, int, int]]]:
    """Return the slices of a trace by the names of their track and its parents; every end has its begin."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

    trace = Trace()
    trace.ParseFromString(data)
    names: dict[int, tuple[str, ...]] = {}
    found: dict[tuple[str, ...], list[tuple[str, int, int]]] = defaultdict(list)
    stacks: dict[int, list[tuple[str, int]]] = defaultdict(list)
    last: dict[int, int] = defaultdict(int)
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            described = packet.track_descriptor
            parent = names[described.parent_uuid] if described.HasField("parent_uuid") else ()
            names[described.uuid] = (*parent, described.name)
            continue
        event = packet.track_event
        assert packet.timestamp >= last[event.track_uuid]
        last[event.track_uuid] = packet.timestamp
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            stacks[event.track_uuid].append((event.name, packet.timestamp))
        else:
            name, begin = stacks[event.track_uuid].pop()
            found[names[event.track_uuid]].append((name, begin, packet.timestamp))
    assert not any(stacks.values())
    return found


def test_tracks_slices_and_details_are_read_back() -> None:
    data = perfetto_trace(SLICES, title="modelled")
    found = read(data)
    assert found[("modelled", "SM 0", "warp 4 mma")] == [("run", 0, 20), ("wait", 20, 1020)]
    assert found[("modelled", "SM 0", "TMA")] == [("load", 5, 300)]
    assert found[("modelled", "SM 0", "TMA (2)")] == [("load", 100, 400)]
    assert found[("modelled", "SM 1", "TMA")] == [("load", 5, 301)]
    for text in (b"k.py:12", b"phase"):
        assert text in data


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=30))
def test_no_slice_is_lost_and_rows_hold_stacks(spans: list[tuple[int, int]]) -> None:
    slices = [Slice("SM 0", "TMA", str(at), begin, begin + length) for at, (begin, length) in enumerate(spans)]
    assert sorted(piece.name for row in rows(slices) for piece in row) == sorted(piece.name for piece in slices)
    found = read(perfetto_trace(slices, title="t"))
    back = sorted(entry for entries in found.values() for entry in entries)
    assert back == sorted((piece.name, int(piece.begin_ns), int(piece.end_ns)) for piece in slices)


def test_a_replay_shows_warps_and_units_of_the_first_sms() -> None:
    recordings = [main_loop(128, 128, 128, 2, 4, clusters=3)]
    replays = replay_sequence(recordings, load_device("b200"), timeline=True)
    pieces = list(slices_of(recordings, replays, sms=2))
    tracks = {process: {piece.track for piece in pieces if piece.process == process} for process in ("SM 0", "SM 1")}
    barriers = {f"barrier: {place} [{n}]" for place in (f"mma at {SITES[3]}", f"load at {SITES[0]}") for n in range(2)}
    barriers.add(f"barrier: mma at {SITES[5]}")
    assert tracks["SM 0"] == tracks["SM 1"] == {"warps: load", "warps: mma", "TMA load", "tensor core"} | barriers
    assert not any(piece.process == "SM 2" for piece in pieces)
    end = max(piece.end_ns for piece in pieces)
    assert 0 < end / 1e3 <= replays[0].kernel_us * (1 + 1e-9)
    assert sum(piece.track == "TMA load" for piece in pieces) == 2 * 2 * 4
    waits = [piece for piece in pieces if piece.name == "wait"]
    assert {piece.details["line"] for piece in waits} <= set(SITES)
    assert any(name == "wait" for entries in read(perfetto_trace(pieces, title="t")).values() for name, _, _ in entries)


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_a_ring_has_its_barriers_and_each_phase_its_waiters(stages: int) -> None:
    made = main_loop(128, 128, 128, stages, 12)
    (done,) = replay_sequence([made], load_device("b200"), timeline=True)
    full = [span for span in done.phases if span.ring == f"mma at {SITES[3]}"]
    assert [span.number for span in full] == list(range(12))
    assert {span.barrier for span in full} == (set(range(stages)) if stages > 1 else {None})
    for one, other in zip(full, full[stages:], strict=False):
        assert one.barrier == other.barrier
        assert one.begin_ns < one.end_ns <= other.begin_ns
    for span in full:
        assert span.completed_by == f"load at {SITES[2]}"
        (waiter,) = span.waiters
        assert (waiter.role, waiter.source) == ("mma", SITES[3])
        assert waiter.end_ns == max(waiter.begin_ns, span.end_ns)
    empty = [span for span in done.phases if span.ring == f"load at {SITES[0]}"]
    assert len(empty) == 12 - stages
    assert all(span.completed_by == f"mma at {SITES[4]}" for span in empty)
    assert replay_sequence([made], load_device("b200"))[0].phases == ()


def test_a_slice_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ValueError, match="ends before it begins"):
        perfetto_trace([Slice("SM 0", "TMA", "load", 2.0, 1.0)], title="t")


def test_without_the_package_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace.perfetto_trace_pb2", None)
    with pytest.raises(TimelineUnavailableError, match=r"pip install 'pytest-nvfp4\[timeline\]'"):
        perfetto_trace(SLICES, title="t")
