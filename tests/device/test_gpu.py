"""The worker on a real GPU of this machine: honest kernels green, cheats red, faults contained. Skipped without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.device.gpus import visible_gpus
from pytest_nvfp4.device.local import LocalDevice

from .gpu_jobs import KERNELS, timed, verified

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not visible_gpus(), reason="needs an NVIDIA GPU in this machine"),
]

CHEATS = sorted(path.stem.removeprefix("cheat_") for path in KERNELS.glob("cheat_*.py"))
STREAMS = ["other_stream", "trailing_stream"]
"""Cheats whose results are right, and that show only when they are timed."""


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> LocalDevice:
    return LocalDevice(visible=visible_gpus()[0], probe_folder=tmp_path_factory.mktemp("probe"))


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


@pytest.mark.parametrize(("kernel", "right"), [("honest", True), ("cheat_other_stream", False)])
def test_work_must_be_ordered_with_the_callers_stream(
    device: LocalDevice, tmp_path: Path, kernel: str, right: bool
) -> None:
    verdicts = verified(device, tmp_path, KERNELS / f"{kernel}.py", side_stream=True)
    assert ({verdict.status for verdict in verdicts} == {"passed"}) is right, verdicts


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
