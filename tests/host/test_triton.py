"""Triton's kernels on the simulator, called as always, in a process without a C compiler."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("triton"), "sm_100a", *CASES)


def run(folder: Path, arch: str, *cases: str) -> dict[str, Any]:
    path = os.pathsep.join([str(ROOT), str(folder)])
    result = subprocess.run(
        [sys.executable, "-W", "ignore", str(KERNELS), str(folder), arch, *cases],
        cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    lines = [line for line in result.stdout.splitlines() if line.startswith("SAID ")]
    assert lines, f"the worker failed ({result.returncode}):\n{result.stdout}\n{result.stderr}"
    assert "Exception ignored" not in result.stderr, "the end of a kernel asks Triton's own driver for its module"
    said: dict[str, Any] = json.loads(lines[-1].removeprefix("SAID "))
    return said


ROOT = Path(__file__).parents[2]
KERNELS = Path(__file__).parent / "triton_kernels.py"
CASES = (
    "add",
    "product",
    "pairs",
    "maps",
    "own_maps",
    "special",
    "scaled",
    "profiled",
    "tuned",
    "unrestored",
    "measured",
    "wrapped",
    "hooks",
    "beyond",
    "total",
    "in_place",
    "spills",
    "interpreted",
    "gluon",
    "gluon_unordered",
)


def test_elements(said):
    assert said["add"] == {"result": True, "findings": [], "launches": [["add", [4, 1, 1], [128, 1, 1], [1, 1, 1]]]}


def release(said: dict[str, Any]) -> tuple[int, ...]:
    """Return the release of Triton."""
    return tuple(int(part) for part in said["version"].split(".")[:2])


def test_products_on_the_tensor_core(said):
    assert said["product"] == {
        "result": True, "findings": [], "launches": [["product", [2, 2, 1], [128, 1, 1], [1, 1, 1]]]
    }  # fmt: skip


def test_products_on_pairs_of_ctas(said):
    if release(said) < (3, 6):  # it allocates for pairs and multiplies for one CTA
        assert ".cta_group::1, but an earlier tcgen05 instruction" in said["pairs"]["result"]
        return
    assert said["pairs"] == {
        "result": True, "findings": [], "launches": [["product", [4, 2, 1], [128, 1, 1], [2, 1, 1]]]
    }  # fmt: skip


@pytest.mark.parametrize("case", ["maps", "special"])
def test_tensor_maps_and_specialised_warps(said, case):
    assert said[case]["result"] is True
    if case == "special" and release(said) < (3, 7):
        assert said[case]["findings"]
        assert all("tensormap.replace" in finding for finding in said[case]["findings"])
    else:
        assert said[case]["findings"] == []
    ((_, _, block, _),) = said[case]["launches"]
    assert block == [256 if case == "special" else 128, 1, 1]  # four more warps than ``num_warps``


def test_scratch_memory_comes_from_the_program_s_allocator(said):
    refused, equal = said["own_maps"]["result"]
    assert "no allocator was set" in refused
    assert equal


def test_nvfp4_is_exact(said):
    *right, copies = said["scaled"]["result"]
    assert right == [True, True]
    assert copies, "no scale factor was copied to tensor memory"


def test_a_profile_has_scopes_and_no_times(said):
    assert said["profiled"]["result"] == [[2.0] * 16, [["ours"]]]


def test_the_first_configuration_that_fits_is_executed_once_and_never_measured(said):
    equal, launched, time, after, best = said["tuned"]["result"]
    assert equal
    assert best.startswith("BM: 64, BN: 64, BK: 64")
    assert (launched, after) == (1, 2)
    assert time == "nan"


def test_benchmarks_that_would_change_an_argument_are_warned_of(said):
    warned = said["unrestored"]["result"]
    ((total, at_total),), ((out, at_out),) = warned["out"], warned["none"]  # each text once
    assert out.startswith("accumulated adds to its argument out. ")
    assert "each of its 2 configurations" in out
    assert out.endswith('write reset_to_zero=["out"]')
    assert total.startswith("accumulated reads and writes its argument total. ")
    assert total.endswith('write restore_value=["total"]')
    assert (at_out, at_total) == (7, 9)
    assert [warned[name] for name in ("both", "hook", "of configurations", "one")] == [[]] * 4


def test_a_driver_without_a_clock_answers_code_that_measures(said):
    assert said["measured"]["result"] == ["cuda:0", "[nan, nan]"]


def test_kernels_that_torch_wraps_run_as_if_called_directly(said):
    operators, values = said["wrapped"]["result"]
    assert operators == [[True, True], [7]] * 2
    assert values == [True] * 3
    assert len(said["wrapped"]["launches"]) == 2 * 3 + 3
    assert said["wrapped"]["findings"] == []


def test_hooks_and_arguments(said):
    *names, refused = said["hooks"]["result"]
    assert names == ["add", "add"]  # a launch without CTAs has hooks, too
    assert said["hooks"]["launches"] == []
    assert "argument 0" in refused
    assert "cpu tensor" in refused


def test_the_interpreter_is_refused_and_triton_is_restored_at_the_end(said):
    assert "add would run in Triton's interpreter" in said["interpreted"]["result"]
    assert not any("pytest_nvfp4" in module for module in said["after"])


def test_a_fault_names_the_line(said):
    message, line = said["beyond"]["result"]
    assert "0 bytes after the end" in message
    assert line == line_of("tl.store(out + i, tl.load(x + i))")


def test_a_race_names_the_line(said):
    kinds = {kind for kind, _ in said["total"]["result"]}
    assert kinds == {"race"}
    assert said["total"]["findings"][0].startswith(line_of("tl.store(out, tl.load(out) + value)"))


def test_updates_in_place_race_only_if_replicas_use_the_old_value(said):
    few, one, findings, *races = said["in_place"]["result"]
    assert (few, one, findings) == (True, True, 0)
    line = int(line_of("value = tl.load(one)").partition(":")[2])
    assert races == [["race", line]]


def test_registers_and_spills_are_those_of_ptxas(said):
    (most, spilled), (more, less), (few, none) = said["spills"]["result"]
    assert most == 64
    assert (spilled > 0, less, none) == (True, 0, 0)  # a thread has 128 values
    assert few < most < more


def test_gluon(said):
    if release(said) < (3, 7):
        pytest.skip("Gluon's functions have other names")
    assert said["gluon"]["result"] is True
    assert said["gluon"]["findings"] == []
    assert said["gluon_unordered"]["result"] == ["in-flight", "race"]  # nothing waits before the invalidation
    file = KERNELS.parent / "gluon_kernels.py"
    assert said["gluon_unordered"]["findings"][0].startswith(line_of("tcgen05_mma(of_a", file))
    assert line_of("tma.async_load(a", file) in said["gluon_unordered"]["findings"][0]


def line_of(text: str, file: Path = KERNELS) -> str:
    (number,) = [n for n, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1) if text in line]
    return f"{file.name}:{number}"


def test_hopper(tmp_path):
    said = run(tmp_path, "sm_90a", "add", "product", "maps")
    assert [said[case]["result"] for case in ("add", "product", "maps")] == [True, True, True]
    assert [said[case]["findings"] for case in ("add", "product", "maps")] == [[], [], []]
