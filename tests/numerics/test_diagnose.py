"""Every wrong kernel is named by what it left, and a right one by nothing."""

from __future__ import annotations

import time
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from pytest_nvfp4.numerics import diagnose
from pytest_nvfp4.numerics.diagnose import explain
from pytest_nvfp4.numerics.mutants import MUTANTS
from tests.numerics.diagnosed import inputs, right, scaled

SHOWN = (
    "sf_plain",
    "sf_transposed",
    "sf_bands_exchanged",
    "sf_quadrant_only",
    "sf_k_reversed",
    "sf_other_group",
    "sfb_ignored",
    "nibbles_swapped_a",
    "sign_dropped_b",
    "last_k_tile_dropped",
    "first_k_tile_twice",
    "tile_transposed",
    "stale_stage",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_a_wrong_kernel_is_named(name: str) -> None:
    mutant = MUTANTS[name]
    got = inputs().groups[0].split_c(mutant.kernel(inputs(), 0))[1]
    wrong = got != right()
    assert wrong.any()
    found = explain(inputs(), 0, got, wrong, budget_s=900)
    assert any(mutant.description in each.text for each in found), found
    assert found[0].share >= 0.98


@pytest.mark.parametrize(
    ("columns", "said"),
    [(np.arange(64, 128), "64-127"), (np.r_[64:128, 192:256], "64-255 (128 of them)")],
    ids=["a part", "a part of each tile"],
)
def test_rows_that_one_of_several_stores_exchanges(columns: np.ndarray, said: str) -> None:
    by_rows, by_columns = right(), right()
    by_rows[:, columns] = by_rows[np.arange(256) ^ 1][:, columns]
    by_columns[columns] = by_columns[columns][:, np.arange(256) ^ 1]
    for got, text in (
        (by_rows, f"rows of C of each pair exchanged, in columns {said}"),
        (by_columns, f"columns of C of each pair exchanged, in rows {said}"),
    ):
        first, *_ = explain(inputs(), 0, got, got != right(), budget_s=900)
        assert (first.text, first.share) == (text, 1)


def test_a_group_that_nobody_wrote_is_no_ragged_tile_left_out() -> None:
    """Group 1 is one ragged tile high, so that leaving that tile out leaves out everything."""
    poison = inputs().groups[1].guard.poison
    nothing = np.full((72, 384), poison, np.uint16)
    assert explain(inputs(), 1, nothing, np.ones_like(nothing, bool), budget_s=900) == []
    part = right(1)
    part[:, 256:] = poison
    assert explain(inputs(), 1, part, part != right(1), budget_s=900)


def test_zeros_are_no_evidence_for_any_fault() -> None:
    """With one k-tile of 256, "the last 256 elements of k left out" predicts the zeros that every such fault gives."""
    got = np.zeros((72, 384), np.uint16)
    wrong = got != right(1)
    assert explain(inputs(), 1, got, wrong, budget_s=900) == []
    assert "nothing was accumulated" in diagnose.zeros(got, wrong)
    tile = right()
    tile[:128] = 0
    assert explain(inputs(), 0, tile, tile != right(), budget_s=900) == []
    assert diagnose.zeros(tile, tile != right())
    tile[0, 0] = 0x3C00
    assert not diagnose.zeros(tile, tile != right()), "one output that was computed, wrongly"
    assert not diagnose.zeros(right(), np.zeros((256, 256), bool))


def test_exchanged_scale_rows_of_a_alone_are_found_by_search() -> None:
    rows = [i // 128 * 128 + {1: 2, 2: 1}.get(i % 128 // 32, i % 128 // 32) * 32 + i % 32 for i in range(256)]
    got = scaled(rows, list(range(256)))
    found = explain(inputs(), 0, got, got != right(), budget_s=900)
    assert [each.text for each in found] == ["SFA rows 32-63 and 64-95 of each 128 exchanged"]


def test_shifted_scale_rows_of_b_alone_are_found_by_search() -> None:
    rows = [*range(128), *(i - 4 for i in range(128, 256))]
    got = scaled(list(range(256)), rows)
    found = explain(inputs(), 0, got, got != right(), budget_s=900)
    assert "SFB rows 4 earlier" in [each.text for each in found]


@pytest.mark.slow
def test_moved_rows_of_the_output_are_found() -> None:
    got = right()
    got[:128] = got[:128].reshape(4, 32, -1).transpose(1, 0, 2).reshape(128, -1)
    found = explain(inputs(), 0, got, got != right(), budget_s=900)
    assert any(each.text.startswith("rows of C of each 128 in the order of a transposed") for each in found)


def test_a_right_output_has_nothing_to_explain() -> None:
    assert explain(inputs(), 0, right(), np.zeros((256, 256), bool)) == []


def test_noise_is_not_explained() -> None:
    got = np.random.default_rng(1).integers(0, 0x7C00, (256, 256)).astype(np.uint16)
    assert explain(inputs(), 0, got, got != right(), budget_s=900) == []


def test_time_that_passes_while_others_have_the_machine_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks on the wall have gone on by a day at each look."""
    days = (86400.0 * day for day in count())
    walls = {name: lambda: next(days) for name in ("monotonic", "perf_counter", "time")}
    monkeypatch.setattr(diagnose, "time", SimpleNamespace(thread_time=time.thread_time, **walls))
    got = right().copy()
    got[1] = right()[0]
    assert explain(inputs(), 0, got, got != right())
    assert explain(inputs(), 0, got, got != right(), budget_s=0) == []
