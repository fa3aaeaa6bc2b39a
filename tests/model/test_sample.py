"""A sample of the clusters of a launch takes as long as all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_nvfp4.model import replay as replay_module
from pytest_nvfp4.model.constants import load_device
from pytest_nvfp4.model.recording import Cluster, Recording
from pytest_nvfp4.model.replay import Conditions, replay
from pytest_nvfp4.model.servers import L2, in_lockstep

from .builder import footprint
from .main_loop import main_loop

B200 = load_device("b200")


def gemm(rows: int, columns: int, steps: int, ctas_per_sm: int) -> Recording:
    """Return a GEMM with a CTA for each tile of 128 x 128, whose operands are shared along rows and columns."""
    loop = main_loop(128, 128, 128, 3, steps, cold=True)
    blocks = (rows + columns) * steps
    prints = tuple(footprint(128 * index, 128) for index in range(blocks))
    clusters = []
    for index in range(rows * columns):
        row, column = index % rows, rows + index // rows
        slots = np.ravel([(row * steps + step, column * steps + step) for step in range(steps)])
        clusters.append(Cluster(index, 0, slots.astype(np.int32)))
    return replace(loop, clusters=tuple(clusters), footprints=prints, ctas_per_sm=ctas_per_sm)


@pytest.mark.parametrize(("ctas_per_sm", "dram"), [(1, 7.2), (2, 2.0)])
def test_a_sample_is_within_three_percent_of_all(ctas_per_sm: int, dram: float, monkeypatch: pytest.MonkeyPatch):
    made = gemm(30, 20, 10, ctas_per_sm)
    conditions = Conditions(dram_tb_s=dram)
    whole = replay(made, B200, conditions=conditions)
    monkeypatch.setattr(replay_module, "MOST_EVENTS", replay_module.events_of(made) // 6)
    sample = replay(made, B200, conditions=conditions)
    assert any("clusters, each for" in note for note in sample.notes)
    assert sample.kernel_us == pytest.approx(whole.kernel_us, rel=0.03)
    assert sample.bound == whole.bound
    for unit in ("DRAM", "L2", "tensor core"):
        assert sample.busy[unit][1] == pytest.approx(whole.busy[unit][1], rel=0.1)


def test_lockstep_counts_as_the_contents_of_l2_do():
    random = np.random.default_rng(1)
    atoms = random.integers(0, 800, 4000)
    lines = random.integers(1, 5, 800).astype(float)[atoms]
    writes = atoms > 600
    cache = L2(800, 700.0)
    missed, written = 0.0, 0.0
    for atom, size, write in zip(atoms.tolist(), lines.tolist(), writes.tolist(), strict=True):
        before = cache.dirty
        if write:
            written += cache.write(((atom, size),))
        else:
            moved = cache.read(((atom, size),))
            written += before - cache.dirty
            missed += moved - (before - cache.dirty)
    found, evicted = in_lockstep(atoms, lines, writes, 700.0)
    assert found[~writes].sum() == pytest.approx(missed, rel=5e-3)
    assert evicted.sum() == pytest.approx(written, rel=2e-2)
