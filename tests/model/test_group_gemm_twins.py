"""The twins of published grouped GEMMs are exact and free of races under GPU MODE's contract."""

from __future__ import annotations

import importlib.util

import pytest

from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.modelled import recordings_of
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.simulate import simulate
from pytest_nvfp4.problem import parse_shape
from tests.model.kernels.group_gemm.versions import VERSIONS, write_version

needs_dsl = pytest.mark.skipif(
    not all(importlib.util.find_spec(package) for package in ("cutlass", "torch")), reason="needs the DSL and torch"
)

SHAPE = "72x128x512,200x384x256"
EIGHT = ",".join(["16x128x256"] * 8)
"""Eight groups, whose 32 tensor maps make more than 4 KiB of parameters."""
FEW = {"v1c": {}, "v2e": {"MOST_CTAS": 2}, "v5e": {"SMS": 4}, "v6b": {"SMS": 4}}
"""Constants with which a CTA has several tiles of the small problem."""


def run(path, folder, shape=SHAPE):
    spec, base = KernelSpec.from_files(path, arch="sm_100a")
    case = JobCase(problem=ProblemSpec.of(parse_shape(shape)), family="gpumode")
    (done,) = simulate(SimDevice(), spec, [case], folder=folder / "jobs", base=base, outputs=True, races=True)
    return done


@needs_dsl
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_is_exact_and_free_of_races(version, tmp_path):
    done = run(write_version(version, tmp_path, FEW[version]), tmp_path, EIGHT if version == "v5e" else SHAPE)
    assert done.status == "passed", done.findings
    assert not done.findings


@needs_dsl
@pytest.mark.slow
def test_an_accumulator_that_is_released_too_early_is_found(tmp_path):
    path = write_version("v2e", tmp_path, FEW["v2e"])
    text = path.read_text()
    assert text.count("if i == SHARED_CHUNKS - 1:") == 1
    path.write_text(text.replace("if i == SHARED_CHUNKS - 1:", "if i == 0:"))
    assert run(path, tmp_path).status == "failed"


@needs_dsl
@pytest.mark.slow
def test_a_host_that_reads_data_is_recorded_with_them(tmp_path):
    path = write_version("v1c", tmp_path, FEW["v1c"])
    line = "    abc_tensors, _, sf_tensors, problem_sizes = data\n"
    text = path.read_text()
    assert text.count(line) == 1
    path.write_text(
        text.replace(line, f"{line}    import torch; (abc_tensors[0][0].view(torch.uint8) + 1).flatten()[5].item()\n")
    )
    spec, base = KernelSpec.from_files(path, arch="sm_100a")
    case = JobCase(problem=ProblemSpec.of(parse_shape("72x128x256")), family="gpumode")
    (done,) = simulate(SimDevice(), spec, [case], folder=tmp_path / "jobs", base=base, recording=True, sampled=True)
    assert done.status == "passed", done.findings
    assert "simulated with data: the host reads " in done.notes[0]
    assert recordings_of(done)[0].notes == done.notes


def test_a_constant_that_a_file_does_not_assign_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"map_parameters\.py assigns NO_SUCH 0 times"):
        write_version("v1c", tmp_path, {"NO_SUCH": 1})
