"""``nvfp4 exec --device sim``: the processes that a program starts, faults, and profilers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.device.worker.child_start import FOLDER, VARIABLE
from tests.cli.test_exec import run

PROGRAM = """
import multiprocessing
import subprocess
import sys

import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack


@cute.kernel
def kernel(x: cute.Tensor, y: cute.Tensor, first: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    y[thread] = x[thread + first]


@cute.jit
def host(x: cute.Tensor, y: cute.Tensor, first: cutlass.Int32):
    kernel(x, y, first).launch(grid=(1, 1, 1), block=(64, 1, 1))


class Sum:
    def __init__(self, value):
        self.value = value


def launch(first):
    x, y = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    host(from_dlpack(x), from_dlpack(y), cutlass.Int32(first))
    torch.cuda.synchronize()
    return Sum(float(y.sum()))


if __name__ == "__main__":
    way, first = sys.argv[1], int(sys.argv[2])
    if way == "subprocess":
        code = f"import runpy; print(runpy.run_path({__file__!r})['launch']({first}).value)"
        sys.exit(subprocess.run([sys.executable, "-c", code]).returncode)
    if way == "fork-after-use":
        launch(0)
    with multiprocessing.get_context(way.partition("-")[0]).Pool(1) as pool:
        print(pool.apply(launch, (first,)).value)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["spawn", "fork", "forkserver", "subprocess"])
def test_a_process_of_the_program_has_the_device(tmp_path: Path, way: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run("--device", "sim", program, way, 0)
    assert (done.code, done.out) == (0, "64.0\n"), done.err
    assert "simulated" not in done.err


@pytest.mark.slow
def test_a_fault_in_a_process_names_line_cta_warp_and_lane(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    line = PROGRAM.splitlines().index("    y[thread] = x[thread + first]") + 1
    done = run("--device", "sim", program, "spawn", 4)
    assert done.code == 1
    said = f"program.py:{line}: simulated, out-of-bounds: ld.global.b32, lane 28"
    made = PROGRAM.splitlines().index('    x, y = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")') + 1
    assert f"after the end of device allocation 0 of 256 bytes (x, made at program.py:{made})" in done.err
    assert f"\n{said}" in "\n" + done.err
    assert f"RuntimeError: {said}" in done.err
    assert "CTA (0, 0, 0), warp 1, PTX line " in done.err
    assert "    y[thread] = x[thread + first]\n" in done.err


@pytest.mark.slow
def test_a_fork_after_a_launch_cannot_launch(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run("--device", "sim", program, "fork-after-use", 0)
    assert done.code == 1
    assert "CUDA does not survive a fork" in done.err


@pytest.mark.slow
def test_races_in_a_process_decide_the_status(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("y[thread] =", "y[thread % 32] =").replace("ones(64,", "arange(64.0,"))
    done = run("--races", program, "spawn", 0)
    assert done.code == 1, done.err
    assert "simulated, race: " in done.err
    program.write_text(PROGRAM)
    assert run("--races", program, "spawn", 0).code == 0


def test_a_child_that_needs_no_device_imports_nothing_and_keeps_its_own_customisation(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('own')\n")
    code = "import sys; print([name for name in sys.modules if name.startswith(('pytest_nvfp4', 'torch'))])"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([FOLDER, str(tmp_path)]), VARIABLE: "{}"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "own\n[]\n"


@pytest.mark.slow
def test_a_name_that_the_installed_dsl_lacks_is_explained(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from cutlass.cute.nvgpu.common import NeverThere\n")
    done = run("--device", "sim", program)
    assert done.code == 1
    assert "cutlass.cute.nvgpu.common has no NeverThere: it is written for another version" in done.err
