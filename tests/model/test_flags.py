"""Flags in global memory: recorded from kernels, and replayed against times calculated by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.model import storage
from pytest_nvfp4.model.constants import DeviceConstants, load_device
from pytest_nvfp4.model.recording import INSTRUCTION_CLASSES, Recording, Unit
from pytest_nvfp4.model.replay import Conditions, ReplayError, replay
from tests.model.recorded_kernels import content, record

FENCE, LOAD, ATOMIC, ISSUE = 1000.0, 100.0, 10.0, 1.0
"""ns of a fence, of the load of a poll that ends, of an atomic addition, of a store's issue; all else takes none."""


def device() -> DeviceConstants:
    """Return a device on which only fences, loads and atomic operations take time, with a clock of 1 GHz."""
    nothing = (*INSTRUCTION_CLASSES[:-1], "cta_start", "dram_latency")
    rates = ("l2_read", "l2_write", "load_rate", "dram")
    own = {"fence": FENCE, "load_latency": LOAD, "atomic_latency": ATOMIC, "clock": 1.0, "l2_clock": 1.0}
    return load_device("b200").changed(**dict.fromkeys(nothing, 0.0), **dict.fromkeys(rates, 1e9), **own)


def modelled(recording: Recording, table: DeviceConstants | None = None, **conditions: int) -> float:
    """Return the modelled ns of a launch."""
    return 1e3 * replay(recording, table or device(), conditions=Conditions(launch="none", **conditions)).kernel_us


HEAD = (
    "mov.u32 %r0, %tid.x;\nmov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %nctaid.x;\nsetp.ne.u32 %p0, %r0, 0;\n@%p0 bra end;\n"
)
LATE = "setp.ne.u32 %p5, %r1, {cta};\n@%p5 bra punctual;\nfence.acq_rel.gpu;\npunctual:\n"
"""A fence more in one CTA."""
STORE = "st.global.u32 [%rd101], %r1;\n"

FLAG = (
    """
setp.eq.u32 %p1, %r1, {reader};
@%p1 bra reader;
st.release.gpu.global.u32 [%rd100], 7;
bra end;
reader:
ld.acquire.gpu.global.u32 %r5, [%rd100];
setp.ne.s32 %p2, %r5, 7;
@%p2 bra reader;
"""
    + STORE
)
"""One of two CTAs writes a flag, and the other one waits for it."""

FIX_UP = """
sub.u32 %r3, %r2, %r1;
sub.u32 %r3, %r3, 1;
turn:
ld.acquire.gpu.global.u32 %r5, [%rd100];
setp.eq.u32 %p2, %r5, %r3;
@%p2 bra mine;
nanosleep.u32 100;
bra turn;
mine:
st.global.u32 [%rd101], %r1;
red.release.gpu.global.add.u32 [%rd100], 1;
"""
"""Each CTA waits for its turn, the last one first: the flag counts those that are done."""

BARRIER = (
    """
red.release.gpu.global.add.u32 [%rd100], 1;
arrived:
ld.acquire.gpu.global.u32 %r5, [%rd100];
setp.lt.u32 %p2, %r5, %r2;
@%p2 bra arrived;
"""
    + STORE
)


def launch(body: str, *, ctas: int = 4, late: int | None = None) -> Recording:
    delay = "" if late is None else LATE.format(cta=late)
    buffers = {"flag": np.zeros(2, np.uint32), "out": np.zeros(2, np.uint32)}
    recording, _ = record(f"{HEAD}{delay}{body}\nend:\n", buffers, grid=(ctas, 1, 1), block=(1, 1, 1))
    return recording


@pytest.mark.parametrize("reader", [0, 1])
def test_a_waiter_goes_on_when_the_flag_is_written(reader: int) -> None:
    body = FLAG.format(reader=reader)
    on_time, late = launch(body, ctas=2), launch(body, ctas=2, late=1 - reader)
    assert on_time.refused == ()
    assert [len(each.flags) for each in on_time.clusters] == [1, 1]
    assert modelled(on_time) == pytest.approx(FENCE + LOAD + ISSUE, abs=0.1)
    assert modelled(late) == pytest.approx(2 * FENCE + LOAD + ISSUE, abs=0.1)
    # A late reader finds the flag written.
    assert modelled(launch(body, ctas=2, late=reader)) == pytest.approx(FENCE + LOAD + ISSUE, abs=0.1)


def test_ctas_that_wait_for_their_turn_follow_each_other() -> None:
    recording = launch(FIX_UP)
    assert recording.refused == ()
    assert len(recording.programs) == 1  # turns differ in their operands only
    assert sorted(int(each.flags[0, 1]) for each in recording.clusters) == [0, 1, 2, 3]
    assert modelled(recording) == pytest.approx(4 * (LOAD + ISSUE + FENCE + ATOMIC), abs=0.1)
    assert modelled(launch(FIX_UP, late=3)) == pytest.approx(4 * (LOAD + ISSUE + FENCE + ATOMIC) + FENCE, abs=0.1)


def test_a_grid_barrier_waits_for_the_last_cta() -> None:
    assert modelled(launch(BARRIER)) == pytest.approx(FENCE + ATOMIC + LOAD + ISSUE, abs=0.1)
    late = launch(BARRIER, late=2)
    assert modelled(late) == pytest.approx(2 * FENCE + ATOMIC + LOAD + ISSUE, abs=0.1)
    path = replay(late, device(), conditions=Conditions(launch="none")).path
    assert sum(part.us for part in path) == pytest.approx(modelled(late) / 1e3)
    assert {"fence", "load latency"} <= {part.waits_for for part in path}


def test_the_number_of_vain_polls_is_not_recorded() -> None:
    (first, last) = (launch(FLAG.format(reader=reader), ctas=2) for reader in (0, 1))
    kinds = [
        [
            [warp.events["does"].tolist() for warp in recording.programs[cluster.program].warps]
            for cluster in recording.clusters
        ]
        for recording in (first, last)
    ]
    assert kinds[0] == kinds[1][::-1]
    mixes = [sorted(each.mixes.tolist() for each in recording.programs) for recording in (first, last)]
    assert mixes[0] == mixes[1]


def test_lanes_that_wait_for_a_polling_lane_change_nothing() -> None:
    body = FLAG.format(reader=0) + "end:\nbar.warp.sync 0xffffffff;\nst.global.u32 [%rd101], %r1;\n"
    buffers = {"flag": np.zeros(2, np.uint32), "out": np.zeros(2, np.uint32)}
    recording, counters = record(HEAD + body, buffers, grid=(2, 1, 1))
    assert recording.refused == ()
    assert counters["instructions"] > 30  # without vain polls
    assert sum(int(each.mixes[:, :-1].sum()) for each in recording.programs) == 30
    assert modelled(recording) == pytest.approx(FENCE + LOAD + 2 * ISSUE, abs=0.1)


def test_a_waiter_that_keeps_the_writer_from_its_place_is_an_error() -> None:
    recording = launch(FLAG.format(reader=0), ctas=2)
    with pytest.raises(ReplayError, match="1 clusters find no place"):
        modelled(replace(recording, ctas_per_sm=1), device().changed(sms=1))
    recording = launch(FLAG.format(reader=1), ctas=2)
    # One after the other: the writer first.
    alone = FENCE + ISSUE + LOAD + ISSUE
    assert modelled(replace(recording, ctas_per_sm=1), device().changed(sms=1)) == pytest.approx(alone, abs=0.1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("st.release.gpu.global.u32 [%rd100], 7;", "fence.acq_rel.gpu;\nst.global.u32 [%rd100], 7;"), "other than by"),
        (("st.release.gpu.global.u32", "st.release.gpu.global.u16"), "other than by"),
        (("st.global.u32 [%rd101], %r1;", "st.global.u32 [%rd101], %r5;"), "other CTAs may write"),
        (("setp.ne.s32 %p2, %r5, 7;", "st.global.u32 [%rd101], 1;\nsetp.ne.s32 %p2, %r5, 7;"), "other CTAs may write"),
        (("@%p2 bra reader;", "@%p2 bra head;"), "other CTAs may write"),
    ],
)
def test_other_loops_and_writes_are_refused(change: tuple[str, str], words: str) -> None:
    body = FLAG.format(reader=1).replace("setp.eq.u32 %p1", "head:\nsetp.eq.u32 %p1").replace(*change)
    if "u16" in body:
        body = body.replace("[%rd100], 7", "[%rd100], %rs1").replace("head:", "mov.u16 %rs1, 7;\nhead:")
    refused = launch(body, ctas=2).refused
    assert len(refused) == 1
    assert words in refused[0]


def test_flags_are_stored_and_checked() -> None:
    recording = launch(FIX_UP)
    (read,) = storage.loads(storage.dumps([recording]))
    assert content(read) == content(recording)
    assert read.cells == recording.cells
    assert [each.flags.tolist() for each in read.clusters] == [each.flags.tolist() for each in recording.clusters]
    beyond = replace(recording, clusters=tuple(replace(each, flags=each.flags + 9) for each in recording.clusters))
    with pytest.raises(DoorError, match="flags"):
        storage.loads(storage.dumps([beyond]))
    with pytest.raises(DoorError, match="no cells"):
        storage.loads(storage.dumps([replace(recording, cells=())]))
    (program,) = recording.programs
    shapes = tuple(replace(each, kind="mul.b32") if each.kind.startswith("add") else each for each in program.shapes)
    with pytest.raises(DoorError, match=r"flag of kind 'mul\.b32'"):
        storage.loads(storage.dumps([replace(recording, programs=(replace(program, shapes=shapes),))]))
    units = program.operations["unit"].tolist()
    assert (units.count(Unit.FLAG_WAIT), units.count(Unit.FLAG_WRITE)) == (1, 1)
