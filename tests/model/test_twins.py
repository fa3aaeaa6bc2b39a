"""The GEMM twins, of which recordings are taken, compute exact results in the simulator and are free of races.

Their recordings with and without data are equal, as are those of the grouped GEMMs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.model import twin_worker
from tests.model.kernels.group_gemm.versions import VERSIONS
from tests.waiting import LONGEST_S

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(package) for package in ("cutlass", "torch")), reason="needs the DSL and torch"
    ),
]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("arch", "cases"), [("sm_100a", twin_worker.BLACKWELL), ("sm_90a", twin_worker.HOPPER)])
def test_twins_are_exact_and_free_of_races(arch, cases, tmp_path):
    command = [sys.executable, "-m", "tests.model.twin_worker", arch, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    assert result.returncode == 0, result.stderr[-4000:]
    said: list[dict[str, Any]] = [
        json.loads(line.removeprefix("CASE ")) for line in result.stdout.splitlines() if line.startswith("CASE ")
    ]
    assert [one["name"] for one in said] == list(cases)
    for one in said:
        assert "error" not in one, one["error"]
        assert (one["wrong"], one["findings"], one["told"], one["alike"]) == (0, [], True, True), one
        (positional, _, _, clusters) = cases[one["name"]]
        assert len(one["launches"]) == 1
        assert one["launches"][0][2] == clusters, f"{positional} launches {one['launches']}"


def test_grouped_gemms_are_recorded_alike_without_data(tmp_path):
    command = [sys.executable, "-m", "tests.model.dataless_worker", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    assert result.returncode == 0, result.stderr[-4000:]
    said = [json.loads(line.removeprefix("KERNEL ")) for line in result.stdout.splitlines() if "KERNEL" in line]
    assert [one["name"] for one in said] == ["map_updates", *VERSIONS]
    for one in said:
        assert "error" not in one, one["error"]
        assert one["alike"], one
        assert one["launches"] > 0
