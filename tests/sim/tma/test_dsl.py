"""TMA load, store and reduction as CuTe DSL compiles them: every swizzle, tiles off its start, ragged edges."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.host import redirect

ROOT = Path(redirect.__file__).parents[2]
SHAPE, ROWS = (72, 200), 32


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    if not all(importlib.util.find_spec(package) for package in ("cutlass", "torch")):
        pytest.skip("needs the DSL and torch")
    dump = tmp_path_factory.mktemp("dump")
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, "-m", "tests.sim.tma.dsl_worker"],
        cwd=ROOT,
        env={**os.environ, **redirect.environment(dump), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    said = [json.loads(line[5:]) for line in result.stdout.splitlines() if line.startswith("CASE ")]
    assert result.returncode == 0, result.stdout + result.stderr
    return {case["name"]: case for case in said}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["Eager", "Lazy"])
@pytest.mark.parametrize("bits", range(4))
@pytest.mark.parametrize("what", ["store", "reduce"])
def test_a_tensor_goes_through_shared_memory(cases, what, bits, schedule):
    case = cases[f"{what}-{bits}-{schedule}"]
    assert case["wrong"] == 0
    assert case["findings"] == []
    opcode = "cp.reduce.async.bulk.tensor.2d" if what == "reduce" else "cp.async.bulk.tensor.2d.global"
    assert any(one.startswith(opcode) for one in case["opcodes"])
    size = 4 if what == "reduce" else 2
    width = {0: 128, 1: 32, 2: 64, 3: 128}[bits] // size
    ctas = -(-SHAPE[0] // ROWS) * -(-SHAPE[1] // width)
    assert case["counters"] == {
        "tma.load.requests": ctas,
        "tma.load.bytes": ctas * ROWS * width * size,
        f"tma.{what}.requests": ctas,
        f"tma.{what}.bytes": SHAPE[0] * SHAPE[1] * size,
    }
