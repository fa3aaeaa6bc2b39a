"""Replays of recordings written by hand: limits that can be calculated, and properties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.model.constants import DeviceConstants, load_device
from pytest_nvfp4.model.recording import Recording, Shape, Unit
from pytest_nvfp4.model.replay import Conditions, ReplayError, replay, replay_sequence

from .builder import ProgramBuilder, footprint, recording
from .main_loop import main_loop

B200 = load_device("b200")
LATENCIES = (
    "tma_issue", "tma_latency", "tma_latency_per_kib", "store_latency", "commit", "tmem_load_latency", "barrier_arrive",
    "barrier_wait", "load_latency", "dram_latency", "cta_start",
)  # fmt: skip


def without_latency(device: DeviceConstants) -> DeviceConstants:
    """Return a device whose units have rates and no latency."""
    zero = device.changed(**dict.fromkeys(LATENCIES, 0.0))
    rows = {key: tuple((n, interval, interval) for n, interval, _ in rows) for key, rows in device.matrix.items()}
    return replace(zero, matrix=rows, matrix_latency=0.0)


def streams(clusters: int, copies: int, *, cold: bool = True, ctas_per_sm: int = 1) -> Recording:
    """Return CTAs that each copy boxes of 128 rows, all different."""
    program = ProgramBuilder()
    warp = program.warp(0, 0, "load")
    box = Shape(rows=128, bytes=128 * 128, ctas=(0,))
    arrived = program.phase(copies)
    for _ in range(copies):
        warp.issue(Unit.TMA_LOAD, box, slot=program.slot(), done=[arrived])
    warp.wait(arrived)
    prints = [footprint(128 * index, 128) for index in range(clusters * copies)]
    slots = np.arange(clusters * copies).reshape(clusters, copies)
    return recording(
        program.build(),
        footprints=prints if cold else (),
        slots=slots if cold else slots * 0 - 1,
        ctas_per_sm=ctas_per_sm,
    )


def test_tensor_core_bound_loops_take_their_intervals():
    device = without_latency(B200).changed(tma_row=1e-3)
    result = replay(main_loop(128, 128, 128, 4, 100), device)
    assert result.kernel_us == pytest.approx(100 * 4 * 64.02 / B200["clock"] / 1e3, rel=2e-3)
    assert result.bound == "tensor core"


def test_a_few_tiles_are_bound_by_latency():
    result = replay(main_loop(128, 128, 128, 4, 1), B200)
    assert result.busy["tensor core"][0] < 0.2
    assert result.bound == "latency"


def test_copy_bound_loops_take_their_rows():
    result = replay(main_loop(128, 128, 128, 4, 400), without_latency(B200).changed(tma_row=3))
    assert result.kernel_us == pytest.approx(400 * 256 * 3 / B200["clock"] / 1e3, rel=1e-2)
    assert result.bound == "TMA load"


def test_first_touches_are_bound_by_dram():
    result = replay(streams(148, 16), without_latency(B200))
    assert result.kernel_us == pytest.approx(148 * 16 * 16384 / 7.2e6, rel=1e-3)
    assert result.bound == "DRAM"
    assert result.busy["DRAM"][0] == pytest.approx(1, rel=1e-3)


def test_a_second_pass_hits_l2_but_for_what_the_first_replaced():
    device = without_latency(B200)
    cold, warm = (replay(streams(148, 4), device, conditions=Conditions(cold_l2=cold)) for cold in (True, False))
    # 9.7 MB went through 126 MB of L2 that is replaced at random: 4 to 8 % of the lines are lost.
    missing = warm.busy["DRAM"][0] * warm.kernel_us / (cold.busy["DRAM"][0] * cold.kernel_us)
    assert 0.03 < missing < 0.08


def test_latency_of_a_ring_is_that_of_its_parts():
    one = replay(main_loop(128, 64, 128, 1, 50), B200)
    two = replay(main_loop(128, 64, 128, 1, 51), B200)
    rate = B200.matrix_rate("f16", False, 1, 128, 64)
    cycles = (
        2 * B200["barrier_wait"] + 2 * B200["tma_issue"] + 192 * B200["tma_row"] + B200["tma_latency"]
        + 8 * B200["tma_latency_per_kib"] + 4 * rate.interval + rate.latency + B200["commit"]
    )  # fmt: skip
    assert (two.kernel_us - one.kernel_us) * 1e3 == pytest.approx(cycles / B200["clock"], rel=0.02)
    assert one.bound == "latency"


@pytest.mark.parametrize("second", [Unit.TMA_LOAD, Unit.GLOBAL_LOAD])
@pytest.mark.parametrize("first", [Unit.TMA_LOAD, Unit.GLOBAL_LOAD])
def test_a_hit_waits_for_lines_that_are_on_their_way(first: Unit, second: Unit):
    def kernel(*units: Unit) -> Recording:
        program = ProgramBuilder()
        for index, unit in enumerate(units):
            arrived = program.phase(1)
            warp = program.warp(0, index, f"reader {index}")
            shape = Shape(rows=8, bytes=1024, ctas=(0,), lanes=32, sectors=32)
            warp.issue(unit, shape, slot=program.slot(), done=[arrived])
            warp.wait(arrived)
            warp.run(alu=1000 * index)
        return recording(program.build(), footprints=[footprint(0, 8)], slots=[[0] * len(units)])

    cold = replay(kernel(first, second), B200)
    warm = replay(kernel(first, second), B200, conditions=Conditions(cold_l2=False))
    assert cold.path[0].role == "reader 1"
    assert (cold.kernel_us - warm.kernel_us) * 1e3 > 0.9 * B200["dram_latency"]
    alone = replay(kernel(first), B200)
    assert cold.busy["DRAM"][0] * cold.kernel_us == pytest.approx(alone.busy["DRAM"][0] * alone.kernel_us)


def test_waves_follow_occupancy():
    single = replay(streams(148, 4, cold=False), B200)
    double = replay(streams(149, 4, cold=False), B200)
    shared = replay(streams(296, 4, cold=False, ctas_per_sm=2), B200)
    assert double.kernel_us == pytest.approx(2 * single.kernel_us, rel=1e-6)
    assert (single.waves, shared.waves) == (1, 1)
    assert single.kernel_us < shared.kernel_us < double.kernel_us
    assert double.tail_us == pytest.approx(single.kernel_us, rel=1e-6)


def test_a_multicast_costs_l2_less_than_two_loads():
    def pair(ctas: tuple[int, ...]) -> Recording:
        program = ProgramBuilder()
        arrived = [program.phase(16 * 2 // (3 - len(ctas))) for _ in range(2)]
        for rank in range(2):
            warp = program.warp(rank, 0, "load")
            for _ in range(16):
                reached = tuple({rank, *ctas})
                warp.issue(
                    Unit.TMA_LOAD,
                    Shape(rows=64, bytes=8192, ctas=reached),
                    slot=program.slot(),
                    done=[arrived[other] for other in reached],
                )
            warp.wait(arrived[rank])
        return recording(
            program.build(), size=2, footprints=[footprint(0, 64)], slots=np.zeros((74, program.slots), int)
        )

    alone, both = replay(pair(()), B200), replay(pair((0, 1)), B200)
    assert both.busy["TMA load"][0] * both.kernel_us == pytest.approx(2 * alone.busy["TMA load"][0] * alone.kernel_us)
    lines = both.busy["L2"][0] * both.kernel_us / (alone.busy["L2"][0] * alone.kernel_us)
    assert lines == pytest.approx(1 + B200["l2_multicast"])
    assert both.busy["DRAM"][0] * both.kernel_us == pytest.approx(alone.busy["DRAM"][0] * alone.kernel_us)


def test_the_path_adds_up_to_the_kernel():
    for result in (
        replay(main_loop(128, 128, 128, 3, 40, clusters=300), B200),
        replay(streams(300, 5, ctas_per_sm=2), B200),
    ):
        assert sum(segment.us for segment in result.path) == pytest.approx(result.kernel_us, rel=1e-9)
        assert all(segment.us > 0 for segment in result.path)


def test_the_path_names_the_line_that_limits():
    slow = replay(main_loop(128, 128, 128, 4, 100), B200.changed(tma_row=10.0))
    assert (slow.path[0].role, slow.path[0].waits_for) == ("load", "TMA rows")
    assert slow.path[0].site.startswith("loop.py:load")
    heavy = replay(main_loop(128, 256, 128, 8, 100), B200.changed(tma_row=0.1))
    assert (heavy.path[0].role, heavy.path[0].site, heavy.path[0].waits_for) == ("mma", "loop.py:mma", "MMA")


def test_a_missing_signal_is_a_deadlock_with_its_line():
    good = main_loop(128, 128, 128, 2, 4)
    program = good.programs[0]
    phases = program.phases.copy()
    phases[1] += 1  # the second tile's barrier waits for one arrival more than there is
    stuck = replace(good, programs=(replace(program, phases=phases),))
    with pytest.raises(ReplayError, match=r"mma at loop\.py:wait full"):
        replay(stuck, B200)


def test_a_refused_recording_has_no_time():
    with pytest.raises(ReplayError, match="work counter"):
        replay(replace(main_loop(128, 128, 128, 2, 4), refused=("a work counter decides",)), B200)


def test_dependent_launches_overlap():
    def kernel(early: bool) -> Recording:
        program = ProgramBuilder()
        warp = program.warp(0, 0, "main")
        arrived = program.phase(1)
        if early:
            warp.issue(Unit.LAUNCH_DEPENDENTS, Shape())
        warp.run(alu=2000)
        warp.issue(Unit.GRID_WAIT, Shape())
        warp.issue(Unit.TMA_LOAD, Shape(rows=128, bytes=16384, ctas=(0,)), done=[arrived])
        warp.wait(arrived)
        return recording(program.build(), clusters=20, dependent=True)

    stream = replay_sequence([kernel(True)] * 2, B200)
    dependent = replay_sequence([kernel(True)] * 2, B200, conditions=Conditions(launch="dependent"))
    assert sum(item.total_us for item in dependent) < sum(item.total_us for item in stream) - 1
    assert stream[1].launch_us == pytest.approx(B200["launch"] / 1e3)


def test_a_warps_instructions_share_a_scheduler():
    def kernel(warps: int) -> Recording:
        program = ProgramBuilder()
        for index in range(warps):
            program.warp(0, index, "alu").run(alu=10_000)
        return recording(program.build())

    one, four, many = (replay(kernel(warps), B200.changed(cta_start=0)).kernel_us for warps in (1, 4, 64))
    assert one == four == pytest.approx(10_000 * B200["alu"] / B200["clock"] / 1e3)
    assert many == pytest.approx(16 * 10_000 / B200["clock"] / 1e3)


@pytest.mark.slow
@settings(max_examples=15)
@given(
    st.integers(1, 4), st.integers(1, 12), st.integers(1, 5), st.sampled_from([32, 64, 128]), st.sampled_from([1, 200])
)
def test_replays_are_deterministic_and_conserve_work(stages: int, steps: int, n: int, row: int, clusters: int):
    made = main_loop(128, 16 * n, row, stages, steps, clusters=clusters)
    first, second = replay(made, B200), replay(made, B200)
    assert first == second
    assert all(0 < mean <= most <= 1 + 1e-9 for most, mean in first.busy.values())
    assert first.kernel_us >= steps * 128 * B200["tma_row"] / B200["clock"] / 1e3


@settings(max_examples=30)
@given(st.sampled_from(["tma_row", "tma_latency", "barrier_wait", "commit", "tma_issue"]), st.floats(1.01, 3))
def test_one_producer_and_one_consumer_are_never_faster_on_slower_units(name: str, factor: float):
    # One CTA alone: its servers have one user each, so that every time is a maximum and sum of the constants.
    made = main_loop(128, 64, 64, 3, 20)
    slower = B200.changed(**{name: B200[name] * factor + 1})
    assert replay(made, slower).kernel_us >= replay(made, B200).kernel_us
