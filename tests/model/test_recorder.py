"""The recorder: events and phases of small kernels counted by hand, and agreement with the simulator's counters."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.model.recording import INSTRUCTION_CLASSES, Does, Unit
from pytest_nvfp4.sim.run.asynchronous import Lazy
from pytest_nvfp4.sim.run.machine import Machine
from tests.model.recorded_kernels import PIPELINE, events, executed, issued, pipeline, record
from tests.model.untimed import Stuck, execute, without_event


def test_a_pipeline_is_recorded_as_counted_by_hand() -> None:
    recording, counters = pipeline()
    assert recording.refused == ()
    assert (recording.grid, recording.block, recording.arch) == ((2, 1, 1), (64, 1, 1), "sm_100a")
    (program,) = recording.programs  # two clusters that differ in addresses only
    assert [cluster.index for cluster in recording.clusters] == [0, 1]
    producer, consumer = program.warps
    said = events(program, producer)
    start, full, empty, again = said[0][1], said[2][1], said[4][1], said[5][1]
    assert said == [
        ("SIGNAL", start), ("WAIT", start),
        ("SIGNAL", full), ("TMA_LOAD", 1),
        ("WAIT", empty), ("SIGNAL", again), ("TMA_LOAD", 1),
    ]  # fmt: skip
    assert (producer.role, consumer.role) == ("load", "nothing")
    *steps, store = events(program, consumer)
    assert steps[:5] == [("SIGNAL", start), ("WAIT", start), ("WAIT", full), ("SIGNAL", empty), ("WAIT", again)]
    assert (steps[5][0], store) == ("SIGNAL", ("GLOBAL_STORE", 1))
    # The named barrier takes two warps; the full phases an arrival and a copy; the first empty one 32 arrivals.
    assert program.phases[[start, full, again, empty]].tolist() == [2, 2, 2, 32]
    assert executed(recording) == counters["instructions"]
    loads = program.operations[program.operations["unit"] == Unit.TMA_LOAD]
    shape = program.shapes[loads[0]["shape"]]
    assert (shape.rows, shape.bytes, shape.ctas) == (2, 256, (0,))


def test_footprints_name_the_lines_that_are_touched() -> None:
    recording, _ = pipeline()
    (program,) = recording.programs
    slots = [int(operation["slot"]) for operation in program.operations if operation["unit"] == Unit.TMA_LOAD]
    lines = [
        recording.footprints[cluster.footprints[slot]].lines.tolist()
        for cluster in recording.clusters
        for slot in slots
    ]
    assert lines == [[first, first + 1] for first in range(lines[0][0], lines[0][0] + 8, 2)]


def test_instructions_between_events_are_counted_by_class() -> None:
    recording, _ = pipeline(1)
    (program,) = recording.programs
    consumer = program.warps[1].events
    waits = [place for place, event in enumerate(consumer) if event["does"] == Does.WAIT]
    mix = dict(zip(INSTRUCTION_CLASSES, program.mixes[consumer["item"][waits[1] + 1]].tolist(), strict=True))
    # The branch of the wait's loop, sub, shl, add, ld.shared, arrive.
    assert mix == dict.fromkeys(INSTRUCTION_CLASSES, 0) | {
        "branch": 1, "alu": 3, "shared_load": 1, "other": 1, "shared_wavefronts": 1
    }  # fmt: skip


@pytest.mark.parametrize("drop", ["SIGNAL", "ISSUE"])
def test_a_recording_can_be_executed_and_not_without_a_signal(drop: str) -> None:
    recording, _ = pipeline(1)
    (program,) = recording.programs
    execute(program)
    dropped = 0
    for number, warp in enumerate(program.warps):
        for place, event in enumerate(warp.events):
            if Does(event["does"]).name != drop:
                continue
            awaited = {
                int(each["item"]) for other in program.warps for each in other.events if each["does"] == Does.WAIT
            }
            signalled = _signalled(program, event)
            if signalled & awaited:
                dropped += 1
                with pytest.raises(Stuck):
                    execute(without_event(program, number, place))
    assert dropped >= 2


def _signalled(program, event) -> set[int]:
    if event["does"] == Does.SIGNAL:
        return {int(event["item"])}
    done = int(program.operations[event["item"]]["done"])
    return set(program.signals[done]) if done >= 0 else set()


def test_processes_that_share_a_launch_record_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_nvfp4.sim.run.parallel._WORTH_S", 0.0)
    alone, _ = pipeline(6)
    shared, _ = pipeline(6, processes=2)
    assert len(shared.programs) == 1
    assert [(each.index, each.program) for each in shared.clusters] == [(n, 0) for n in range(6)]
    for one, other in zip(alone.clusters, shared.clusters, strict=True):
        for ours, theirs in zip(one.footprints, other.footprints, strict=True):
            assert np.diff(alone.footprints[ours].lines).tolist() == np.diff(shared.footprints[theirs].lines).tolist()
    (mine,), (yours,) = alone.programs, shared.programs
    assert [warp.events.tobytes() for warp in mine.warps] == [warp.events.tobytes() for warp in yours.warps]
    assert mine.operations.tobytes() == yours.operations.tobytes()


def test_a_warp_waits_where_the_result_of_a_load_is_used() -> None:
    body = """
    ld.global.b32 %r1, [%rd100];
    ld.global.b32 %r2, [%rd100+256];
    mov.u32 %r3, 7;
    add.u32 %r4, %r3, 1;
    add.u32 %r4, %r4, %r2;
    st.global.b32 [%rd100], %r4;
    """
    recording, _ = record(body, {"data": np.zeros(128, np.uint32)})
    (program,) = recording.programs
    said = [name for name, _ in events(program, program.warps[0])]
    assert said == ["GLOBAL_LOAD", "GLOBAL_LOAD", "WAIT", "GLOBAL_STORE"]
    place = next(n for n, event in enumerate(program.warps[0].events) if event["does"] == Does.WAIT)
    between = program.mixes[program.warps[0].events["item"][place - 1]].tolist()
    assert dict(zip(INSTRUCTION_CLASSES, between, strict=True))["alu"] == 1
    execute(program)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("atom.global.add.u32 %r1, [%rd100], 1;\nst.global.b32 [%rd100+4], %r1;", "result of an atomic"),
        ("ld.acquire.gpu.global.b32 %r1, [%rd100];", "other CTAs may write"),
        ("red.global.add.u32 [%rd100], 1;", ""),
        ("atom.global.add.u32 %r1, [%rd100], 1;", ""),
        ("ld.relaxed.cta.shared.b32 %r1, [smem];", ""),
    ],
)
def test_what_depends_on_the_order_of_ctas_is_refused(body: str, words: str) -> None:
    recording, _ = record(body, {"data": np.zeros(4, np.uint32)}, shared=128)
    assert len(recording.refused) == bool(words)
    assert not words or (words in recording.refused[0] and "PTX line" in recording.refused[0])


def test_what_a_refused_wait_repeats_is_not_counted() -> None:
    body = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, smem;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra made;
    mbarrier.init.shared::cta.b64 [%r1], 32;
    made:
    bar.sync 0;
    mov.u32 %r2, 0;
    again:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
    @%p1 bra done;
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p2, %r2, 2;
    @%p2 bra again;
    mbarrier.arrive.shared::cta.b64 _, [%r1];
    bra again;
    done:
    """
    recording, counters = record(body, shared=128)
    (program,) = recording.programs
    said = [name for name, _ in events(program, program.warps[0])]
    assert said == ["SIGNAL", "WAIT", "SIGNAL", "WAIT"]
    # The first of two refused waits is repeated with nothing in between: branch, add, setp, branch, try_wait.
    assert counters["instructions"] - executed(recording) == 5
    execute(program)


def test_another_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="eager"):
        pipeline(1, machine=Machine(asynchronous=Lazy()))


def test_without_a_recorder_blocks_are_the_same_as_ever() -> None:
    machine = Machine()
    recording, _ = record(PIPELINE, _buffers(), block=(64, 1, 1), shared=2048, machine=machine)
    assert issued(recording, Unit.TMA_LOAD) == 2
    from pytest_nvfp4.model.recorder import Recorder
    from pytest_nvfp4.sim.run.programs import Programs
    from tests.sim.ptx_case import kernel_text

    programs = Programs()
    text = kernel_text(PIPELINE, buffers=2)
    plain, followed = programs.get(text, "kernel"), programs.get(text, "kernel", monitor=Recorder())
    for program in (plain, followed):
        program.block(0)
    assert not plain.passages
    assert followed.passages
    assert "append" not in plain.block(0).__code__.co_names


def _buffers() -> dict[str, np.ndarray]:
    return {"source": np.arange(128, dtype=np.uint32), "out": np.zeros(32, np.uint32)}
