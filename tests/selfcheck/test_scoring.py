from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.numerics import kernel_model as model
from pytest_nvfp4.numerics.families import FAMILIES, default_families
from pytest_nvfp4.numerics.judge import Reference
from pytest_nvfp4.numerics.kernel_model import RIGHT, Steps
from pytest_nvfp4.numerics.mutants import MUTANTS, Mutant
from pytest_nvfp4.numerics.packing import swap_nibbles
from pytest_nvfp4.problem import GPUMODE, GPUMODE_BENCH
from pytest_nvfp4.selfcheck.scoring import (
    SCORING_PROBLEM,
    ScoreError,
    ScoreTable,
    blind_spots,
    score,
    verdict_of,
)

GPUMODE_NEVER_SEES = {
    # Codes that GPU MODE's inputs do not contain: missed whatever the size and the seed (blind_spots).
    "exponent_msb_ignored_a",
    "exponent_msb_ignored_b",
    "six_as_five_a",
    "six_as_five_b",
    "sf_mantissa_ignored",
    "sf_subnormal_flushed",
    "sf_subnormal_as_normal",
    "sf_nan_as_480",
    "sf_top_as_nan",
    "sf_table_typo",
}
GPUMODE_MISSES = GPUMODE_NEVER_SEES | {
    # Sums are multiples of 1/4 that fp16 mostly holds exactly, so roundings do not show at test sizes.
    "fp16_split_k",
    "fp16_accumulate",
    "accumulator_13_bits",
    "fp16_toward_zero",
    "fp16_ties_away",
    # |C| <= 9 K < 65520 up to K = 7279, and multiples of 1/4 are never subnormal.
    "fp16_saturated",
    "fp16_subnormal_flushed",
    # Everything around the tensors is finite.
    "cleared_by_product",
    "sf_beyond_k",
    "sf_padding_added",
    # No group of one row, and three k-tiles at most.
    "lone_row_zero",
    "ring_not_flipped",
}


@pytest.fixture(scope="module")
def table() -> ScoreTable:
    return score(default_families())


def test_there_are_enough_wrong_kernels() -> None:
    assert len(MUTANTS) >= 30
    assert {mutant.part for mutant in MUTANTS.values()} == {
        "scale place",
        "decode",
        "accumulate",
        "convert",
        "tile",
        "outside",
    }
    assert len({mutant.description for mutant in MUTANTS.values()}) == len(MUTANTS)


@pytest.mark.slow
def test_every_wrong_kernel_is_caught_by_a_default_family(table: ScoreTable) -> None:
    assert table.missed_by(*table.defaults) == ()


@pytest.mark.slow
def test_every_default_family_is_needed_or_is_the_contracts_own(table: ScoreTable) -> None:
    """Without any one of the defaults some mutant would pass, but for three that stand for themselves."""
    kept = {"gpumode", "pow2_exact", "edge"}  # the contract's inputs; exact rounding; sizes and overflow
    for name in set(table.defaults) - kept:
        others = tuple(other for other in table.defaults if other != name)
        assert table.missed_by(*others), name


def test_what_gpu_modes_inputs_miss(table: ScoreTable) -> None:
    missed = set(table.missed_by("gpumode"))
    assert missed == GPUMODE_MISSES
    assert len(missed) >= 6


def test_what_gpu_modes_inputs_can_never_see() -> None:
    assert set(blind_spots(FAMILIES["gpumode"])) == GPUMODE_NEVER_SEES
    largest_k = max(group.k for problem in (*GPUMODE, *GPUMODE_BENCH) for group in problem.groups)
    assert (1.5 * 2) ** 2 * largest_k < 65520


def test_blind_spots_are_really_missed(table: ScoreTable) -> None:
    for family in default_families():
        assert set(blind_spots(family)) <= set(table.missed_by(family.name))


@pytest.mark.slow
def test_the_other_families_are_scored_too() -> None:
    others = [family for family in FAMILIES.values() if not family.default]
    table = score(others)
    for family in others:
        missed = set(table.missed_by(family.name))
        assert set(blind_spots(family)) <= missed
        assert len(missed) <= len(MUTANTS) // 2


@pytest.mark.parametrize("index", [0, 7])
def test_gpu_modes_own_cases_miss_them_too(index: int) -> None:
    """The same at official sizes, with the official seed."""
    inputs = FAMILIES["gpumode"].generate(GPUMODE[index])
    references = tuple(Reference.of(group.exact()) for group in inputs.groups)
    names = (*sorted(GPUMODE_NEVER_SEES), "fp16_toward_zero", "fp16_split_k", "sf_padding_added")
    for name in names:
        assert verdict_of(MUTANTS[name].kernel, inputs, references).ok, name
    assert not verdict_of(MUTANTS["sf_transposed"].kernel, inputs, references).ok


def test_nibbles_swapped_in_both_operands_is_no_fault() -> None:
    def swapped(packed: np.ndarray) -> np.ndarray:
        return model.elements(swap_nibbles(packed))

    both = Mutant("both", "decode", "both", Steps(elements_a=swapped, elements_b=swapped))
    families = [FAMILIES[name] for name in ("gpumode", "pow2_exact", "sparse75", "onehot", "nan_pad", "edge")]
    table = score(families, mutants=[both, MUTANTS["nibbles_swapped_a"], MUTANTS["nibbles_swapped_b"]])
    assert not any(table.mismatches["both"].values())
    assert table.mismatches["nibbles_swapped_a"]["gpumode"]
    assert table.mismatches["nibbles_swapped_b"]["gpumode"]


def test_the_right_kernel_reads_the_reordered_factors() -> None:
    inputs = FAMILIES["all_scale"].generate(SCORING_PROBLEM)
    for index, group in enumerate(inputs.groups):
        assert (model.read_scales(group, "a") == group.sfa).all()
        assert (model.read_scales(group, "b") == group.sfb).all()
        assert len(RIGHT(inputs, index)) == 8 + group.group.m + 128


def test_a_right_kernel_that_is_judged_wrong_is_an_error() -> None:
    """Negative control: if the reference were wrong, scores would be refused rather than shown."""
    original = model.Steps.accumulators

    def off_by_one(self: Steps, problem: object, index: int) -> np.ndarray:
        return original(self, problem, index) + 1  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.Steps, "accumulators", off_by_one)
        with pytest.raises(ScoreError, match="right kernel is judged wrong on family 'gpumode'"):
            score([FAMILIES["gpumode"]], mutants=[])


def test_defaults_are_marked() -> None:
    assert tuple(family.name for family in default_families()) == (
        "gpumode",
        "pow2_exact",
        "subnormal_out",
        "onehot",
        "nan_pad",
        "nan_isolated",
        "edge",
    )
