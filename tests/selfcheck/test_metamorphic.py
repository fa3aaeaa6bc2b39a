from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_nvfp4.numerics import kernel_model as model
from pytest_nvfp4.numerics.arrays import HalfBits, NumericsError
from pytest_nvfp4.numerics.families import FAMILIES
from pytest_nvfp4.numerics.inputs import ProblemInput
from pytest_nvfp4.numerics.kernel_model import RIGHT, Kernel
from pytest_nvfp4.numerics.mutants import MUTANTS
from pytest_nvfp4.problem import Group, Problem
from pytest_nvfp4.selfcheck.metamorphic import RELATIONS, Relation, Violation

PROBLEM = Problem("p", (Group(0, 128, 256), Group(40, 128, 256), Group(136, 128, 512)))


def outputs(kernel: Kernel, inputs: ProblemInput) -> list[HalfBits]:
    buffers = [kernel(inputs, index) for index in range(len(inputs.groups))]
    return [group.split_c(buffer)[1] for group, buffer in zip(inputs.groups, buffers, strict=True)]


def check(relation: Relation, kernel: Kernel, family: str) -> tuple[Violation, ...]:
    inputs = FAMILIES[family].generate(PROBLEM)
    return relation.check(inputs, outputs(kernel, inputs), outputs(kernel, relation.change(inputs)))


@pytest.mark.parametrize("family", ["gpumode", "pow2_exact", "all_scale", "nan_pad", "subnormal_out"])
@pytest.mark.parametrize("name", list(RELATIONS))
def test_the_right_kernel_keeps_every_relation(name: str, family: str) -> None:
    assert check(RELATIONS[name], RIGHT, family) == ()


@pytest.mark.parametrize(
    ("name", "mutant", "family"),
    [
        ("group_permutation", "stale_tensor_map", "pow2_exact"),
        ("group_permutation", "sf_other_group", "pow2_exact"),
        ("row_permutation", "sf_first_row_tile", "pow2_exact"),
        ("row_permutation", "rows_unwritten", "pow2_exact"),
        ("column_permutation", "tile_transposed", "all_scale"),
        ("double", "sf_subnormal_as_normal", "subnormal_sf"),
        ("double", "sf_as_e5m2", "all_scale"),
        ("negate", "int4_a", "pow2_exact"),
        ("block_permutation", "last_block_dropped", "pow2_exact"),
        ("nan_isolation", "cleared_by_product", "all_scale"),
        ("nan_isolation", "sf_other_group", "all_scale"),
    ],
)
def test_relations_catch_wrong_kernels(name: str, mutant: str, family: str) -> None:
    assert check(RELATIONS[name], MUTANTS[mutant].kernel, family)


def test_nibble_swap_catches_a_kernel_that_treats_the_two_elements_of_a_byte_differently() -> None:
    def low_only(packed: np.ndarray) -> np.ndarray:
        return model.elements(packed & np.uint8(0x0F))

    assert check(RELATIONS["nibble_swap"], model.Steps(elements_a=low_only), "pow2_exact")
    # Exchanging the elements of one operand is carried along by the relation: not what it is for.
    assert check(RELATIONS["nibble_swap"], MUTANTS["nibbles_swapped_a"].kernel, "pow2_exact") == ()


def test_a_kernel_that_changes_from_run_to_run_breaks_repeat() -> None:
    calls = iter(range(100))

    def racing(problem: ProblemInput, index: int) -> HalfBits:
        buffer = RIGHT(problem, index)
        if index == 2:
            problem.groups[index].split_c(buffer)[1][7, 9] ^= next(calls) & 1
        return buffer

    (violation,) = check(RELATIONS["repeat"], racing, "all_scale")
    assert (violation.group, violation.count, violation.row, violation.col) == (2, 1, 7, 9)
    assert "group 2: 1 outputs differ" in str(violation)


def test_changes_keep_the_padding_and_the_first_inputs() -> None:
    inputs = FAMILIES["nan_pad"].generate(PROBLEM)
    before = inputs.digest()
    for relation in RELATIONS.values():
        changed = relation.change(inputs)
        assert inputs.digest() == before, relation.name
        flat = changed.groups[-1].sfa_flat() if relation.name != "group_permutation" else changed.groups[0].sfa_flat()
        assert (flat == 0x7F).sum() >= (256 - 136) * 32, relation.name
        if relation.name != "repeat":
            assert changed.digest() != before, relation.name


def test_doubling_says_when_it_does_not_apply() -> None:
    inputs = FAMILIES["edge"].generate(PROBLEM)
    with pytest.raises(NumericsError, match="above 224"):
        RELATIONS["double"].change(inputs)


def test_unfit_outputs_are_named() -> None:
    inputs = FAMILIES["gpumode"].generate(PROBLEM)
    first = outputs(RIGHT, inputs)
    with pytest.raises(NumericsError, match="2 outputs for 3 groups"):
        RELATIONS["repeat"].check(inputs, first, first[:2])
    with pytest.raises(NumericsError, match="output 1 has shape"):
        RELATIONS["repeat"].check(inputs, first, [first[0], first[2], first[1]])


def test_zero_signs_and_nan_payloads_are_no_violation() -> None:
    inputs = FAMILIES["gpumode"].generate(Problem("p", (Group(1, 128, 256),)))
    first = [np.full((1, 128), 0x7FFF, np.uint16)]
    assert RELATIONS["repeat"].check(inputs, first, [np.full((1, 128), 0x7E01, np.uint16)]) == ()
    assert RELATIONS["repeat"].check(inputs, [first[0] * 0], [np.full((1, 128), 0x8000, np.uint16)]) == ()
    assert RELATIONS["repeat"].check(inputs, first, [first[0] * 0])


def test_relations_are_described() -> None:
    assert {"repeat", "group_permutation", "nan_isolation"} <= set(RELATIONS)
    assert all(relation.description for relation in RELATIONS.values())
    assert replace(RELATIONS["repeat"], name="x").name == "x"
