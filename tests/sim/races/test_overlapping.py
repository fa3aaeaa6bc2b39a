"""Programmatic dependent launch: what the second kernel touches before it has waited for the first races with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.races.overlapping import CASES

pytest.importorskip("cutlass")
ROOT = Path(__file__).parents[3]
RACES = {
    "does not wait": ("value = source[i]", "middle[i] = x[i]"),
    "one warp waits": ("value = source[i]", "middle[i] = x[i]"),
    "waits too late": ("value = source[i]", "middle[i] = x[i]"),
    "writes what the first reads": ("target[i] = value", "middle[i] = x[i]"),
    "is not let start early": ("value = source[i]", "middle[i] = x[i]"),
    "copies in bulk without a wait": ("cute.copy(atom, cute.local_tile(source", "middle[i] = x[i]"),
}
"""By pair, the line that comes too soon and the line of the first kernel."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    command = [sys.executable, "-m", "tests.sim.races.overlapping", str(tmp_path_factory.mktemp("overlapping"))]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    lines = [json.loads(line[5:]) for line in result.stdout.splitlines() if line.startswith("PAIR ")]
    return {one["name"]: one["findings"] for one in lines}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_pairs(ran, name):
    if name not in RACES:
        assert ran[name] == []
        return
    (finding,) = ran[name]
    assert finding["kind"] == "race"
    assert finding["lines"][0].startswith(RACES[name][0])
    assert finding["lines"][1].startswith(RACES[name][1])
    assert "no griddepcontrol.wait is ordered before" in finding["message"]
    assert ("before what the previous one wrote is visible" in finding["message"]) == ("not let" in name)


def test_the_warp_that_did_not_wait_is_named(ran):
    assert "(ld.global.b32) in warp 1 of" in ran["one warp waits"][0]["message"]
