"""A wrong result begins with its cause: the operand that read the wrong data, with the lines of MMA and loads."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.simulate import SimulationResult, simulate
from pytest_nvfp4.device.verify import Verifier
from pytest_nvfp4.problem import parse_shape

from .mistakes import MISTAKES, SHIPPED, STRUCTURES, Mistake

pytest.importorskip("cutlass")
pytestmark = pytest.mark.slow
KERNELS = SHIPPED.parents[2]


def cases(*shapes: str) -> list[JobCase]:
    return [JobCase(problem=ProblemSpec.of(parse_shape(shape)), family="gpumode") for shape in shapes]


def followed(kernel: Path, folder: Path, *shapes: str) -> list[SimulationResult]:
    spec, base = KernelSpec.from_files(kernel, arch="sm_100a")
    return simulate(SimDevice(), spec, cases(*shapes), folder=folder / "jobs", base=base, provenance=True)


def written(mistake: Mistake, folder: Path) -> Path:
    path = folder / "kernel.py"
    path.write_text(mistake.text())
    return path


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_the_operand_that_reads_the_wrong_data_is_named(mistake: Mistake, tmp_path: Path) -> None:
    (done,) = followed(written(mistake, tmp_path), tmp_path, mistake.shape)
    (finding,) = [each for each in done.findings if each.kind == "provenance"]
    text = str(finding)
    for words in mistake.says:
        said = re.sub(r"\{(.*?)\}", lambda match: f"kernel.py:{mistake.line(match[1])}", words, flags=re.DOTALL)
        assert said in text, text
    assert finding.line == mistake.line(mistake.at), text


@pytest.mark.parametrize(
    "kernel", [SHIPPED, *sorted(STRUCTURES.glob("[!_]*.py"))], ids=lambda path: path.stem
)  # fmt: skip
def test_right_kernels_have_no_findings(kernel: Path, tmp_path: Path) -> None:
    """Grouped, ragged, with fewer k tiles than stages and with many: TMA fills edges, and tags of padding are read."""
    for done in followed(kernel, tmp_path, "200x256x768,300x384x1280", "256x128x256"):
        assert not done.findings, done.findings
        assert done.status == "passed"


def test_batches_of_a_right_kernel_have_no_findings(tmp_path: Path) -> None:
    """One C has the rows of all batches, and each batch has tags of its own."""
    spec, base = KernelSpec.from_files(KERNELS / "nvfp4_gemm" / "sm100.py", arch="sm_100a")
    problem = replace(parse_shape("128x256x512x2"), contract="nvfp4_gemm")
    case = JobCase(problem=ProblemSpec.of(problem), family="gpumode")
    (done,) = simulate(SimDevice(), spec, [case], folder=tmp_path / "jobs", base=base, provenance=True)
    assert not done.findings, done.findings
    assert done.status == "passed"


def test_verify_puts_the_cause_first(tmp_path: Path) -> None:
    mistake = MISTAKES[1]
    spec, base = KernelSpec.from_files(written(mistake, tmp_path), arch="sm_100a")
    verifier = Verifier(SimDevice(), folder=tmp_path / "jobs")
    done = verifier.verify(spec, cases("128x128x256", "128x256x512"), base=base)
    first, second = done.verdicts
    cause, *others = first.findings
    assert cause.kind == "provenance"
    assert cause.line == mistake.line(mistake.at)
    assert "reads SFB of group 0" in cause.message
    assert others[0].kind == "mismatch", "what is wrong with C follows"
    assert second.findings[0].kind == "mismatch", "once a cause is known, no other problem is searched"
    assert not list((tmp_path / "jobs").iterdir())
