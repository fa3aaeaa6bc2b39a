"""Calibrating a modelled device returns its constants: the fits and the replayer mean the same by each."""

import pytest

from pytest_nvfp4.model.calibrate.benchmark import Benchmark
from pytest_nvfp4.model.calibrate.estimates import Measurements
from pytest_nvfp4.model.calibrate.fits import Fitted, fit
from pytest_nvfp4.model.calibrate.readings import Reading, by_name
from pytest_nvfp4.model.constants import DeviceConstants, shipped_device
from pytest_nvfp4.model.recorder import Recorder
from pytest_nvfp4.model.replay import Conditions, replay
from tests.model.calibrate.readings_of import BLACKWELL, HOPPER, operations
from tests.model.calibrate.simulated import benchmarks, launch, machine

CLOSED = {
    "sm_90a": {
        "tma_issue": 0.2, "tma_row": 0.01, "tma_latency": 0.05, "store_rate": 0.01, "store_latency": 0.1,
        "remote_latency": 0.05, "fence": 0.01, "fence_near": 0.05, "map_change": 0.05, "map_acquire": 0.1,
        "map_acquire_changed": 0.05, "load_rate": 0.02, "shared_port": 0.01,
    },
    "sm_100a": {"tmem_column": 0.01, "tmem_load_latency": 0.05, "tmem_copy": 0.1},
}  # fmt: skip
"""Relative difference of a constant that the fits return from the one that was replayed: what loops take besides."""
LARGE = {
    "alu": 2.0, "fma": 2.0, "special": 8.0, "convert": 2.0, "barrier_arrive": 20.0, "barrier_wait": 30.0,
    "tma_issue": 6.5, "tma_row": 2.65, "tma_latency": 433.0, "store_latency": 130.0, "fence_near": 50.0,
    "tmem_copy": 64.0,
}  # fmt: skip
"""Constants of a device whose units take long against the instructions of a loop.

On an H200's own they take up to 20 cycles of a latency, and 0.03 of a row. The shipped guess of ``tmem_copy`` is faster
than a thread issues copies.
"""


def calibrated(arch: str, device: DeviceConstants) -> Fitted:
    """The fits of modelled readings."""
    gpu = HOPPER if arch == "sm_90a" else BLACKWELL
    chosen = {name: item for name, item in benchmarks(arch).items() if name.startswith(PREFIXES[arch])}
    readings = [reading(item, arch, device, point) for item in chosen.values() for point in range(len(item.points))]
    counts = {name: operations(item) for name, item in chosen.items()}
    return fit(gpu, machine(arch), Measurements(by_name(readings), counts))


PREFIXES = {
    "sm_90a": ("tma.", "store.", "mbarrier.", "fence.", "map.", "global.load", "shared.load"),
    "sm_100a": ("tmem.",),
}


def reading(benchmark: Benchmark, arch: str, device: DeviceConstants, point: int) -> Reading:
    """The modelled reading of a launch."""
    recorder = Recorder()
    launch(benchmark, arch, point=point, recorder=recorder)
    (recording,) = recorder.recordings()
    ns = replay(recording, device, conditions=Conditions(cold_l2=False)).kernel_us * 1e3
    return Reading(
        benchmark=benchmark.name, point=point, cycles=(ns * device["clock"],), ns=(ns,),
        operations=(operations(benchmark)[point],),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "name"), [("sm_90a", "h200"), ("sm_100a", "b200")])
def test_calibrating_a_modelled_device_returns_its_constants(arch: str, name: str) -> None:
    device = shipped_device(name).changed(**LARGE)
    found = calibrated(arch, device)
    off = {
        constant: (found.constants[constant].value if constant in found.constants else None, device[constant])
        for constant, allowed in CLOSED[arch].items()
        if constant not in found.constants or abs(found.constants[constant].value / device[constant] - 1) > allowed
    }
    assert not off
    if arch == "sm_90a":
        both = found.constants["barrier_arrive"].value + found.constants["barrier_wait"].value
        assert both == pytest.approx(device["barrier_arrive"] + device["barrier_wait"], rel=0.1)
