"""Real kernels with all that tcgen05 asks for are clean even with warnings on; what is left out is told, with lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.races.warned import check

pytest.importorskip("cutlass")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
COPY, MMA = "cute.copy(s2t_sfa", "cute.gemm(tiled_mma, tCtAcc, tCrA[None, None, k_block"
LOAD, USE, FREE = "cute.copy(t2r, tDtAcc", "tDrC.store(tDrAcc.load()", "cute.arch.dealloc_tmem"
REPLACES = (COPY, MMA)
"""The shipped kernel's one omission: its scale factors' columns are written again behind the MMAs that read them."""

FENCED = {
    ("persistent_static", "wait::ld"): {
        ("values.store(registers", "cute.copy(tiled_load"),
        ("cute.gemm(tiled_mma", "cute.copy(tiled_load"),
    },
    ("persistent_static", "before_thread_sync"): {("cute.gemm(tiled_mma", "cute.copy(tiled_load")},
    ("persistent_static", "after_thread_sync"): {("cute.copy(tiled_load", "cute.gemm(tiled_mma")},
    ("mma_a_from_tmem", "wait::ld"): {
        ("cute.autovec_copy(results", "cute.copy(tiled_load"),
        ("tmem.free", "cute.copy(tiled_load"),
    },
    ("mma_a_from_tmem", "before_thread_sync"): {
        ("cute.gemm(tiled_mma", "cute.copy(tiled_store"),
        ("tmem.free", "cute.copy(tiled_load"),
    },
    ("mma_a_from_tmem", "after_thread_sync"): {
        ("cute.gemm(tiled_mma", "cute.copy(tiled_store"),
        ("cute.copy(tiled_load", "cute.gemm(tiled_mma"),
    },
    ("two_cta_256_2x1", "wait::ld"): {
        ("cute.autovec_copy(values", "cute.copy(tiled_load"),
        ("tmem.free", "cute.copy(tiled_load"),
    },
    ("two_cta_256_2x1", "before_thread_sync"): {("tmem.free", "cute.copy(tiled_load")},
    ("two_cta_256_2x1", "after_thread_sync"): {("cute.copy(tiled_load", "cute.gemm(tiled_mma")},
    ("map_updates", "wait::ld"): {REPLACES, (USE, LOAD), (FREE, LOAD)},
    ("map_updates", "before_thread_sync"): {REPLACES, (FREE, LOAD)},
    ("map_updates", "after_thread_sync"): {REPLACES, (LOAD, MMA)},
}
"""By kernel and what is left out: the user's lines that must be named, the later one first."""

ALONE = {
    "wait::ld #0": {REPLACES, (USE, LOAD), (FREE, LOAD)},
    "fence::before_thread_sync #1": {REPLACES, (FREE, LOAD)},
    "fence::after_thread_sync #2": {REPLACES, (LOAD, MMA)},
    # What orders an allocation and its release is synchronous; the full barriers guard shared memory only.
    "fence::before_thread_sync #0": {REPLACES},
    "fence::after_thread_sync #0": {REPLACES},
    "fence::after_thread_sync #1": {REPLACES},
    "fence::after_thread_sync #3": {REPLACES},
}
"""The shipped kernel without one of what it has."""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    command = [sys.executable, "-m", "tests.sim.races.warned", str(tmp_path_factory.mktemp("warned"))]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    ran = [json.loads(line[7:]) for line in result.stdout.splitlines() if line.startswith("WARNED ")]
    return {(one["target"], one["name"]): one["findings"] for one in ran}


@pytest.mark.slow
def test_a_kernel_with_all_waits_and_fences_is_clean(said):
    for target in ("persistent_static", "mma_a_from_tmem", "two_cta_256_2x1"):
        assert said[target, "fenced"] == []
        assert said[target, "as it is"] != []


def test_the_shipped_kernel_leaves_out_one_thing_that_official_kernels_leave_out(said):
    for name in ("as it is", "fenced"):
        check(said["map_updates", name], {REPLACES})
        assert "no pipelined pair" in said["map_updates", name][0]["message"]


@pytest.mark.parametrize(("target", "without"), FENCED)
def test_each_kind_of_omission_is_told(said, target, without):
    check(said[target, f"fenced without {without}"], FENCED[target, without])
    named = "without tcgen05.wait::ld" if without == "wait::ld" else f"tcgen05.fence::{without} of"
    told = [finding["message"] for finding in said[target, f"fenced without {without}"]]
    assert any(named in message for message in told)


@pytest.mark.parametrize("name", ALONE)
def test_each_wait_and_fence_of_the_shipped_kernel(said, name):
    check(said["map_updates", name], ALONE[name])


def test_none_is_forgotten(said):
    alone = {name for target, name in said if target == "map_updates" and "#" in name}
    assert alone == set(ALONE)
