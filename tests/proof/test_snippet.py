"""The emitted CTA map inside a kernel: compiled by the DSL as it is, run CTA by CTA in the simulator."""

import pytest

from pytest_nvfp4.proof.snippet import cta_snippet
from tests.proof.snippets import expected, run

pytest.importorskip("cutlass")

PROBLEMS = [
    [[40, 256, 256], [0, 128, 256], [300, 384, 512]],
    [[128, 128, 256]],
    [[0, 128, 256], [0, 128, 256]],
    [*[[0, 128, 256]] * 3, [129, 512, 256], [0, 256, 256], [1, 128, 256], [0, 128, 256]],
    [[80, 384, 256], [128, 256, 512], [256, 128, 256]],
    [[1, 128, 256]] * 17,
]


@pytest.mark.slow
def test_every_cta_of_a_simulated_launch_has_its_tile(tmp_path):
    """The last source is a negative control: '<' for '<='."""
    wrong = cta_snippet().replace("table[middle, 0] <= b", "table[middle, 0] < b")
    asked = [("binary", "m", 128, 128), ("scan", "n", 64, 256)]
    sources = [cta_snippet(search=search, raster=raster, tile_m=m, tile_n=n) for search, raster, m, n in asked]
    said = run(tmp_path, PROBLEMS, [*sources, wrong])
    assert said["findings"] == []
    for (_, raster, tile_m, tile_n), runs in zip(asked, said["runs"][:2], strict=True):
        for problem, got in zip(PROBLEMS, runs, strict=True):
            wanted = expected(problem, tile_m=tile_m, tile_n=tile_n, n_major=raster == "n")
            assert got["tiles"] == wanted
            assert got["grid"] == len(wanted)
    control = said["runs"][2][4]["tiles"]
    assert control != expected(PROBLEMS[4], tile_m=128, tile_n=128, n_major=False)
