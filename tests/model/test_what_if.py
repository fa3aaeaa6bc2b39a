"""What-if answers equal replays of what they stand for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_nvfp4.cli.model import page
from pytest_nvfp4.model import what_if as what_if_module
from pytest_nvfp4.model.constants import load_device
from pytest_nvfp4.model.recording import EVENT, OPERATION, Does, Recording, Shape, Unit
from pytest_nvfp4.model.replay import Conditions, replay, replay_sequence
from pytest_nvfp4.model.sample import Samples, events_of
from pytest_nvfp4.model.what_if import one_more_stage, what_if

from .builder import ProgramBuilder, recording
from .main_loop import main_loop

B200 = load_device("b200")


def answers(made: Recording, conditions: Conditions = Conditions()) -> dict[str, float]:  # noqa: B008
    base = replay(made, B200, conditions=conditions)
    found = what_if(made, B200, base, conditions=conditions)
    return {answer.name: answer.replay.kernel_us for answer in found if answer.replay is not None}


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_one_more_stage_is_the_loop_with_one_more_stage(stages: int):
    assert answers(main_loop(128, 128, 128, stages, 40))["stage"] == pytest.approx(
        replay(main_loop(128, 128, 128, stages + 1, 40), B200).kernel_us, rel=1e-9
    )


def test_the_gap_between_launches_is_no_part_of_the_kernels_time():
    made = main_loop(128, 128, 128, 2, 40)
    base = replay(made, B200)
    (launch,) = (answer for answer in what_if(made, B200, base) if answer.name == "launch")
    assert launch.kernel_change == pytest.approx(0, abs=1e-9)
    assert launch.change == pytest.approx(-base.launch_us / base.total_us, rel=1e-6)
    (stage,) = (answer for answer in what_if(made, B200, base) if answer.name == "stage")
    assert stage.kernel_change < stage.change < 0


@pytest.mark.parametrize("dependent", [True, False])
def test_a_dependent_launch_that_is_the_whole_call_overlaps_with_one_like_it(dependent: bool):
    program = ProgramBuilder()
    warp, arrived = program.warp(0, 0, "main"), program.phase(1)
    warp.issue(Unit.LAUNCH_DEPENDENTS, Shape())
    warp.run(alu=2000)
    warp.issue(Unit.GRID_WAIT, Shape())
    warp.issue(Unit.TMA_LOAD, Shape(rows=128, bytes=16384, ctas=(0,)), done=[arrived])
    warp.wait(arrived)
    made = recording(program.build(), clusters=20, dependent=dependent)
    base = replay(made, B200)

    def saved(whole_call: bool) -> float:
        found = what_if(made, B200, base, whole_call=whole_call)
        (answer,) = (answer for answer in found if answer.name == "dependent")
        assert ("right behind" in answer.provided) == (whole_call and dependent)
        assert answer.kernel_change == pytest.approx(0, abs=1e-9)
        return -answer.change * base.total_us

    gap = (B200["launch"] - B200["launch_dependent"]) / 1e3
    assert saved(False) == pytest.approx(gap)
    if dependent:
        (*_, behind) = replay_sequence([made] * 2, B200, conditions=Conditions(launch="dependent"))
        assert saved(True) == pytest.approx(base.total_us - behind.total_us)
        assert saved(True) > gap + 0.5, "the 2000 instructions before the wait"
    else:
        assert saved(True) == pytest.approx(gap)


@pytest.mark.slow
def test_a_large_launch_is_asked_by_a_sample(monkeypatch: pytest.MonkeyPatch):
    made = main_loop(128, 64, 128, 2, 30, cold=True, clusters=592)
    base = replay(made, B200)
    whole = {answer.name: answer.change for answer in what_if(made, B200, base)}
    monkeypatch.setattr(what_if_module, "MOST_EVENTS", events_of(made) // 5)
    some = what_if(made, B200, base)
    assert all(any("clusters, each for" in note for note in answer.replay.notes) for answer in some)
    assert {answer.name: answer.change for answer in some} == pytest.approx(whole, abs=0.03)
    assert min(whole.values()) < -0.1
    # Replays that share what the accesses miss are those that count it themselves.
    shared = Samples()
    for dram in (7.2, 2.0):
        under = Conditions(dram_tb_s=dram)
        alone = replay(made, B200, conditions=under, most_events=1000)
        assert replay(made, B200, conditions=under, samples=shared, most_events=1000) == alone


def test_without_a_ring_there_is_no_further_stage():
    program = ProgramBuilder()
    warp = program.warp(0, 0, "load")
    for _ in range(3):  # each copy is waited for by the warp that issues it: nothing to relax
        arrived = program.phase(1)
        warp.issue(Unit.TMA_LOAD, Shape(rows=8, bytes=1024, ctas=(0,)), done=[arrived])
        warp.wait(arrived)
    assert one_more_stage(program.build()) is None


@pytest.mark.slow
def test_dram_and_l2_matter_where_dram_does():
    cold = main_loop(128, 64, 128, 4, 60, cold=True, clusters=148)
    base = replay(cold, B200).kernel_us
    found = answers(cold)
    assert found["l2"] < found["dram"] <= base
    warm = main_loop(128, 64, 128, 4, 60)
    assert answers(warm)["dram"] == replay(warm, B200).kernel_us


def test_tensor_maps_cost_what_is_gained_without_them():
    def kernel(maps: bool) -> Recording:
        program = ProgramBuilder()
        warp = program.warp(0, 0, "load")
        if maps:
            for unit in (Unit.MAP_CHANGE, Unit.MAP_ACQUIRE):
                changed = program.phase(1)
                warp.issue(unit, Shape(kind="copy"), done=[changed])
                warp.wait(changed)
        arrived = program.phase(1)
        warp.issue(Unit.TMA_LOAD, Shape(rows=8, bytes=1024, ctas=(0,)), done=[arrived])
        warp.wait(arrived)
        return recording(program.build())

    assert "maps" not in answers(kernel(False))
    assert answers(kernel(True))["maps"] == pytest.approx(replay(kernel(False), B200).kernel_us, rel=1e-9)
    assert replay(kernel(True), B200).kernel_us > replay(kernel(False), B200).kernel_us + 0.1


@pytest.mark.slow
def test_launches_and_occupancy():
    made = main_loop(128, 64, 128, 2, 20, clusters=296)
    base = replay(made, B200)
    found = {answer.name: answer.replay for answer in what_if(made, B200, base) if answer.replay is not None}
    assert found["launch"].total_us == pytest.approx(base.kernel_us)
    assert found["occupancy"].kernel_us < base.kernel_us
    assert found["occupancy"].waves == 1
    assert "occupancy" not in answers(main_loop(128, 64, 128, 2, 20, clusters=148))


def allocating(columns: int) -> Recording:
    """Return a loop with more clusters than SMs, whose CTAs allocate columns of tensor memory."""
    made = main_loop(128, 64, 128, 2, 20, clusters=296)
    (program,) = made.programs
    shape = len(program.shapes)
    allocates = np.array([(Unit.TMEM_ALLOCATE, shape, -1, -1, -1, -1)], OPERATION)
    event = np.array([(Does.ISSUE, 1, 0, len(program.operations))], EVENT)
    first = replace(program.warps[0], events=np.concatenate([event, program.warps[0].events]))
    changed = replace(
        program,
        warps=(first, *program.warps[1:]),
        operations=np.concatenate([program.operations, allocates]),
        shapes=(*program.shapes, Shape(columns=columns)),
    )
    return replace(made, programs=(changed,))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (
            replace(allocating(0), shared_bytes=120_000),
            "2 CTAs need 242048 bytes of shared memory, and an SM has 233472",
        ),
        (allocating(512), "2 CTAs need 1024 columns of tensor memory, and an SM has 512"),
        (replace(allocating(0), block=(1056, 1, 1)), "2 CTAs need 2112 threads, and an SM has 2048"),
    ],
)
def test_two_ctas_that_do_not_fit_are_refused_with_the_reason(made: Recording, reason: str) -> None:
    (refused,) = (answer for answer in what_if(made, B200, replay(made, B200)) if answer.name == "occupancy")
    assert (refused.replay, refused.refused, refused.change) == (None, reason, 0.0)
    table = page._answers([page.Answer(refused.question, None, refused.refused)], 1.0)
    assert reason in str(table.rows[0][0])


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "most"), [(64, None), (128, None), (256, 128), (384, 80), (1024, 32)])
def test_two_ctas_that_fit_are_provided_with_their_registers(threads: int, most: int | None) -> None:
    made = replace(allocating(256), shared_bytes=115_000, block=(threads, 1, 1))
    (answer,) = (answer for answer in what_if(made, B200, replay(made, B200)) if answer.name == "occupancy")
    assert answer.replay is not None
    assert answer.provided == ("" if most is None else f"if a thread has at most {most} registers")
