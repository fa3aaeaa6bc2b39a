"""The emitted CTA map inside a kernel: compiled by the DSL as it is, run CTA by CTA in the simulator."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.host import redirect
from pytest_nvfp4.proof.snippet import cta_snippet

pytest.importorskip("cutlass")

ROOT = Path(__file__).parents[2]
PROBLEMS = [
    [[40, 256, 256], [0, 128, 256], [300, 384, 512]],
    [[128, 128, 256]],
    [[0, 128, 256], [0, 128, 256]],
    [*[[0, 128, 256]] * 3, [129, 512, 256], [0, 256, 256], [1, 128, 256], [0, 128, 256]],
    [[80, 384, 256], [128, 256, 512], [256, 128, 256]],
    [[1, 128, 256]] * 17,
]


def run(tmp_path, problems, sources):
    """What each CTA was given by each source, by the worker."""
    asked, dump = tmp_path / "problems.json", tmp_path / "dump"
    asked.write_text(json.dumps(problems))
    dump.mkdir()
    snippets = [tmp_path / f"emitted{number}.py" for number in range(len(sources))]
    for snippet, source in zip(snippets, sources, strict=True):
        snippet.write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "tests.proof.snippet_worker", str(asked), *map(str, snippets)],
        cwd=ROOT,
        env={**os.environ, **redirect.environment(dump), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("EMITTED "))
    return json.loads(line.removeprefix("EMITTED "))


def expected(problem, *, tile_m, tile_n, n_major):
    found = []
    for group, (m, n, _) in enumerate(problem):
        tiles = itertools.product(range(0, n, tile_n), range(0, m, tile_m))
        order = [(x // tile_m, y // tile_n) for y, x in tiles]
        found += [[group, x, y, 1] for x, y in (sorted(order) if n_major else order)]
    return found


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
