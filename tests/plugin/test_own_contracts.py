"""A kernel under a contract of the user's own: its input families, and the search for a problem that it gets wrong."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.toolchain.cache_root import CACHE_VARIABLE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
]
SETTINGS = """
[[tool.pytest_nvfp4.kernel]]
path = "scale.py"
contract = "c.py::Scale"
call = "scale.py::scale"
"""
CONTRACT = """
import numpy as np


class Scale:
    destination = True
    problems = {"small": {"rows": 4, "columns": 64}}
    families = ["normal", "tiny"]

    def inputs(self, problem, rng, family):
        x = rng.standard_normal((problem["rows"], problem["columns"])).astype(np.float32)
        return {"x": x * np.float32({"normal": 1, "tiny": 1e-38}[family]), "factor": 0.5}

    def reference(self, x, factor):
        return {"y": x * np.float32(factor)}
"""
AXES = """
    axes = {"rows": range(1, 30), "columns": range(8, 200, 4)}

    def legal(self, problem):
        return problem["rows"] != 13
"""
KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def _scale(x, y, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(y + at, value * factor, mask=at < n)


def scale(x, factor, y):
    n = x.numel()
    _scale[(triton.cdiv(n, 128),)](x, y, factor, n, BLOCK=128)
"""
LAST_LEFT_OUT = KERNEL.replace("n = x.numel()", "n = x.numel() - (x.shape[0] > 12)")
FLUSHES = KERNEL.replace("value * factor", "tl.where(tl.abs(value) < 1e-30, 0.0, value * factor)")


def ran(folder: Path, source: str, *arguments: str, contract: str = CONTRACT + AXES, settings: str = SETTINGS) -> str:
    (folder / "scale.py").write_text(source)
    (folder / "c.py").write_text(contract)
    (folder / "pyproject.toml").write_text(settings)
    command = [sys.executable, "-m", "pytest", "scale.py", "--nvfp4-device=sim", "-p", "no:cacheprovider", "-rsf"]
    environment = {**os.environ, CACHE_VARIABLE: str(folder / "cache"), "COLUMNS": "200"}
    done = subprocess.run(
        [*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_every_family_is_verified_and_one_may_be_chosen(tmp_path: Path) -> None:
    assert " 1 passed" in ran(tmp_path, KERNEL, "-k", "verify")
    text = ran(tmp_path, FLUSHES, "-k", "verify")
    assert " 1 failed" in text, text
    assert "failed on small with inputs 'tiny'; right with 'normal'" in text
    assert "with inputs 'normal'" not in text
    assert " 1 passed" in ran(tmp_path, FLUSHES, "-k", "verify", "--nvfp4-family=normal")
    text = ran(tmp_path, FLUSHES, "-k", "verify", "--nvfp4-family=nromal")
    assert "--nvfp4-family 'nromal': the kernel's contract has normal, tiny" in text
    text = ran(tmp_path, FLUSHES, "-k", "search", "--nvfp4-search=2")
    assert "-k verify --nvfp4-device=sim --nvfp4-family=tiny" in text, text


def test_a_failing_problem_is_found_and_repeated(tmp_path: Path) -> None:
    text = ran(tmp_path, LAST_LEFT_OUT, "-k", "search", "--nvfp4-search=ci")
    assert " 1 failed" in text, text
    # A legal step down from 14 rows does not fail, as 13 are no problem.
    assert "searched: rows=14,columns=8 failed (the smallest that fails)" in text
    chosen = "--nvfp4-problem=rows=14,columns=8"
    assert f"-k verify --nvfp4-device=sim --nvfp4-family=normal {chosen}" in text
    again = ran(tmp_path, LAST_LEFT_OUT, "-k", "verify", "--nvfp4-family=normal", chosen)
    assert "scale.py::verify[rows=14,columns=8]" in again
    assert " 1 failed" in again
    mended = ran(tmp_path, KERNEL, "-k", "search", "--nvfp4-search=3")
    assert " 1 passed" in mended
    assert "1 that failed before: none is wrong" in mended


def test_a_contract_without_axes_says_so_in_one_line(tmp_path: Path) -> None:
    text = ran(tmp_path, KERNEL, "-k", "search", "--nvfp4-search=3", contract=CONTRACT)
    assert " 1 skipped" in text, text
    assert "the contract c.py lists no values to draw problems from: give it axes" in text


def test_what_the_contract_does_wrong_on_a_drawn_problem_is_no_failure_of_the_kernel(tmp_path: Path) -> None:
    wrong = (CONTRACT + AXES).replace("        x = rng", '        assert problem["columns"] < 9\n        x = rng')
    wrong = wrong.replace('"columns": 64', '"columns": 8')
    text = ran(tmp_path, KERNEL, "-k", "search", "--nvfp4-search=4", contract=wrong)
    assert " 1 failed" in text, text
    assert "AssertionError" in text
    assert "c.py:11" in text
    assert "the smallest that fails" not in text
