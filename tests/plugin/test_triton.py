"""A submission in Triton through every check that needs no GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.toolchain.cache_root import CACHE_VARIABLE

from .triton_source import BEYOND, GEMM, NEIGHBOURS, TRITON, WRONG

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
]
PROBLEM = "96x128x256"
SETTINGS = f"""
[[tool.pytest_nvfp4.kernel]]
path = "k.py"
problems = ["{PROBLEM}"]
verify-problems = ["{PROBLEM}"]
simulate-problems = ["{PROBLEM}"]
"""


def checked(folder: Path, source: str, *arguments: str, checks: str, problem: str = PROBLEM) -> str:
    (folder / "k.py").write_text(source)
    (folder / "pyproject.toml").write_text(SETTINGS.replace(PROBLEM, problem))
    chosen = f"({checks}) and {problem}"
    command = [sys.executable, "-m", "pytest", "k.py", "--nvfp4-device=sim", "-k", chosen]
    environment = {**os.environ, CACHE_VARIABLE: str(folder / "cache")}
    ran = subprocess.run(
        [*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return ran.stdout + ran.stderr


def test_every_check(tmp_path: Path) -> None:
    text = checked(tmp_path, TRITON, "--snapshot-update", checks="not benchmark")
    assert " 8 passed" in text, text
    assert "gemm is executed in one of its 2 configurations, number 1 (counted from 0), the first" in text
    assert "BM: 128, BN: 128, BK: 128" in text
    snapshots = {path.name.split("[")[0]: path.read_text() for path in tmp_path.rglob("snapshots/**/*.txt")}
    assert "tensor_memory_encoding<blockM = 128, blockN = 128" in snapshots["layouts"]
    assert "gemm.x  !ttg.memdesc<" in snapshots["layouts"]
    assert "launch.0.grid  1x1x1\nlaunch.0.block  128x1x1" in snapshots["launch"]
    assert "code.0.ptx.tcgen05.mma  2" in snapshots["codegen"]
    assert "launch.0.mma.mxf4nvf4.1cta  4" in snapshots["cost"]
    assert " 4 passed" in checked(tmp_path, TRITON, checks="layouts or launch or codegen or cost")


@pytest.mark.slow
@pytest.mark.parametrize(("change", "said", "line"), [(BEYOND, "out-of-bounds", "tl.store"), (WRONG, "differ", "")])
def test_faults(tmp_path: Path, change: tuple[str, str], said: str, line: str) -> None:
    source = TRITON.replace(*change)
    assert source != TRITON
    text = checked(tmp_path, source, checks="verify")
    assert " 1 failed" in text, text
    assert said in text
    if line:
        number = source[: source.index(line)].count("\n") + 1
        assert f"k.py:{number}: simulated, out-of-bounds" in text


@pytest.mark.parametrize(
    ("pick", "said", "passed"),
    [
        ("BK=128", "number 1 (counted from 0), which --autotune BK=128 picks: BM: 128", True),
        ("0", "out of resource: shared memory", False),
        ("BK=32", "picks no configuration of gemm: it has 0: BM: 256, BN: 256, BK: 1024", False),
        ("other:1", "no kernel other with configurations of triton.autotune was launched", False),
        ("best", "write --autotune INDEX", False),
    ],
)
def test_a_configuration_is_picked(tmp_path: Path, pick: str, said: str, passed: bool) -> None:
    text = checked(tmp_path, TRITON, f"--nvfp4-compile-option=--autotune {pick}", checks="compile")
    assert said in " ".join(text.split()), text
    assert f" 1 {'passed' if passed else 'failed'}" in text, text


def test_the_compiler_of_torch_is_refused_before_anything_runs(tmp_path: Path) -> None:
    source = "raise RuntimeError('it ran')\n" + TRITON.replace("def custom_kernel", "@torch.compile\ndef custom_kernel")
    text = checked(tmp_path, source, checks="compile")
    line = source[: source.index("@torch.compile")].count("\n") + 1
    assert f"k.py:{line}" in text, text
    assert "k.py uses torch.compile, whose kernels torch's compiler writes" in " ".join(text.split())
    assert " passed" not in text
    assert "RuntimeError: it ran" not in text


@pytest.mark.parametrize(("pick", "change"), [("0", None), ("1", None), ("BN=64", NEIGHBOURS)])
def test_a_gemm(tmp_path: Path, pick: str, change: tuple[str, str] | None) -> None:
    source = GEMM if change is None else GEMM.replace(*change)
    assert (source == GEMM) == (change is None)
    checks = "verify" if change else "compile or verify or coverage or races or cost"
    arguments = ("--snapshot-update", f"--nvfp4-compile-option=--autotune {pick}")
    text = checked(tmp_path, source, *arguments, checks=checks, problem="128x128x512x2")
    if change is not None:
        assert " 1 failed" in text, text
        assert "provenance: the SFB" in text
        return
    assert " 5 passed" in text, text
    assert f"number {pick} (counted from 0), which --autotune {pick} picks" in " ".join(text.split())
    (cost,) = (path.read_text() for path in tmp_path.rglob("snapshots/**/*.txt") if path.name.startswith("cost"))
    assert f"# options  --autotune {pick}\n" in cost
