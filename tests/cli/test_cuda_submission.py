"""A submission in CUDA C++ through NVRTC under the checks: trace, verdict, counts, and the lines of its literal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from tests.cli.cuda_submission import KERNEL

pytestmark = pytest.mark.slow

SHAPE = "40x128x256"


def written(folder: Path, old: str = "", new: str = "") -> Path:
    assert old in KERNEL
    file = folder / "naive.py"
    file.write_text(KERNEL.lstrip().replace(old, new) if old else KERNEL.lstrip())
    return file


def line_of(file: Path, text: str) -> int:
    return next(number for number, line in enumerate(file.read_text().splitlines(), 1) if text in line)


def test_it_compiles_with_known_registers_and_its_result_is_right(cli: Any, tmp_path: Path) -> None:
    file = written(tmp_path)
    shown = cli("compile", str(file), "--shape", SHAPE, "--json")
    data = json.loads(shown.out)
    assert (data["ok"], data["launch_count"], data["launches"][0]["kernel"]) == (True, 1, "product")
    assert data["code"][0]["registers"] > 0
    ran = cli("run", str(file), "--problem", SHAPE, "--device", "sim", "--json")
    (run,) = json.loads(ran.out)["runs"]
    assert (run["status"], run["findings"]) == ("passed", [])


def test_an_error_of_the_compiler_is_at_the_line_of_the_literal(cli: Any, tmp_path: Path) -> None:
    file = written(tmp_path, "float part = 0;", "float part = zero;")
    data = json.loads(cli("compile", str(file), "--shape", SHAPE, "--json").out)
    (finding,) = data["findings"]
    assert (Path(finding["file"]).name, finding["line"]) == ("naive.py", line_of(file, "float part = zero;"))
    assert 'identifier "zero" is undefined' in finding["message"]


def test_a_fault_is_at_the_line_of_the_literal(cli: Any, tmp_path: Path) -> None:
    file = written(tmp_path, "row >= m || column >= n", "row >= m || column > n")
    text = file.read_text().replace("(n + 127) // 128, m", "(n + 128) // 128 + 1, m")
    file.write_text(text)
    (run,) = json.loads(cli("run", str(file), "--problem", SHAPE, "--device", "sim", "--json").out)["runs"]
    assert run["status"] == "failed"
    assert any(
        finding["kind"] == "out-of-bounds" and finding["line"] == line_of(file, "unsigned char x = a[row")
        for finding in run["findings"]
    )
