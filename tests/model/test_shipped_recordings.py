"""Recordings of the shipped kernels, through the strict door: equal to the simulator's counters, and executable."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.simulate import SimulationResult, simulate
from pytest_nvfp4.model import storage
from pytest_nvfp4.model.recording import Recording, Unit
from pytest_nvfp4.problem import parse_shape
from tests.contracts.own import own_cases, own_kernel
from tests.model.recorded_kernels import executed, issued, moved
from tests.model.untimed import execute

pytest.importorskip("cutlass")
pytestmark = pytest.mark.slow

KERNELS = Path(__file__).parents[2] / "kernels"


def recorded(name: str, arch: str, shape: str, folder: Path, **entry: str) -> tuple[SimulationResult, list[Recording]]:
    """Record a shipped kernel."""
    if shape:
        spec, base = KernelSpec.from_files(KERNELS / name, arch=arch, **entry)
        case = JobCase(problem=ProblemSpec.of(parse_shape(shape)), family="gpumode")
    else:
        spec, base = own_kernel(KERNELS / name, "transpose_into", arch=arch)
        case = own_cases(f"{(KERNELS / name).with_name('contract.py')}::CopyTranspose")[0]
    (result,) = simulate(SimDevice(arch=arch), spec, [case], folder=folder, base=base, recording=True)
    assert result.status == "passed", result.findings
    assert result.recording is not None
    assert result.call is not None
    return result, list(storage.loads(result.recording))


@pytest.mark.parametrize(
    ("name", "arch", "shape", "entry"),
    [
        ("nvfp4_group_gemm/steps/map_updates.py", "sm_100a", "96x128x512,128x256x1024", {}),
        ("copy_transpose/sm90.py", "sm_90a", "", {}),
    ],
)
def test_shipped_kernels(name: str, arch: str, shape: str, entry: dict[str, str], tmp_path: Path) -> None:
    result, recordings = recorded(name, arch, shape, tmp_path, **entry)
    assert result.call is not None
    assert [recording.kernel for recording in recordings] == [launch.kernel for launch in result.call.launches]
    for recording, launch in zip(recordings, result.call.launches, strict=True):
        counters = Counter(launch.counters)
        assert recording.refused == ()
        assert recording.ctas_per_sm == launch.ctas_per_sm
        assert executed(recording) == counters["instructions"]
        assert moved(recording) == counters["tma.load.bytes"] + counters["bulk.load.bytes"]
        assert issued(recording, Unit.TENSOR) == counters["mma.instructions"] + counters["wgmma.instructions"]
        assert issued(recording, Unit.COMMIT) == counters["tcgen05.commits"]
        assert issued(recording, Unit.TMEM_LOAD) == counters["tcgen05.ld.instructions"]
        for program in recording.programs:
            execute(program)
            lines = {
                recording.sites[site].source.split(":")[0] for warp in program.warps for site in warp.events["site"]
            }
            assert lines <= {Path(name).name, ""}
