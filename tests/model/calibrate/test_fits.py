"""Fits return the constants of a GPU whose laws are known, and refuse what is uncertain; tables are read back."""

import tomllib

import numpy as np
import pytest

from pytest_nvfp4.model.calibrate.estimates import Estimate, NotMeasuredError, robust, two_levels
from pytest_nvfp4.model.calibrate.fits import Fitted, fit
from pytest_nvfp4.model.calibrate.readings import Gpu
from pytest_nvfp4.model.calibrate.table import identify, table_text
from pytest_nvfp4.model.constants import UNITS, read_device, shipped_device
from tests.model.calibrate.readings_of import (
    BARRIER,
    BLACKWELL,
    HOPPER,
    ISSUE,
    KIB,
    LATENCY,
    ROW,
    Truth,
    known_gpu,
)

WANT = {
    "sms": 132, "clusters_of_2": 66, "clusters_of_4": 31, "clusters_of_8": 15, "l2_capacity": 60.0, "tma_row": ROW,
    "tma_issue": ISSUE, "tma_latency": LATENCY, "tma_latency_per_kib": KIB, "store_rate": 20.0,
    "store_latency": 700.0, "barrier_arrive": BARRIER, "barrier_wait": BARRIER, "remote_latency": 180.0,
    "shared_port": 128.0, "load_rate": 64.0, "shared_load": 30.0, "map_change": 300.0, "map_acquire": 30.0,
    "map_acquire_changed": 360.0, "fence": 600.0, "fence_near": 30.0,
    "l2_read": 8.0, "l2_write": 5.0, "dram": 4.0, "clock": 2.0, "l2_clock": 2.0,
    "load_latency": 330.0, "dram_latency": 225.0, "cta_start": 310.0, "launch": 2500 - 400 - 310,
    "l2_shared": 2.0, "dram_written": 1.25, "launch_alone": 2900, "alu": 2.5, "fma": 3.0, "special": 13.0,
    "convert": 3.5, "launch_dependent": 1700 - 710, "launch_graph": 1300 - 710,
}  # fmt: skip


def fitted(gpu: Gpu, made: Truth, **more: tuple[str, ...]) -> Fitted:
    return fit(gpu, gpu.machine(), made.measured(gpu.machine(), **more))


def test_the_constants_of_a_known_gpu_are_found() -> None:
    found = fitted(HOPPER, known_gpu())
    assert {name: found.constants[name].value for name in WANT} == pytest.approx(WANT)
    assert not found.missing
    unmeasured = {"commit", "l2_multicast", "l2_clock_exponent", "clusters_of_16"}
    unmeasured |= {"shared_store", "branch", "move", "other"}
    tensor_memory = {"tmem_copy", "tmem_load_latency", "tmem_column", "tmem_allocate"}
    assert set(UNITS) - set(found.constants) == unmeasured | tensor_memory
    assert ("f16", "ts", 1, 64, 256, 128.0, 158.0) in found.matrix
    observed = {item.what: item.estimate.value for item in found.observed}
    assert observed["alu instruction that needs the one before it"] == 4.0
    assert (observed["load from the near part of L2"], observed["load from the far part of L2"]) == (250, 410)


def test_tensor_memory_and_pairs_of_a_known_gpu_are_found() -> None:
    found = fitted(BLACKWELL, known_gpu())
    want = {"tmem_column": 1.25, "tmem_load_latency": 40.0, "tmem_allocate": 180.0, "tmem_copy": 128.0}
    assert {name: found.constants[name].value for name in want} == pytest.approx(want)
    assert ("mxf4nvf4", "ss", 2, 256, 128, 64.0, 94.0) in found.matrix


def test_noise_widens_the_spread_and_moves_no_constant_by_more() -> None:
    found = fitted(HOPPER, known_gpu(noise=0.002))
    assert 0 < found.constants["tma_row"].spread < 0.05
    for name in ("tma_row", "shared_port", "shared_load", "l2_read", "dram"):
        estimate = found.constants[name]
        assert estimate.value == pytest.approx(WANT[name], rel=4 * estimate.spread + 1e-3)


def test_constants_that_vary_are_not_measured() -> None:
    found = fitted(HOPPER, known_gpu(noise=0.6))
    assert "varies by" in found.missing["tma_row"] or "would be" in found.missing["tma_row"]
    assert {"tma_latency_per_kib", "tma_row"} & set(found.constants) == set()
    assert len(found.missing) > 20
    assert found.constants["sms"].value == 132


def test_a_benchmark_without_readings_leaves_its_constants_unmeasured() -> None:
    found = fitted(HOPPER, known_gpu(), without=("mbarrier.arrive", "l2.read"))
    assert found.missing["l2_read"] == "benchmark l2.read has no two sizes"
    assert "mbarrier.arrive" in found.missing["barrier_wait"]
    assert found.missing["remote_latency"] == "barrier_arrive was not measured"
    assert "tma_row" in found.constants


def test_a_difference_below_zero_is_no_constant() -> None:
    made = known_gpu()
    made.per["map.load.changed"] = 200.0
    found = fitted(HOPPER, made)
    assert "would be -870" in found.missing["map_acquire_changed"]


def test_one_slow_repeat_moves_no_estimate() -> None:
    assert robust([10, 10, 10, 10, 10, 10, 900], "x") == Estimate(10.0, 0.0, ("x",))


def test_estimates_carry_their_spread() -> None:
    difference = Estimate(100.0, 0.03, ("a",)) - Estimate(90.0, 0.04, ("b",))
    assert (difference.value, difference.benchmarks) == (10.0, ("a", "b"))
    assert difference.absolute == pytest.approx(np.hypot(3.0, 3.6))
    with pytest.raises(NotMeasuredError, match="varies by 47%"):
        difference.checked("x")


def test_one_group_of_latencies_has_no_two_levels() -> None:
    random = np.random.default_rng(0)
    assert two_levels(list(300 + 10 * random.standard_normal(1000))) is None
    assert two_levels([300.0] * 1000) is None
    assert two_levels([300.0] * 995 + [900.0] * 5) is None
    low, high = two_levels([*(250 + 3 * random.standard_normal(500)), *(400 + 3 * random.standard_normal(400))]) or (
        0,
        0,
    )
    assert (low, high) == pytest.approx((250, 400), abs=2)


def test_a_table_holds_what_was_measured_and_the_rest_as_shipped() -> None:
    found = fitted(HOPPER, known_gpu())
    text = table_text(found, HOPPER, date="2026-01-02")
    device, base = read_device(text, "x.toml"), shipped_device("h200")
    assert (device.name, device.arch) == ("h200", base.arch)
    for name in UNITS:
        constant = device.constants[name]
        if name in found.constants:
            assert (constant.mark, constant.device) == ("measured_here", "NVIDIA H200")
            assert constant.value == pytest.approx(found.constants[name].value, rel=1e-5)  # of six digits
            assert "2026-01-02, driver 580.1" in constant.source
        else:
            assert constant == base.constants[name]
    assert device.matrix["f16", "ts", 1, 64][-1] == (256, 128.0, 158.0)
    assert (device.matrix_mark, device.matrix_tile, device.matrix_latency) == ("measured_here", 128, 30.0)
    assert device.digest != base.digest
    assert device.observed["load from the far part of L2"].value == 410
    assert set(tomllib.loads(text)) == {"format", "name", "title", "arch", "version", "constant", "matrix", "observed"}


def test_matrix_shapes_that_were_not_measured_stay_as_shipped() -> None:
    device, base = (
        read_device(table_text(fitted(BLACKWELL, known_gpu()), BLACKWELL, date="2026-01-02"), "x"),
        shipped_device("b200"),
    )
    key = ("mxf4nvf4", "ss", 1, 128)
    rows = {row[0]: row for row in device.matrix[key]}
    assert rows[256] == (256, 128.0, 158.0)
    assert rows[96] == {row[0]: row for row in base.matrix[key]}[96]
    assert base.matrix_source in device.matrix_source
    assert "18 shapes" in device.matrix_source


def test_a_gpu_without_a_shipped_table_has_the_constants_of_a_relative() -> None:
    gpu = HOPPER.model_copy(update={"name": 'NVIDIA H20 "x"\t96GB'})
    assert (identify(gpu).name, identify(gpu).base) == ("h20-x-96gb", "h200")
    device = read_device(table_text(fitted(gpu, known_gpu(), without=("atomic",)), gpu, date="2026-01-02"), "x")
    assert device.name == "h20-x-96gb"
    assert device.constants["sms"].mark == "measured_here"
    assert device.constants["atomic_latency"].mark in ("sibling", "guessed")
    assert device.constants["shared_load"].device == gpu.name


@pytest.mark.parametrize(
    ("name", "capability", "device"),
    [("NVIDIA B200", (10, 0), "b200"), ("NVIDIA GB200", (10, 0), "b200"), ("NVIDIA B300 SXM6 AC", (10, 3), "b300"),
     ("NVIDIA H100 80GB HBM3", (9, 0), "h100"), ("NVIDIA GH200 480GB", (9, 0), "h200")],
)  # fmt: skip
def test_gpus_are_told_apart(name: str, capability: tuple[int, int], device: str) -> None:
    assert identify(HOPPER.model_copy(update={"name": name, "capability": capability})).name == device
