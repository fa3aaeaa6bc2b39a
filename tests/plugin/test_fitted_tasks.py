"""The fitted problem of GPU MODE's tasks on one problem: it reaches what the smallest official test does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.toolchain.cache_root import CACHE_VARIABLE

pytestmark = pytest.mark.slow
pytest.importorskip("cutlass")
KERNELS = Path(__file__).parents[1] / "contracts" / "kernels"


def ran(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "--nvfp4-device=sim", "-p", "no:cacheprovider", "-rsfp", *arguments]
    environment = {**os.environ, CACHE_VARIABLE: str(folder / "cache"), "COLUMNS": "200"}
    (folder / "pyproject.toml").write_text("[tool.pytest_nvfp4]\n")
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", ["gemm", "dual_gemm", "gemv"])
def test_a_right_kernel_passes(tmp_path: Path, name: str) -> None:
    for file in (f"{name}.py", "tiles.py"):
        shutil.copy(KERNELS / file, tmp_path)
    text = ran(tmp_path, f"{name}.py", "-k", "fitted")
    assert " 3 passed" in text, text
    line = next(line for line in text.splitlines() if "races[fitted]: " in line)
    refilled = "every stage is refilled at tiles.py:70 (1 stage) 2 times, tiles.py:71 (1 stage) 2 times"
    assert (refilled if name != "gemv" else "the kernel has no rings of mbarriers") in line


def test_a_phase_that_is_not_flipped_shows_on_it_alone(tmp_path: Path) -> None:
    for file in ("gemm.py", "tiles.py"):
        shutil.copy(KERNELS / file, tmp_path)
    text = (tmp_path / "tiles.py").read_text()
    flip = "parity ^= 1"
    assert text.count(flip) == 1
    (tmp_path / "tiles.py").write_text(text.replace(flip, "parity ^= 0"))
    said = ran(tmp_path, "gemm.py", "-k", "verify and (gpumode-0 or fitted)")
    assert " 1 failed, 1 passed" in said, said
    assert "FAILED gemm.py::verify[fitted]" in said
