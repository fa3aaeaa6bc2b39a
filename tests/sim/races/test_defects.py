"""Real kernels with one edge of their synchronisation removed: found, with the right pair of the user's lines.

The table is ``seeds``; what survives says why. The originals are clean.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.races.seed import Found, Survives
from tests.sim.races.seeds import SEEDS

pytest.importorskip("cutlass")
ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    command = [sys.executable, "-m", "tests.sim.races.worker", str(tmp_path_factory.mktemp("races"))]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    return [json.loads(line[5:]) for line in result.stdout.splitlines() if line.startswith("SEED ")]


@pytest.fixture(scope="module")
def by_name(ran):
    return {one["name"]: one for one in ran if one["name"]}


def test_the_originals_are_clean(ran):
    originals = [one for one in ran if not one["name"]]
    assert {one["target"] for one in originals} == {seed.target for seed in SEEDS}
    assert {one["target"]: one["findings"] for one in originals if one["findings"]} == {}


def test_there_are_enough():
    found = [seed for seed in SEEDS if isinstance(seed.outcome, Found)]
    assert len(SEEDS) >= 40
    assert len(found) >= 0.9 * len(SEEDS)
    assert len({seed.name for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)
def test_each(by_name, seed):
    said = by_name[seed.name]
    assert "error" not in said, said["error"]
    want = seed.outcome
    if isinstance(want, Survives):
        assert said["findings"] == []
        return
    about = [one for one in said["findings"] if one["kind"] == want.kind]
    assert about, said["findings"]
    if want.earlier:
        assert any(want.later in one["lines"][0] and want.earlier in one["lines"][1] for one in about), about
    else:
        assert any(want.later in one["at"] or want.later in one["message"] for one in about), about


def test_one_defect_is_told_once(by_name):
    several = {
        name: [one["message"][:120] for one in said["findings"] if one["kind"] in ("race", "proxy")]
        for name, said in by_name.items()
    }
    assert {name: told for name, told in several.items() if len(told) > 2} == {}
    assert sum(len(told) > 1 for told in several.values()) < 0.2 * len(several)
