"""The shipped Hopper kernel: A decoded in registers, B by bulk copies, 23 instances of the main loop, ragged tiles."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ml_dtypes")
ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_shipped_kernel_is_exact_and_clean(tmp_path):
    command = [sys.executable, "-m", "tests.sim.wgmma.group_gemm", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    said = json.loads(next(line for line in result.stdout.splitlines() if line.startswith("SAID "))[5:])
    assert said["equal"] == [True, True, True]
    assert said["findings"] == []
    assert said["counters"]["wgmma.instructions"] > 0
    # Tiles are padded to a multiple of 8 tokens: rows that no copy wrote are read, and nothing of them is stored.
    assert said["counters"]["wgmma.undefined.instructions"] > 0
