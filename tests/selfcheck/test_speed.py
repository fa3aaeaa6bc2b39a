"""``nvfp4 bench-self``: the figures are differences of medians, and the layouts measured are not all alike."""

import json
import shutil
from collections import Counter

import pytest

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.layout.diff import diff_listings
from pytest_nvfp4.selfcheck.speed import layouts, processes, simulator
from pytest_nvfp4.selfcheck.speed.command import _kernel
from pytest_nvfp4.selfcheck.speed.figures import Figure, Kernel, Machine
from tests.cli.helpers import ROOT


def test_a_figure_is_a_median_less_that_of_its_baseline() -> None:
    figure = Figure("x", "something", "s", [3.0, 1.0, 9.0], [1.0, 0.5, 0.75], "nothing")
    assert figure.value == 3.0 - 0.75
    assert "3.000 less 0.750 for nothing; median of 3, 1 .. 9" in figure.text()
    assert figure.to_json()["samples"] == [3.0, 1.0, 9.0]
    assert Figure("y", "rate", "a second", [2000.0, 3000.0, 2500.0]).value == 2500.0


def test_listings_differ_where_they_say_and_repeat_nowhere() -> None:
    old, new = layouts.listings(0, count=400)
    assert len({record.raw for record in old.records}) == 400
    changed = diff_listings(old, new)
    assert len(changed.changes) == 4
    assert changed.identical == 396
    other, _ = layouts.listings(1, count=400)
    assert not {record.raw for record in old.records} & {record.raw for record in other.records}
    kinds = Counter(record.info.family for record in old.records)
    assert set(kinds) == {"memref", "layout", "coord_tensor"}


def test_comparing_layouts_gives_all_its_figures() -> None:
    found = {figure.name: figure for figure in layouts.figures(2, count=100, decisions=50)}
    assert set(found) == {"diff", "parse", "sameness-text", "sameness"}
    assert all(len(figure.samples) == 2 and figure.value > 0 for figure in found.values())


def test_the_machine_is_named() -> None:
    machine = Machine.this()
    assert machine.cpu
    assert machine.cores >= 1
    assert machine.python in str(machine)
    assert Machine("c", 2, 3.5, "s", "p", "t", "d").busy
    assert not Machine("c", 2, 0.5, "s", "p", "t", "d").busy


def test_a_run_that_fails_is_no_measurement(tmp_path) -> None:
    (tmp_path / "test_bad.py").write_text("def test_bad():\n    assert False\n")
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    with pytest.raises(InputError, match="ended with exit code 1"):
        processes.Pytest(tmp_path, tmp_path / "cache").run("-q", "test_bad.py", plugin=False)


def test_options_of_the_shell_do_not_reach_the_runs(tmp_path, monkeypatch) -> None:
    (tmp_path / "test_good.py").write_text("def test_good():\n    pass\n")
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    seconds, text = processes.Pytest(tmp_path, tmp_path / "cache").run("-q", "test_good.py", plugin=False)
    assert seconds > 0
    assert "1 passed" in text


HOPPER = ROOT / "kernels" / "nvfp4_group_gemm" / "sm90.py"


def test_the_architecture_is_that_of_the_options_or_of_the_settings(tmp_path) -> None:
    copy = tmp_path / HOPPER.name
    shutil.copyfile(HOPPER, copy)
    assert _kernel(HOPPER, None) == Kernel(HOPPER, "sm_90a")
    assert [_kernel(copy, arch).arch for arch in (None, "sm_90a")] == ["sm_100a", "sm_90a"]


@pytest.mark.slow
def test_the_simulator_runs_a_kernel_for_its_architecture() -> None:
    (problem,) = simulator._run(Kernel(HOPPER, "sm_90a"), ["gpumode-0"], rounds=1)
    assert problem["ctas"] == 22
    with pytest.raises(InputError, match="--arch sm_100a"):
        simulator._run(Kernel(HOPPER, "sm_100a"), ["gpumode-0"], rounds=1)


def test_a_kernel_of_another_contract_is_refused(cli) -> None:
    kernel = ROOT / "kernels" / "reduce_sum" / "sm90.py"
    shown = cli("bench-self", kernel, "--only", "simulator")
    assert shown.code != 0
    assert "the figures are of shapes of nvfp4_group_gemm" in shown.err


@pytest.mark.slow
def test_the_whole_command(cli) -> None:
    kernel = ROOT / "kernels" / "nvfp4_group_gemm" / "steps" / "map_updates.py"
    before = sorted(path.name for path in kernel.parent.iterdir())
    shown = cli("bench-self", kernel, "--rounds", "1", "--json")
    assert shown.code == 0, shown.err
    data = json.loads(shown.out)
    figures = {figure["name"]: figure for figure in data["figures"]}
    assert set(figures) == {
        *("diff", "parse", "sameness-text", "sameness"),
        *("startup", "warm-gate", "cold-gate", "collect"),
        *("numpy-product", "simulate-largest", "simulate-ratio"),
        *("simulate-tests", "simulate-scalar", "simulate-memory"),
    }
    assert figures["cold-gate"]["value"] > figures["warm-gate"]["value"]
    assert sorted(path.name for path in kernel.parent.iterdir()) == before
