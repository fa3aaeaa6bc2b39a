"""The tables of points tell their sources, can be measured unattended, and are read strictly."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.problem import parse_shape
from tests.model.tables import DATA, read_table, write_table
from tests.waiting import LONGEST_S

ROOT = Path(__file__).parents[2]
TINY = {"hopper_gemm": {"m": "256", "n": "128", "k": "192"}, "hopper_transpose": {"m": "72", "n": "136"}}
SHARED_BYTES = 227 * 1024


@pytest.mark.parametrize(
    ("name", "points"),
    [("hopper_gemm", 24), ("hopper_group_gemm", 24), ("hopper_transpose", 8), ("group_gemm_b200", 16)],
)
def test_a_table_has_all_its_points_once(name, points):
    rows = read_table(DATA / f"{name}.csv")
    assert len({tuple(row.items()) for row in rows}) == len(rows) == points
    if name.startswith("hopper"):
        assert [row["split"] for row in rows] == ["open", "held"] * (points // 2)
        for row in rows:
            assert row["measured_us"] == "" or float(row["measured_us"]) > 0


def test_the_points_of_the_grouped_gemm_are_problems_that_it_takes():
    for row in read_table(DATA / "hopper_group_gemm.csv"):
        for group in parse_shape(row["problem"].replace("+", ",")).groups:
            assert group.n % 128 == 0
            assert group.k % 256 == 0


def test_the_points_of_the_gemm_fit_shared_memory():
    for row in read_table(DATA / "hopper_gemm.csv"):
        tile_m, tile_n, tile_k, stages = (int(row[key]) for key in ("tile_m", "tile_n", "tile_k", "stages"))
        operands = (tile_m + tile_n) * tile_k * (1 if row["kind"] == "fp8" else 2) * stages
        subtiles = 4 * 64 * 32 * 2  # two for each storing group, of 64 rows a warpgroup
        assert operands + subtiles + 2048 <= SHARED_BYTES, row


def test_a_table_without_source_or_with_a_short_row_is_refused(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text("m,us\n1,2\n")
    with pytest.raises(ValueError, match=r"points\.csv does not tell its source"):
        read_table(path)
    path.write_text("# measured somewhere\nm,us\n1\n")
    with pytest.raises(ValueError, match="too short or too long"):
        read_table(path)


@pytest.mark.slow
@pytest.mark.skipif(
    not all(importlib.util.find_spec(package) for package in ("cutlass", "torch")), reason="needs the DSL and torch"
)
def test_the_script_measures_unattended(tmp_path):
    for name, small in TINY.items():
        path = tmp_path / f"{name}.csv"
        path.write_text((DATA / f"{name}.csv").read_text())
        write_table(path, [{**row, **small} for row in read_table(path)][7:8])
    command = [sys.executable, "-m", "tests.model.measure_worker", str(tmp_path), *(f"{name}.csv" for name in TINY)]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    for name in TINY:
        (row,) = read_table(tmp_path / f"{name}.csv")
        # The late round does not count, and a round without a call takes 1 us.
        assert (row["measured_us"], row["p10_us"], row["p90_us"]) == ("2.50", "2.50", "2.50")
