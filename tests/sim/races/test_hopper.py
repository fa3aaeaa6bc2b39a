"""The small Hopper kernels are clean; with one line of synchronisation taken away, that is found, with its lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.races.hopper import EDITS, KERNELS

pytest.importorskip("cutlass")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
LOAD, READ = "cute.copy(load, from_x", "cute.autovec_copy(cute.local_tile(source"
WRITE, STORE = "cute.autovec_copy(turned", "cute.copy(store, from_target"
SUM, TOTAL = "store_to_cta((of_ctas", "total = of_ctas[0]"

FOUND = {
    ("copy_transpose", "the barrier after mbarrier.init"): (
        "race",
        "cute.arch.mbarrier_wait",
        "cute.arch.mbarrier_init",
    ),
    ("copy_transpose", "the barrier before the store"): ("race", STORE, WRITE),
    ("reduce_sum", "the barrier of the CTA"): ("race", "of_cta = butterfly(of_warps", "of_warps[warp] = of_warp"),
    ("softmax_online", "the barrier of the CTA"): (
        "race",
        "maxima[warp] = maximum",
        "maximum, total = butterfly(maxima",
    ),
    ("reduce_sum", "the second barrier of the cluster"): ("race", TOTAL, SUM),
    ("copy_transpose", "the wait for the load"): ("race", LOAD, READ),
    ("copy_transpose", "the other warp's wait for the load"): ("race", LOAD, READ),
    ("reduce_sum", "the second wait of the cluster"): ("race", TOTAL, SUM),
    ("copy_transpose", "the wait for the store's reads"): ("exit-before-read", STORE, ""),
    ("reduce_sum", "the release of the second arrive"): ("race", TOTAL, SUM),
    ("copy_transpose", "the proxy fence"): ("proxy", STORE, WRITE),
    ("copy_transpose", "the bytes of the load"): ("race", READ, LOAD),
}
"""By kernel and what is taken away: the kind, and the two accesses."""
SURVIVES = {
    # A proxy fence anywhere on the way from the write to the copy is one (PTX ISA, "Proxy-preserved base causality").
    ("copy_transpose", "the order of fence and barrier"),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    command = [sys.executable, "-m", "tests.sim.races.hopper", str(tmp_path_factory.mktemp("hopper"))]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    lines = [json.loads(line[4:]) for line in result.stdout.splitlines() if line.startswith("RAN ")]
    return {(one["kernel"], one["without"]): one["findings"] for one in lines}


def test_every_edit_has_an_outcome():
    assert {(kernel, label) for label, kernel, _, _ in EDITS} == {*FOUND, *SURVIVES}


@pytest.mark.parametrize("kernel", KERNELS)
def test_as_they_are_they_are_clean_in_every_schedule(ran, kernel):
    assert ran[kernel, ""] == []


@pytest.mark.parametrize(("kernel", "without"), FOUND)
def test_what_is_taken_away_is_found(ran, kernel, without):
    kind, later, earlier = FOUND[kernel, without]
    about = [one["lines"] for one in ran[kernel, without] if one["kind"] == kind]
    assert len(about) == 1, ran[kernel, without]
    pair = about[0][:2] if earlier else about[0][:1]
    # Which of the two comes later in a run is up to the warps, and to the lanes of each.
    assert any(
        all(line.startswith(wanted) for line, wanted in zip(pair, order, strict=False))
        for order in ((later, earlier), (earlier or later, later))
    ), pair


@pytest.mark.parametrize(("kernel", "without"), SURVIVES)
def test_what_is_right_all_the_same_is_clean(ran, kernel, without):
    assert ran[kernel, without] == []
