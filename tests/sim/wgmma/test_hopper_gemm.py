"""Descriptors, major modes and fragments as the DSL makes them, through the simulator to exact products."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    command = [sys.executable, "-m", "tests.sim.wgmma.hopper_gemm", str(tmp_path_factory.mktemp("hopper_gemm"))]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    return [json.loads(line[5:]) for line in result.stdout.splitlines() if line.startswith("CASE ")]


def test_every_product_is_exact(cases):
    assert len(cases) == 9
    assert [case["name"] for case in cases if not case["equal"]] == []


def test_nothing_is_found(cases):
    assert {case["name"]: case["findings"] for case in cases if case["findings"]} == {}


def test_the_code_has_the_forms_that_the_names_say(cases):
    types = {
        "f16 ": "f32.f16.f16",
        "bf16": "f32.bf16.bf16",
        "f16 into": "f16.f16.f16",
        "e4m3": "f32.e4m3.e5m2",
        "e5m2": "f16.e5m2.e4m3",
    }
    for case in cases:
        want = next(text for start, text in reversed(types.items()) if case["name"].startswith(start))
        (opcode,) = case["opcodes"]
        assert opcode.endswith(want), case["name"]


def test_every_mma_is_counted(cases):
    for case in cases:
        assert case["counters"]["wgmma.macs"] == 128 * 128 * case["n"]
        k = 32 if case["name"].startswith("e") else 16
        assert case["counters"]["wgmma.instructions"] == 2 * 128 // k
        assert ("wgmma.fp8.accumulation" in case["counters"]) == case["name"].startswith("e")
