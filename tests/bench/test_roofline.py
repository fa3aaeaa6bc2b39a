"""Floors against numbers that others published, hand counts, and times that cannot be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.bench.peaks import known_gpus, peaks_of
from pytest_nvfp4.bench.roofline import (
    IMPOSSIBLE,
    NoRoofline,
    Roofline,
    columns,
    percentile,
    physics_violation,
    roofline,
    work_of,
)
from pytest_nvfp4.device.result import DeviceInfo
from pytest_nvfp4.problem import GPUMODE_BENCH, Group, Problem, parse_shape
from tests.bench.helpers import B200, H200, UNKNOWN, measurement


def device(name):
    return DeviceInfo(name=name, capability=(9, 0))


# GPU MODE's page gives these for a memory rate of 7.68 TB/s.
SPEED_OF_LIGHT_US = (18.833, 10.667, 2.406, 1.525)


@pytest.mark.parametrize(("problem", "published"), list(zip(GPUMODE_BENCH, SPEED_OF_LIGHT_US, strict=True)))
def test_bytes_are_those_of_the_published_speed_of_light(problem, published):
    assert work_of(problem).bytes / 7.68e12 * 1e6 == pytest.approx(published, abs=5e-4)


def test_work_of_one_group_by_hand():
    # 3 x 128 outputs of 256 products: A 3*128 bytes and 3*16 scales, B 128*128 bytes and 128*16 scales.
    work = work_of(parse_shape("3x128x256"))
    assert work.flops == 2 * 3 * 128 * 256
    assert work.read_bytes == 3 * 128 + 3 * 16 + 128 * 128 + 128 * 16
    assert work.written_bytes == 3 * 128 * 2


def test_padding_of_scale_tiles_does_not_count():
    # A tile of scale factors holds 128 rows; one row more needs one row more, not a tile.
    one, two = work_of(parse_shape("128x128x256")), work_of(parse_shape("129x128x256"))
    assert two.read_bytes - one.read_bytes == 128 + 16


def test_a_group_without_rows_needs_nothing():
    empty = Problem("empty", (Group(0, 128, 256), Group(8, 128, 256)))
    assert work_of(empty) == work_of(parse_shape("8x128x256"))


def test_batches_count():
    assert work_of(parse_shape("8x128x256x3")).bytes == 3 * work_of(parse_shape("8x128x256")).bytes


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA GH200 480GB", "GH200 96 GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200 144 GB"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB300", "GB300"),
    ],
)
def test_names_of_the_driver(name, gpu):
    peaks = peaks_of(name)
    assert peaks is not None
    assert peaks.gpu == gpu
    assert gpu in known_gpus()


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 5090", "", "NVIDIA H200 MIG 1g.18gb"])
def test_other_devices_have_no_floor_and_say_so(name):
    line = roofline(GPUMODE_BENCH[0], device(name))
    assert isinstance(line, NoRoofline)
    assert "not listed" in str(line)
    assert repr(name) in str(line)
    assert columns(measurement([1.0]), GPUMODE_BENCH[0], device(name)).percent is None
    assert physics_violation(measurement([1e-3]), GPUMODE_BENCH[0], device(name)) is None


def test_every_rate_has_a_source():
    for gpu in ("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200", "NVIDIA B200", "NVIDIA GB300"):
        peaks = peaks_of(gpu)
        assert peaks is not None
        for rate in (peaks.math, peaks.fastest, peaks.memory):
            assert "datasheet" in rate.source


def test_which_term_binds():
    on_h200, on_b200 = roofline(GPUMODE_BENCH[0], H200), roofline(GPUMODE_BENCH[0], B200)
    assert isinstance(on_h200, Roofline)
    assert isinstance(on_b200, Roofline)
    assert (on_h200.term, on_b200.term) == ("compute", "memory")
    assert on_b200.floor_us == pytest.approx(18.833 * 7.68 / 8.0, rel=1e-3)
    assert "bound by memory" in str(on_b200)
    assert "datasheet" in str(on_b200)


def test_a_simulator_and_an_unknown_device_have_no_floor():
    simulated = H200.model_copy(update={"simulated": True})
    assert "simulator" in str(roofline(GPUMODE_BENCH[0], simulated))
    assert isinstance(roofline(GPUMODE_BENCH[0], None), NoRoofline)


@given(st.sampled_from(GPUMODE_BENCH), st.sampled_from([H200, B200]), st.sampled_from(["cold", "warm"]))
def test_the_hard_floor_is_never_above_the_floor(problem, gpu, l2):
    line = roofline(problem, gpu, l2=l2)
    assert isinstance(line, Roofline)
    assert 0 < line.hard_us <= line.floor_us


def test_a_warm_cache_holds_what_fits():
    problem = GPUMODE_BENCH[0]
    cold, warm = (roofline(problem, B200, l2=l2) for l2 in ("cold", "warm"))
    assert isinstance(cold, Roofline)
    assert isinstance(warm, Roofline)
    left = work_of(problem).read_bytes - B200.l2_bytes
    assert warm.hard_us == pytest.approx(max(left / 8e12, work_of(problem).flops / 9e15) * 1e6)
    assert warm.hard_us < cold.hard_us
    unsized = roofline(problem, B200.model_copy(update={"l2_bytes": None}), l2="warm")
    assert isinstance(unsized, Roofline)
    assert unsized.hard_term == "compute"


@pytest.mark.parametrize("gpu", [H200, B200])
@pytest.mark.parametrize("problem", GPUMODE_BENCH)
def test_physics_just_above_and_just_below(problem, gpu):
    line = roofline(problem, gpu)
    assert isinstance(line, Roofline)
    at = IMPOSSIBLE * line.hard_us
    assert physics_violation(measurement([at * 1.001] * 9), problem, gpu) is None
    message = physics_violation(measurement([at * 0.999] * 9), problem, gpu)
    assert message is not None
    assert problem.name in message
    assert f"{line.hard_us:.2f} us" in message
    assert "cannot be true" in message


def test_published_results_are_not_accused():
    """The best entries of the leaderboard, and cuBLAS on an H200, break no law."""
    for problem, us in zip(GPUMODE_BENCH, (27.9, 19.4, 8.48, 6.43), strict=True):
        assert physics_violation(measurement([us]), problem, B200) is None
    for problem, us in zip(GPUMODE_BENCH, (190, 100, 37.3, 21.5), strict=True):
        assert physics_violation(measurement([us]), problem, H200) is None


def test_the_median_is_held_against_the_floor_not_the_best_round():
    problem = GPUMODE_BENCH[0]
    assert physics_violation(measurement([1.0, 30.0, 30.0]), problem, B200) is None
    assert physics_violation(measurement([1.0, 1.0, 400.0]), problem, B200) is not None


def test_columns():
    problem = parse_shape("128x128x256")
    found = columns(measurement([8.0, 10.0, 12.0], host_us=(50.0, 70.0)), problem, H200)
    assert (found.us, found.host_us) == (10.0, 60.0)
    assert found.p10_us == pytest.approx(8.4)
    assert found.p90_us == pytest.approx(11.6)
    assert found.tflops == pytest.approx(2 * 128 * 128 * 256 / 10e-6 / 1e12)
    assert found.gbps == pytest.approx(work_of(problem).bytes / 10e-6 / 1e9)
    line = roofline(problem, H200)
    assert isinstance(line, Roofline)
    assert found.percent == pytest.approx(100 * line.floor_us / 10.0)


@pytest.mark.parametrize("times", [[], [0.0]])
def test_columns_of_no_time(times):
    with pytest.raises(ValueError, match=r"rounds|positive and finite"):
        columns(measurement(times), GPUMODE_BENCH[0], UNKNOWN)


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_percentile_agrees_with_numpy(values, share):
    import numpy as np

    assert percentile(tuple(values), share) == pytest.approx(float(np.quantile(values, share)), rel=1e-9)


def test_percentile_of_nothing():
    with pytest.raises(ValueError, match="no values"):
        percentile((), 0.5)
