"""Verify and benchmark jobs on a GPU of this machine."""

from __future__ import annotations

from pathlib import Path

from pytest_nvfp4.bench.judge import timing_findings
from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.local import LocalDevice
from pytest_nvfp4.device.verdict import CaseVerdict
from pytest_nvfp4.device.verify import Rounds, Verifier, measure
from pytest_nvfp4.problem import parse_shape, resolve

KERNELS = Path(__file__).parent / "kernels"


def spec(device: LocalDevice, path: Path, *, side_stream: bool = False) -> tuple[KernelSpec, Path]:
    major, minor = device.describe().capability
    return KernelSpec.from_files(path, arch=f"sm_{major}{minor}a", side_stream=side_stream)


def verified(device: LocalDevice, folder: Path, path: Path, *, side_stream: bool = False) -> list[CaseVerdict]:
    kernel, base = spec(device, path, side_stream=side_stream)
    cases = [
        JobCase(problem=ProblemSpec.of(parse_shape(shape)), family=family)
        for shape in ("40x128x256", "7x128x256,130x128x512")
        for family in ("pow2_exact", "gpumode")
    ]
    return Verifier(device, folder=folder).verify(kernel, cases, base=base).verdicts


def timed(device: LocalDevice, folder: Path, path: Path) -> list[str]:
    """Every word against a kernel whose official problem of the fewest groups is timed."""
    kernel, base = spec(device, path)
    problem = resolve(["gpumode-9"])[0]
    cases = [JobCase(problem=ProblemSpec.of(problem), family="pow2_exact")]
    result, verdicts = measure(device, kernel, cases, folder=folder, rounds=Rounds(20, counted=3), base=base)
    said = [finding.message for verdict in verdicts for finding in verdict.findings]
    for measurement in result.measurements:
        said += [
            finding.message
            for finding in timing_findings(measurement, problem, result.device)
            if finding.severity == "error"
        ]
    return [*said, *([] if result.status == "passed" else [result.status])]
