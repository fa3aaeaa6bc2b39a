"""Recordings of which only some clusters are simulated: equal to complete ones; complete where the model fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_nvfp4.model.recorder import Recorder
from pytest_nvfp4.model.recording import Recording
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.ptx_case import run_ptx

PERSISTENT = """
mov.u32 %r0, %tid.x;
mul.wide.u32 %rd1, %r0, 4;
ld.global.b32 %r20, [%rd100];       // the same for all clusters
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, %nctaid.x;
next:
setp.ge.u32 %p0, %r1, %r301;
@%p0 bra done;
rem.u32 %r3, %r1, %r300;            // row of tiles
div.u32 %r4, %r1, %r300;            // column
{raster}
mul.wide.u32 %rd2, %r3, 1024;
add.u64 %rd2, %rd2, %rd100;
add.u64 %rd2, %rd2, %rd1;
mul.wide.u32 %rd3, %r4, 512;
add.u64 %rd3, %rd3, %rd101;
add.u64 %rd3, %rd3, %rd1;
mov.u32 %r5, 0;
mov.u32 %r6, 0;
inner:
ld.global.b32 %r7, [%rd2];
ld.global.b32 %r8, [%rd3];
add.u32 %r6, %r6, %r7;
add.u32 %r6, %r6, %r8;
add.u64 %rd2, %rd2, 128;
add.u64 %rd3, %rd3, 128;
add.u32 %r5, %r5, 1;
setp.lt.u32 %p1, %r5, 2;
@%p1 bra inner;
mad.lo.u32 %r9, %r3, 64, %r4;
mul.wide.u32 %rd4, %r9, 128;
add.u64 %rd4, %rd4, %rd102;
add.u64 %rd4, %rd4, %rd1;
st.global.b32 [%rd4], %r6;
add.u32 %r1, %r1, %r2;
bra next;
done:
"""


GROUPED = """
mov.u32 %r0, %tid.x;
mul.wide.u32 %rd1, %r0, 4;
mov.u32 %r1, %ctaid.x;
mov.u64 %rd5, %rd100;               // rows of tiles, bytes of A, rounds: 16 bytes for each group
search:
ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd5];
mul.lo.u32 %r14, %r10, %r300;       // tiles of the group: its rows by the columns
setp.lt.u32 %p0, %r1, %r14;
@%p0 bra found;
sub.u32 %r1, %r1, %r14;
add.u64 %rd5, %rd5, 16;
bra search;
found:
rem.u32 %r3, %r1, %r10;
div.u32 %r4, %r1, %r10;
mad.lo.u32 %r5, %r3, 1024, %r11;
cvt.u64.u32 %rd2, %r5;
add.u64 %rd2, %rd2, %rd101;
add.u64 %rd2, %rd2, %rd1;
mul.wide.u32 %rd3, %r4, 512;
add.u64 %rd3, %rd3, %rd102;
add.u64 %rd3, %rd3, %rd1;
inner:
ld.global.b32 %r7, [%rd2];
st.global.b32 [%rd3], %r7;
add.u64 %rd2, %rd2, 128;
sub.u32 %r12, %r12, 1;
setp.ne.u32 %p1, %r12, 0;
@%p1 bra inner;
{odd}
"""
"""A tile of 512 bytes for each CTA, of groups that follow each other."""


def grouped(groups: list[tuple[int, int]], columns: int, *, sampled: bool, odd: str = "") -> Recording:
    """Record ``GROUPED`` on groups of rows of tiles and rounds."""
    machine = Machine()
    machine.monitor = recorder = Recorder(sampled=sampled)
    starts = np.cumsum([0, *(rows for rows, _ in groups)])
    table = [(rows, 1024 * start, rounds, 0) for (rows, rounds), start in zip(groups, starts.tolist(), strict=False)]
    buffers = {
        "table": np.array(table, np.uint32),
        "a": np.zeros(256 * int(starts[-1]) + 512, np.uint32),
        "c": np.zeros(128 * columns + 512, np.uint32),
    }
    run_ptx(
        GROUPED.replace("{odd}", odd), buffers=buffers, values=[columns], grid=(int(starts[-1]) * columns, 1, 1),
        machine=machine, prepare=recorder.launched, processes=2,
    )  # fmt: skip
    (recording,) = recorder.recordings()
    return recording


@pytest.mark.parametrize(
    ("groups", "columns", "most"),
    [
        ([(1, 2), (2, 2), (1, 2), (1, 3), (2, 2)], 16, 60),
        ([(3, 2), (1, 4)], 20, 40),
        ([(1, 2), (1, 3)] * 2, 12, 36),
    ],
)
def test_groups_are_derived_segment_by_segment(groups: list[tuple[int, int]], columns: int, most: int) -> None:
    whole, some = (grouped(groups, columns, sampled=sampled) for sampled in (False, True))
    assert content(some) == content(whole)
    assert "were simulated, and the others derived" in some.notes[0], some.notes
    assert int(some.notes[0].split()[0]) <= most, some.notes


def test_a_segment_with_another_cluster_at_its_end_is_found() -> None:
    odd = "setp.ne.u32 %p2, %r4, 30; @%p2 bra ended; st.global.b32 [%rd3], %r7; ended:"
    groups = [(1, 2), (1, 3)]
    whole, some = (grouped(groups, 31, sampled=sampled, odd=odd) for sampled in (False, True))
    assert content(some) == content(whole)
    assert "derived" in some.notes[0]


def test_what_has_no_period_is_simulated_wholly() -> None:
    groups = [(1, 1 + number % 3) for number in range(9)]
    whole, some = (grouped(groups, 3, sampled=sampled) for sampled in (False, True))
    assert content(some) == content(whole)
    assert "all clusters were simulated: too many" in some.notes[0]


def recorded(
    *, rows: int, columns: int, ctas: int, sampled: bool, raster: str = "", tiles: int | None = None, **options: Any
) -> Recording:
    machine = Machine()
    machine.monitor = recorder = Recorder(sampled=sampled)
    buffers = {
        "a": np.zeros(256 * rows + 512, np.uint32),
        "b": np.zeros(128 * columns + 512, np.uint32),
        "c": np.zeros(32 * 64 * rows + 512, np.uint32),
    }
    values = (rows, rows * columns if tiles is None else tiles)
    body = PERSISTENT.replace("{raster}", raster)
    run_ptx(
        body, buffers=buffers, values=values, grid=(ctas, 1, 1), machine=machine, prepare=recorder.launched,
        processes=2, **options,
    )  # fmt: skip
    (recording,) = recorder.recordings()
    return recording


def content(recording: Recording) -> Any:
    """What a recording says, without the numbers of programs and footprints."""
    programs = [
        (
            [(warp.cta, warp.index, warp.role, warp.events.tobytes()) for warp in program.warps],
            program.operations.tobytes(),
            program.shapes,
            program.phases.tobytes(),
        )
        for program in recording.programs
    ]
    first = min(int(footprint.lines[0]) for footprint in recording.footprints)
    return [
        (
            cluster.index,
            programs[cluster.program],
            [
                ((recording.footprints[n].lines - first).tolist(), recording.footprints[n].sectors)
                for n in cluster.footprints
            ],
        )
        for cluster in recording.clusters
    ]


@pytest.mark.parametrize(
    ("rows", "columns", "ctas"),
    [(7, 11, 26), (16, 9, 30), (5, 31, 31), (40, 1, 40), (6, 8, 48), (1, 60, 25), (26, 3, 26)],
)
def test_a_derived_recording_equals_a_complete_one(rows: int, columns: int, ctas: int) -> None:
    whole = recorded(rows=rows, columns=columns, ctas=ctas, sampled=False)
    some = recorded(rows=rows, columns=columns, ctas=ctas, sampled=True)
    assert content(some) == content(whole)
    assert "were simulated, and the others derived" in some.notes[0], some.notes
    assert int(some.notes[0].split()[0]) < ctas
    assert some.refused == ()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "raster",
    [
        "xor.b32 %r3, %r3, 1;",  # rows in another order
        "mul.lo.u32 %r4, %r4, %r4; shr.u32 %r4, %r4, 4;",  # columns that are no affine function
    ],
)
def test_what_does_not_fit_is_simulated_wholly(raster: str, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if shared:
        monkeypatch.setattr("pytest_nvfp4.sim.run.parallel._WORTH_S", 0.0)
    whole = recorded(rows=8, columns=6, ctas=24, sampled=False, raster=raster)
    some = recorded(rows=8, columns=6, ctas=24, sampled=True, raster=raster)
    assert content(some) == content(whole)
    assert "all clusters were simulated" in some.notes[0]


def test_few_clusters_are_simulated_wholly() -> None:
    assert recorded(rows=4, columns=4, ctas=12, sampled=True).notes == ()
