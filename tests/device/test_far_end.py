"""A lost 64-bit stride is an overflow, with the smallest problem that shows it; a right kernel has no finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.device.far_end import overflows
from pytest_nvfp4.device.job import KernelSpec
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.finding import Finding
from tests.sim.provenance.mistakes import SHIPPED

pytest.importorskip("cutlass")
pytestmark = pytest.mark.slow
STRIDE = "cute.assume(Int64(n), divby=TILE_N)"
FILLS = "    outputs = [c for _, _, c in abc_tensors]\n"


def found(text: str, folder: Path) -> list[Finding] | None:
    path = folder / "kernel.py"
    path.write_text(text)
    spec, base = KernelSpec.from_files(path, arch="sm_100a")
    return overflows(SimDevice(), spec, folder=folder / "jobs", base=base)


def test_a_lost_64_bit_stride(tmp_path: Path) -> None:
    text = SHIPPED.read_text()
    assert text.count(STRIDE) == 1
    (finding,) = found(text.replace(STRIDE, "cute.assume(n, divby=TILE_N)"), tmp_path) or []
    assert finding.kind == "overflow"
    assert finding.text == "cute.autovec_copy(tDrC, tDgC)"
    # 293 tiles of 128 rows of 57344 elements have 2^31 and some; the first row of the next tile is number 37505.
    assert "from 37505x57344x256 on" in finding.message
    assert "past 2^31 elements" in finding.message


def test_right_kernels(tmp_path: Path) -> None:
    assert found(SHIPPED.read_text(), tmp_path) == []


def test_a_kernel_that_fills_c_itself_is_not_run(tmp_path: Path) -> None:
    """It would take 6 GB of memory."""
    text = SHIPPED.read_text()
    assert text.count(FILLS) == 1
    lost = text.replace(STRIDE, "cute.assume(n, divby=TILE_N)")
    assert found(lost.replace(FILLS, f"{FILLS}    outputs[0].zero_()\n"), tmp_path) == []
