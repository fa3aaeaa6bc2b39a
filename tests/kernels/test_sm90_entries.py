"""The sm_90a kernels outside GPU MODE's contract, compiled and run in the simulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """All cases that the worker runs, of the kernels as they are and of edited ones."""
    command = [sys.executable, "-m", "tests.kernels.sm90_worker", str(tmp_path_factory.mktemp("sm90_entries"))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return [json.loads(line[5:]) for line in result.stdout.splitlines() if line.startswith("CASE ")]


def of(cases: list[dict[str, Any]], kernel: str) -> list[dict[str, Any]]:
    found = [case for case in cases if case["kernel"] == kernel and not case["edit"]]
    assert len(found) == 12
    return found


def test_nothing_is_found_in_any_kernel(cases):
    assert {(case["kernel"], case["edit"]): case["findings"] for case in cases if case["findings"]} == {}


def test_the_transpose_moves_every_bit_pattern(cases):
    assert all(case["equal"] for case in of(cases, "copy_transpose"))


def test_the_transpose_has_no_bank_conflicts(cases):
    for case in of(cases, "copy_transpose"):
        assert case["counters"].get("shared.load.conflicts", 0) == 0
        assert case["counters"].get("shared.store.conflicts", 0) == 0


def test_sums_are_added_in_the_stated_order(cases):
    assert all(case["equal"] and case["near"] for case in of(cases, "reduce_sum"))


def test_softmax_is_near_and_makes_nan_where_torch_does(cases):
    found = of(cases, "softmax_online")
    assert all(case["near"] for case in found)
    assert [case["nan_rows"] for case in found] == [0, 2, 0, 0] * 3


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ("i = thread // CHUNKS", lambda case: case["equal"] and case["counters"]["shared.store.conflicts"] > 0),
        ("turned[(e, f)] = block[(e, f)]", lambda case: not case["equal"]),
        ("partial[2 * e]", lambda case: case["near"] and (not case["equal"] or case["shape"][1] < 2048)),
        ("total * Float32(1.0)", lambda case: not case["near"] or case["shape"][1] < 2048),
    ],
)
def test_the_checks_can_tell(cases, edit, told):
    found = [case for case in cases if edit in (case["edit"] or "")]
    assert len(found) == 4
    assert all(told(case) for case in found), found


def test_the_operators_have_fakes():
    source = """
import importlib.util, sys, torch
from torch._subclasses.fake_tensor import FakeTensorMode
def load(name):
    spec = importlib.util.spec_from_file_location(name, f"kernels/{name}/sm90.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
for name in ("copy_transpose", "reduce_sum", "softmax_online"):
    load(name)
ops = torch.ops.kernels_sm90
with FakeTensorMode():
    x = torch.empty(8, 16, device="cuda")
    cases = [
        (ops.copy_transpose, torch.empty(16, 8, device="cuda")),
        (ops.reduce_sum, torch.empty(8, device="cuda")),
        (ops.softmax_online, torch.empty(8, 16, device="cuda")),
    ]
    for op, out in cases:
        assert op(x, out) is None
        try:
            op(x, torch.empty(3, 3, device="cuda"))
        except RuntimeError as error:
            assert "out must be" in str(error), error
        else:
            raise AssertionError(f"{op} takes any output")
"""
    environment = {**os.environ, "CUTE_DSL_ARCH": "sm_90a"}
    result = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
