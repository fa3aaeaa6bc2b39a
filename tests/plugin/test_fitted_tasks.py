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


def test_a_wait_for_a_wrong_stage_of_an_instance_for_an_official_k_is_a_race(tmp_path: Path) -> None:
    """The instances for small k have one iteration or two: the kernel refuses every k that is not official."""
    pytest.importorskip("cuda.bindings.nvrtc")
    text = (KERNELS / "gemv_stages.py").read_text()
    wait = "wait(empty + 8 * stage, (round"
    assert text.count(wait) == 1
    (tmp_path / "right.py").write_text(text)
    (tmp_path / "wrong.py").write_text(text.replace(wait, "wait(empty, (round"))
    said = ran(tmp_path, "right.py", "wrong.py", "-k", "races and fitted")
    assert " 1 failed, 1 passed" in said, said
    assert "right.py::races[fitted]: 384x1x4096: every stage is refilled at right.py:" in said
    lines = text.splitlines()
    copy = next(at for at, line in enumerate(lines, 1) if '"l"(from)' in line)
    read = next(at for at, line in enumerate(lines, 1) if "part += fp4(x[byte]" in line)
    (failed,) = (line for line in said.splitlines() if line.startswith("FAILED wrong.py::races[fitted]"))
    assert f"wrong.py:{copy} called at " in failed
    assert "(cp.async.bulk) in warp 0" in failed
    assert f"wrong.py:{read} called at " in said


def test_a_race_in_an_instance_that_the_fitted_problem_does_not_launch_is_found(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    text = (KERNELS / "gemv_stages.py").read_text()
    order = "__syncwarp();"
    assert text.count(order) == 1
    (tmp_path / "wrong.py").write_text(text.replace(order, f"if (K != 2048) {order}"))
    said = ran(tmp_path, "wrong.py", "-k", "races and fitted")
    assert " 1 failed" in said, said
    assert "wrong.py::races[fitted]: 384x1x4096: every stage is refilled" in said
    assert "not launched here: product_2048, which is for gpumode-" in said
    assert "failed on 128x1x2048, simulated under the eager schedule" in said
