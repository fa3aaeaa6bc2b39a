"""The worker on a real GPU of this machine: honest kernels green, cheats red, faults contained. Skipped without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.bench.judge import timing_findings
from pytest_nvfp4.device.gpus import visible_gpus
from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.local import LocalDevice
from pytest_nvfp4.device.verdict import CaseVerdict
from pytest_nvfp4.device.verify import Verifier, measure
from pytest_nvfp4.problem import parse_shape, resolve

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not visible_gpus(), reason="needs an NVIDIA GPU in this machine"),
]

KERNELS = Path(__file__).parent / "kernels"
CHEATS = sorted(path.stem.removeprefix("cheat_") for path in KERNELS.glob("cheat_*.py"))
STREAMS = ["other_stream", "trailing_stream"]
"""Cheats whose results are right, and that show only when they are timed."""


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> LocalDevice:
    return LocalDevice(visible=visible_gpus()[0], probe_folder=tmp_path_factory.mktemp("probe"))


def spec(device: LocalDevice, path: Path) -> tuple[KernelSpec, Path]:
    major, minor = device.describe().capability
    return KernelSpec.from_files(path, arch=f"sm_{major}{minor}a")


def verified(device: LocalDevice, folder: Path, path: Path) -> list[CaseVerdict]:
    kernel, base = spec(device, path)
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
    result, verdicts = measure(device, kernel, cases, folder=folder, rounds=20, base=base)
    said = [finding.message for verdict in verdicts for finding in verdict.findings]
    for measurement in result.measurements:
        said += [
            finding.message
            for finding in timing_findings(measurement, problem, result.device)
            if finding.severity == "error"
        ]
    return [*said, *([] if result.status == "passed" else [result.status])]


def test_an_honest_kernel_passes(device: LocalDevice, tmp_path: Path) -> None:
    verdicts = verified(device, tmp_path, KERNELS / "honest.py")
    assert [verdict.status for verdict in verdicts] == ["passed"] * 4, verdicts


def test_an_honest_kernel_is_timed_without_a_word_against_it(device: LocalDevice, tmp_path: Path) -> None:
    assert timed(device, tmp_path, KERNELS / "honest.py") == []


@pytest.mark.parametrize("cheat", [name for name in CHEATS if name not in STREAMS])
def test_a_cheat_goes_red(device: LocalDevice, tmp_path: Path, cheat: str) -> None:
    verdicts = verified(device, tmp_path, KERNELS / f"cheat_{cheat}.py")
    assert {verdict.status for verdict in verdicts} - {"passed"}, verdicts


@pytest.mark.parametrize("cheat", STREAMS)
def test_work_on_another_stream_goes_red_when_it_is_timed(device: LocalDevice, tmp_path: Path, cheat: str) -> None:
    said = timed(device, tmp_path, KERNELS / f"cheat_{cheat}.py")
    assert any("another stream" in text for text in said), said


def test_a_fault_on_the_device_does_not_reach_the_next_job(device: LocalDevice, tmp_path: Path) -> None:
    text = (
        (KERNELS / "honest.py")
        .read_text()
        .replace(
            "    abc, _, reordered, sizes = data\n",
            "    abc, _, reordered, sizes = data\n"
            "    torch.zeros(4, device='cuda')[torch.tensor([1 << 40], device='cuda')]\n",
        )
    )
    path = tmp_path / "kernel.py"
    path.write_text(text)
    assert "passed" not in {verdict.status for verdict in verified(device, tmp_path / "a", path)}
    verdicts = verified(device, tmp_path / "b", KERNELS / "honest.py")
    assert [verdict.status for verdict in verdicts] == ["passed"] * 4, verdicts
