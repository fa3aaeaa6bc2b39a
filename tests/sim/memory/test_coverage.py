"""Who wrote which element: counted against a dictionary, and said in words."""

from __future__ import annotations

import ctypes
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.sim.memory.coverage import (
    FIRST_REQUEST,
    NOBODY,
    findings,
    note_reduce,
    note_request,
    note_rows,
    note_scatter,
    note_write,
    repeat,
)
from pytest_nvfp4.sim.memory.globals import Coverage, Region
from pytest_nvfp4.sim.run import parallel
from tests.sim.memory.harness import Case
from tests.sim.memory.written import kinds, watched, write_and_count
from tests.sim.ptx_case import run_ptx


def test_all_written_once_says_nothing():
    region = watched()
    note_write(region, 0, 64, 0, 1)
    note_rows(region, 64, 16, 4, 16, 1, 2)
    assert findings([region]) == []


extents = st.integers(0, 2).flatmap(
    lambda rank: st.builds(
        Extent,
        st.integers(-8, 136),
        st.sampled_from([1, 2, 4]),
        st.tuples(*[st.integers(0, 4)] * rank),
        st.tuples(*[st.sampled_from([-6, 0, 1, 2, 4, 8, 16])] * rank),
    )
)


@settings(max_examples=300)
@given(extents)
def test_a_request_writes_each_element_that_it_overlaps(extent: Extent) -> None:
    region = watched()
    places = np.array([extent.address])
    for length, stride in zip(extent.shape, extent.strides, strict=True):
        places = np.add.outer(places, np.arange(length) * stride).ravel()
    elements = {int(place + byte) // 2 for place in places for byte in range(extent.size)}
    note_request(region, extent._replace(address=region.start + extent.address))
    want = [FIRST_REQUEST if element in elements else NOBODY for element in range(64)]
    assert region.owner is not None
    assert region.owner.tolist() == want


def test_never_written_names_the_first_and_the_stride():
    region = watched()
    note_rows(region, 0, 12, 8, 16, 0, 1)
    message = kinds(region)["never-written"]
    assert "16 of 64 elements" in message
    assert "C row 0, column 6 to C row 0, column 7" in message
    (finding,) = findings([region])
    assert len(finding.notes) == 8
    assert kinds(watched()) == {"never-written": "C: no CTA wrote any of its 64 elements"}


def test_more_runs_than_are_shown_are_described_by_their_stride():
    region = watched(256)
    note_rows(region, 0, 14, 32, 16, 0, 1)
    (finding,) = findings([region])
    assert finding.notes[-1] == "and 24 more runs of elements; each 1 elements, 8 elements apart"


def test_two_writers_are_named_in_order_and_one_twice_is_another_kind():
    region = watched()
    region.begin_launch(lambda at: f"gemm.py:{at}")
    note_write(region, 0, 128, 7, 10)
    note_scatter(region, np.array([0, 6, 126]), 2, 3, 20)
    note_write(region, 32, 4, 7, 30)
    found = kinds(region)
    assert set(found) == {"written-by-two", "written-twice"}
    assert "3 elements were written by two CTAs; CTAs 3 and 7: 3 elements" in found["written-by-two"]
    assert "C row 0, column 0 (gemm.py:20)" in found["written-by-two"]
    assert "2 elements were written twice by one CTA; CTA 7, twice" in found["written-twice"]
    assert "C row 2, column 0 to C row 2, column 1" in found["written-twice"]


def test_reductions_make_no_conflict_but_cover():
    region = watched()
    for cta in (0, 1):
        note_reduce(region, 0, 128, cta)
    assert findings([region]) == []


def test_a_new_launch_may_write_again_and_cover_the_rest():
    region = watched()
    note_write(region, 0, 64, 3, 1)
    region.begin_launch()
    note_write(region, 32, 96, 0, 2)
    assert findings([region]) == []
    note_scatter(region, np.array([40]), 2, 1, 3)
    assert "CTAs 0 and 1: 1 elements" in kinds(region)["written-by-two"]
    note_write(region, 0, 128, 5, 4)
    assert region.coverage.counts == {(0, 1, 3): 1, (0, 5, 4): 47, (1, 5, 4): 1}
    region.begin_launch()
    note_reduce(region, 0, 4, 2)
    note_write(region, 0, 4, 2, 6)
    assert region.coverage.counts[2, 2, 6] == 2


def test_an_unwatched_region_costs_nothing():
    memory = ctypes.create_string_buffer(64)
    region = Region("A", ctypes.addressof(memory), 64)
    note_write(region, 0, 64, 0, 0)
    note_rows(region, 0, 8, 2, 16, 0, 0)
    note_scatter(region, np.array([0, 8]), 8, 0, 0)
    note_reduce(region, 0, 8, 0)
    assert region.owner is None
    assert findings([region]) == []


WRITES = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(0, 31), st.integers(1, 32), st.integers(0, 3)),
        st.tuples(st.just("rows"), st.integers(0, 15), st.integers(1, 3), st.integers(0, 3)),
        st.tuples(st.just("items"), st.integers(0, 56), st.integers(1, 2), st.integers(0, 3)),
        st.tuples(st.just("some"), st.integers(0, 62), st.integers(1, 2), st.integers(0, 3)),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(WRITES)
def test_every_second_write_is_counted(writes):
    region = watched()
    again = write_and_count(region, writes)
    assert region.coverage is not None
    assert {key[:2]: count for key, count in region.coverage.counts.items()} == again
    assert sum(c.stop - c.start for c in region.coverage.conflicts) == sum(again.values())


@settings(max_examples=100, deadline=None)
@given(WRITES, WRITES)
def test_notes_of_another_process_make_the_record_of_one_process(first, second):
    one, two, both = watched(), watched(), watched()
    write_and_count(one, first)
    two.notes = []
    write_and_count(two, second)
    note_reduce(two, 4, 6, 2)
    repeat(one, pickle.loads(pickle.dumps(two.notes)))
    write_and_count(both, first + second)
    note_reduce(both, 4, 6, 2)
    assert (one.owner == both.owner).all()
    assert one.coverage == both.coverage
    assert one.highest == both.highest


def test_long_conflicts_are_counted_in_full_and_kept_in_part():
    region = watched(4096)
    note_write(region, 0, 8192, 0, 1)
    note_scatter(region, np.arange(0, 8192, 4), 2, 1, 2)
    assert region.coverage.counts == {(0, 1, 2): 2048}
    assert len(region.coverage.conflicts) == 64


@pytest.mark.parametrize("pitch", [16, 24])
def test_stores_of_a_warp_are_noted(pitch):
    case = Case(ctas=2)
    region = case.tensor(np.zeros(32 * pitch, np.uint8), "C")
    region.watch(2)
    where = region.start + pitch * np.arange(32, dtype=np.uint64)
    store = "st.global.v2.b64 [%d1], {%d2, %d3};" if pitch == 16 else "st.global.v2.b32 [%d1], {%r2, %r3};"
    case.run(store, d1=where)
    wide = 8 if pitch == 16 else 4
    wanted = np.full(16 * pitch, -1, np.int32)
    for lane in range(32):
        wanted[lane * pitch // 2 : lane * pitch // 2 + wide] = 0
    assert (region.owner == wanted).all()
    case.run("st.global.b16 [%d1], %h1;", rank=1, d1=region.start)
    assert region.owner[0] == 1
    assert region.coverage.counts == {(0, 1, 0): 1}


BODY = """
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, %tid.x;
mad.lo.u32 %r3, %r1, 32, %r2;
mul.wide.u32 %rd1, %r3, 4;
add.u64 %rd2, %rd100, %rd1;
st.global.b32 [%rd2], %r3;
"""


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("twice", [False, True])
def test_forked_processes_bring_their_writers_back(processes, twice, monkeypatch):
    regions: list[Region] = []

    def prepare(grid) -> None:
        (region,) = [r for r in grid.machine.memory if r.size == 64 * 128]
        region.watch(4)
        regions.append(region)

    monkeypatch.setattr(parallel, "_WORTH_S", 0.0)
    body = BODY
    if twice:
        body = body.replace("mad.lo.u32", "and.b32 %r1, %r1, 31;\nmad.lo.u32")
    ran = run_ptx(
        body, buffers={"out": np.zeros(64 * 32, np.uint32)}, grid=(64, 1, 1), prepare=prepare, processes=processes
    )
    (region,) = regions
    if twice:
        found = kinds(region)
        assert set(found) == {"never-written", "written-by-two"}
        assert "1024 elements were written by two CTAs; CTAs 0 and 32: 32 elements" in found["written-by-two"]
    else:
        assert (region.owner == np.repeat(np.arange(64), 32)).all()
        assert findings([region]) == []
        assert (ran["out"] == np.arange(64 * 32)).all()


def test_a_coverage_is_plain_data():
    import pickle

    region = watched()
    write_and_count(region, [("run", 0, 32, 0), ("run", 8, 8, 1)])
    back: Coverage = pickle.loads(pickle.dumps(region.coverage))
    assert back.counts == region.coverage.counts
    assert back.conflicts == region.coverage.conflicts
