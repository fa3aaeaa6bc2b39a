"""Counted beside measured: what is equal, what differs, and that an unknown metric is neither."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_nvfp4.device.result import SimulatedCall
from pytest_nvfp4.profile.chip_metrics import chip_metrics
from pytest_nvfp4.profile.counted import Comparison, compare_call, compare_launch, disagreements
from pytest_nvfp4.profile.shared_counters import SHARED_COUNTERS, Chip, chip_of, metrics_of
from tests.profile.launches import KERNEL, counted, measured

TMA = "smsp__sass_inst_executed_op_tma_ld.sum"
FROM_L2 = "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum"


def compared(
    name: str, *, counters: dict[str, int], metrics: dict[str, float | None], chip: Chip = "sm_90"
) -> Comparison:
    """The comparison of one counter."""
    launch = compare_launch(counted(counters), measured(metrics), chip)
    assert launch.because == ""
    return next(one for one in launch.comparisons if one.counter.name == name)


@pytest.mark.parametrize(
    ("value", "verdict", "difference"), [(7.0, "equal", 0), (8.0, "differs", 1), (0.0, "differs", -7)]
)
def test_a_counter_that_is_exact_is_equal_or_differs(value, verdict, difference):
    one = compared("tma.loads", counters={"tma.load.requests": 5, "bulk.load.requests": 2}, metrics={TMA: value})
    assert (one.counted, one.verdict, one.difference) == (7, verdict, difference)


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_an_unknown_metric_is_neither_equal_nor_different(value):
    one = compared("tma.loads", counters={"tma.load.requests": 5}, metrics={TMA: value})
    assert (one.verdict, one.difference, one.ratio) == ("unknown", None, None)
    assert TMA in one.measured.because
    launch = compare_launch(counted({"tma.load.requests": 5}), measured({TMA: value}), "sm_90")
    assert list(disagreements([launch])) == []


def test_a_metric_that_only_the_hardware_has_is_a_difference():
    one = compared("tma.stores", counters={}, metrics={"smsp__sass_inst_executed_op_tma_st.sum": 3.0})
    assert (one.counted, one.verdict) == (0, "differs")


def test_a_sum_with_an_unknown_part_is_unknown():
    name = "shared.loads"
    parts = next(one for one in SHARED_COUNTERS if one.name == name).measured["sm_90"][0]
    counters = {"shared.load.requests": 4, "cluster.load.requests": 2}
    known = dict(zip(parts, (3.0, 1.0, 2.0), strict=True))
    assert compared(name, counters=counters, metrics=known).verdict == "equal"
    for missing in parts:
        less = {key: value for key, value in known.items() if key != missing}
        assert compared(name, counters=counters, metrics=less).verdict == "unknown"


def test_the_second_metric_stands_in_for_the_first():
    metrics = {"sm__inst_executed_pipe_tensor_op_gmma.sum": 16.0}
    one = compared("wgmma", counters={"wgmma.instructions": 4}, metrics=metrics)
    assert (one.verdict, one.metrics) == ("equal", tuple(metrics))
    both = metrics | {"smsp__sass_inst_executed_op_shared_gmma.sum": 12.0}
    assert compared("wgmma", counters={"wgmma.instructions": 4}, metrics=both).verdict == "differs"


def test_sectors_that_the_simulator_did_not_count_are_unknown():
    metrics = {FROM_L2: 320.0}
    assert compared("tma.load_bytes", counters={"tma.load.requests": 1}, metrics=metrics).verdict == "unknown"
    known = {"tma.load.requests": 1, "tma.load.delivered_sectors": 10}
    assert compared("tma.load_bytes", counters=known, metrics=metrics).verdict == "equal"
    more = known | {"bulk.load.requests": 1}
    assert compared("tma.load_bytes", counters=more, metrics=metrics).verdict == "unknown"


def test_barriers_are_an_instance_of_a_metric():
    name = "sass__inst_executed_per_opcode"

    def verdict(text: str | None, counted_: int = 20) -> str:
        texts = {} if text is None else {name: text}
        launch = measured({}).model_copy(update={"texts": texts})
        pairs = compare_launch(counted({"barrier.cta.arrivals": counted_}), launch, "sm_90").comparisons
        return next(one.verdict for one in pairs if one.counter.name == "barriers")

    assert verdict("1,120 (ADD: 1,100; BAR: 20)") == "equal"
    assert verdict("1,120 (ADD: 1,100; BAR: 1,020)", 1020) == "equal"
    assert verdict("120 (ADD: 120)") == "differs"
    assert verdict("120") == verdict(None) == "unknown"


def test_what_counts_something_else_is_never_a_defect():
    one = compared("instructions", counters={"instructions": 100}, metrics={"smsp__inst_executed.sum": 180.0})
    assert (one.verdict, one.ratio) == ("not comparable", 1.8)
    words = {"tcgen05.ld.words": 64}
    reads = "sm__mem_tensor_reads_op_ldt.sum"
    for value, verdict in ((2.0, "proportional"), (0.0, "differs")):
        one = compared("tmem.load_words", counters=words, metrics={reads: value}, chip="sm_100")
        assert one.verdict == verdict


def test_mma_by_kind_and_group():
    counters = {"mma.mxf4nvf4.1cta": 4, "mma.mxf4nvf4.2cta": 2, "mma.i8.1cta": 1, "mma.instructions": 7}
    prefix = "sm__inst_executed_pipe_tensor_subpipe_hmma_op_utchmma_utcqmma_utcomma_scope"
    metrics = {"smsp__sass_inst_executed_op_utcmma.sum": 7.0, f"{prefix}_1cta.sum": 4.0, f"{prefix}_2cta.sum": 4.0}
    for name, verdict in (("mma", "equal"), ("mma.1cta", "equal"), ("mma.2cta", "proportional")):
        assert compared(name, counters=counters, metrics=metrics, chip="sm_100").verdict == verdict


def test_warps_and_ctas_are_those_of_the_grid():
    metrics = {"launch__grid_size": 4.0, "smsp__warps_launched.sum": 12.0}
    assert compared("ctas", counters={}, metrics=metrics).verdict == "equal"
    assert compared("warps", counters={}, metrics=metrics).verdict == "equal"


def test_launches_of_other_extents_and_sums_of_launches_are_not_compared():
    launch = compare_launch(counted({"tma.load.requests": 1}), measured({TMA: 2.0}, grid=(6, 1, 1)), "sm_90")
    assert launch.because == "measured with a grid of 6x1x1, simulated 4x1x1"
    assert launch.comparisons == ()
    assert compare_launch(counted({}), measured({TMA: 2.0}, grid=None), "sm_90").because == ""
    assert "3 launches" in compare_launch(counted({}), measured({TMA: 2.0}, instances=3), "sm_90").because


def test_launches_are_found_by_kernel_and_order():
    other = "kernel_cutlass_dequantise_kernel_0"
    launches = (
        counted({"tma.load.requests": 1}),
        counted({"tma.load.requests": 9}, kernel=other),
        counted({"tma.load.requests": 2}),
    )
    call = SimulatedCall(call=0, case=0, model="NVIDIA H200", sms=132, launches=launches, outputs=())
    first, second = measured({TMA: 1.0}), measured({TMA: 2.0})
    noise = measured({TMA: 5.0}, name="vectorized_elementwise_kernel")
    found = compare_call(call, [noise, first, measured({TMA: 9.0}, name=other), second, first, second], "sm_90")
    assert [one.measured.name for one in found] == [KERNEL, other, KERNEL, KERNEL, KERNEL]
    assert list(disagreements(found)) == []
    (said,) = disagreements(compare_call(call, [second], "sm_90"))
    assert "1 counted, 2 measured" in said
    assert TMA in said


def test_names_with_parameters_and_cut_names_are_the_same_kernel():
    call = SimulatedCall(call=0, case=0, model="m", sms=1, launches=(counted({}),), outputs=())
    for name in (f"{KERNEL}(Params)", KERNEL[:20]):
        assert len(compare_call(call, [measured({}, name=name)], "sm_90")) == 1
    for name in ("kernel", KERNEL + "_1"):
        assert compare_call(call, [measured({}, name=name)], "sm_90") == ()


def test_every_counter_says_what_it_is():
    names = [one.name for one in SHARED_COUNTERS]
    assert len(set(names)) == len(names)
    for one in SHARED_COUNTERS:
        assert one.why, one.name
        assert one.measured, one.name
        for alternatives in one.measured.values():
            assert all(alternatives), one.name
    assert replace(SHARED_COUNTERS[0], seen={}).seen == {}


@pytest.mark.parametrize(("chip", "name"), [("sm_90", "GH100"), ("sm_100", "GB100")])
def test_the_chips_have_the_metrics(chip, name):
    known = chip_metrics(name)
    assert [reason for metric in metrics_of(chip) if (reason := known.lacks(metric)) is not None] == []
    assert known.lacks("smsp__sass_inst_executed_op_nothing.sum")


def test_chips():
    assert (chip_of((9, 0)), chip_of((10, 0)), chip_of((12, 0))) == ("sm_90", "sm_100", None)
    assert not any("utc" in name for name in metrics_of("sm_90"))
    assert "smsp__sass_inst_executed_op_utccp.sum" in metrics_of("sm_100")
    assert not any("gmma" in name or name.startswith("launch__") for name in metrics_of("sm_100"))
    assert len(set(metrics_of("sm_90"))) == len(metrics_of("sm_90"))
