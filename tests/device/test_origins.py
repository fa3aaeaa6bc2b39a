"""Kernels that get the right C in every way, run in the simulator: only launched kernels may compute it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from pytest_nvfp4.device import rotation
from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.verdict import CaseVerdict
from pytest_nvfp4.device.verify import Verifier
from pytest_nvfp4.problem import parse_shape

pytest.importorskip("cutlass")
pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parent / "kernels" / "origins.py"
WAYS = SOURCE.read_text().partition("WAYS = [")[2].partition("]")[0].replace("*(", "").replace(")", "").split(",")
NAMES = [name.strip() for name in WAYS if name.strip()]
HONEST = {name: "C by 1 kernel" for name in NAMES if name.startswith("honest")} | dict.fromkeys(
    ("honest_split", "honest_second_kernel"), "C by 2 kernels"
)
RED = {
    "host_copy": "written by a copy from the host: torch's copy_",
    "host_memcpy": "written by a copy from the host: cudaMemcpy",
    "host_moved": "multiply-adds of the 20,480 that the problem needs",
    "host_moved_busily": "then the launch of move at * and cuMemcpyHtoD at *; the same requests give a wrong C",
    "host_in_a_thread": "then the launch of move at * and cuMemcpyHtoD at *; the same requests give a wrong C",
    "host_fills": "0 multiply-adds of the 26,624 that the problem needs*C was written by torch's fill_",
    "host_parameter": "torch's _local_scalar_dense at *, then the launch of gemm",
    "host_error": "torch's index at *, then the launch of gemm",
    "by_mm": "descends from torch's mm",
    "by_mm_moved_busily": "descends from torch's mm",
    "published": "of 576 outputs wrong",
}
"""A part of a finding of each dishonest way, with ``*`` for any text."""


def case(name: str) -> JobCase:
    shape = parse_shape(f"{1 + NAMES.index(name)}x32x64", name=name)
    return JobCase(problem=ProblemSpec.of(shape), family="gpumode")


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    known = rotation.set_inputs(case("published"), 0).groups[0].exact().rounded().tobytes().hex()
    path = tmp_path_factory.mktemp("origins") / "origins.py"
    path.write_text(SOURCE.read_text().replace("PUBLISHED = None", f"PUBLISHED = {known!r}"))
    return path


@pytest.fixture(scope="module")
def verdicts(kernel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, CaseVerdict]:
    """All ways in one process, so that the honest ones run after others have read the inputs."""
    spec, base = KernelSpec.from_files(kernel, arch="sm_100a")
    verifier = Verifier(SimDevice(), folder=tmp_path_factory.mktemp("jobs"), deadline_s=900)
    done = verifier.verify(spec, [case(name) for name in NAMES], base=base, order_seed=3)
    return {verdict.case.problem.name: verdict for verdict in done.verdicts}


def test_every_way_has_its_verdict() -> None:
    assert set(NAMES) == HONEST.keys() | RED.keys()


@pytest.mark.parametrize("name", HONEST)
def test_honest_kernels_stay_clean(verdicts: dict[str, CaseVerdict], name: str) -> None:
    verdict = verdicts[name]
    assert (verdict.status, verdict.findings) == ("passed", [])
    assert verdict.written_by == HONEST[name]


@pytest.mark.parametrize("name", RED)
def test_c_that_no_kernel_computed_is_red(verdicts: dict[str, CaseVerdict], name: str) -> None:
    verdict = verdicts[name]
    assert verdict.status == "failed"
    messages = [finding.message for finding in verdict.findings]
    assert any(fnmatchcase(message, f"*{RED[name].replace('[', '[[]')}*") for message in messages), messages
    lines = [finding.line for finding in verdict.findings if finding.kind == "origin"]
    assert name == "published" or all(lines), messages
