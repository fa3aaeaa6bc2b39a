"""Regions in modelled time: marks of recordings, and of those that were stored, replayed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.model.constants import load_device
from pytest_nvfp4.model.recording import Does, Recording
from pytest_nvfp4.model.regions import modelled_regions, moments_of
from pytest_nvfp4.model.replay import replay
from pytest_nvfp4.model.storage import dumps, loads
from pytest_nvfp4.profiler.records import Kind
from pytest_nvfp4.profiler.spans import Timeline
from pytest_nvfp4.sim.ptx.marks import Mark
from tests.model.recorded_kernels import record
from tests.sim.marked import iket, iket_globals, region

B200 = load_device("b200")
LOAD = "ld.global.b32 %r1, [%rd100]; st.global.b32 [%rd101], %r1;"
WORK = "".join(f"add.u32 %r{2 + n % 8}, %r1, {n};" for n in range(200))


def recorded(body: str, **options: Any) -> Recording:
    buffers = {"source": np.zeros(32, np.uint32), "out": np.zeros(32, np.uint32)}
    return record(body, buffers, **options)[0]


def modelled(recording: Recording) -> Timeline:
    done = replay(recording, B200)
    return modelled_regions([recording], [done], source="modelled")


def test_a_load_takes_longer_than_arithmetic_and_an_outer_region_both() -> None:
    body = region("begin", "all") + region("begin", "load") + LOAD + region("end", "load")
    body += region("begin", "work") + WORK + region("end", "work") + region("end", "all")
    found = {each.name: each for each in modelled(recorded(body, grid=(2, 1, 1), block=(64, 1, 1))).statistics()}
    assert {name: each.count for name, each in found.items()} == {"all": 4, "load": 4, "work": 4}
    assert found["load"].mean > found["work"].mean > 20
    assert found["all"].least >= found["load"].least + found["work"].least


def test_marks_survive_storage_and_do_not_change_the_time() -> None:
    plain, marked = recorded(LOAD + WORK), recorded(LOAD + region("mark", "m") + WORK + region("begin", "b"))
    assert Does.MARK in {Does(event) for event in marked.programs[0].warps[0].events["does"].tolist()}
    (again,) = loads(dumps([marked]))
    assert again.marks == marked.marks == (Mark("mark", "m"), Mark("begin", "b"))
    timeline = modelled(again)
    assert [span.name for span in timeline.spans] == ["m"]
    assert "'b' began 1 time without an end" in timeline.problems[0]
    # Two instructions more: the registers of the marks.
    times = [replay(each, B200).kernel_us for each in (plain, marked)]
    assert times[0] <= times[1] < times[0] * 1.02


def test_a_stored_mark_without_a_name_is_refused() -> None:
    marked = recorded(region("mark", "m") + LOAD)
    with pytest.raises(DoorError, match="item"):
        loads(dumps([replace(marked, marks=())]))


def test_ranges_of_iket_are_regions() -> None:
    events = {1: (4, "whole"), 3: (1, "inner")}
    body = iket(1) + iket(3) + LOAD + iket(31) + iket(1) + iket(1) + WORK + iket(1)
    timeline = modelled(recorded(body, globals_=iket_globals(events), shared=1024))
    assert [(span.name, span.depth) for span in timeline.spans] == [("inner", 1), ("whole", 0), ("whole", 0)]
    assert not timeline.problems


def test_ctas_of_clusters_have_their_numbers_in_the_grid() -> None:
    body = region("begin", "r") + LOAD + region("end", "r")
    recording = recorded(body, grid=(4, 2, 1), cluster=(2, 1, 1))
    assert sorted(span.cta for span in modelled(recording).spans) == list(range(8))


def test_a_toggle_begins_and_ends() -> None:
    found = [(moment.kind, moment.at) for moment in moments_of([Mark("toggle", "t")], [(0, 1.0), (0, 2.0), (0, 3.0)])]
    assert found == [(Kind.BEGIN, 1.0), (Kind.END, 2.0), (Kind.BEGIN, 3.0)]
