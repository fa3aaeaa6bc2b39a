"""What is expected at a visit of a set of inputs is made of the set's reference and the rows that have changed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.device import rotation
from pytest_nvfp4.device.job import JobCase, ProblemSpec
from pytest_nvfp4.device.verdict import _FEW_ROWS, _Expected
from pytest_nvfp4.numerics.judge import Reference
from pytest_nvfp4.problem import Group, Problem

CASES = {
    "nvfp4_group_gemm": (Group(136, 128, 256), Group(0, 128, 256), Group(40, 256, 512)),
    "nvfp4_gemm": (Group(128, 128, 256, 2),),
    "nvfp4_dual_gemm": (Group(128, 128, 256),),
    "nvfp4_gemv": (Group(256, 1, 512, 2),),
}


def case(contract: str, family: str) -> JobCase:
    return JobCase(problem=ProblemSpec.of(Problem("some", CASES[contract], contract=contract)), family=family)


def same(one: Reference, other: Reference) -> bool:
    return all(
        np.array_equal(
            getattr(one, field.name), getattr(other, field.name), equal_nan=field.name in ("values", "bound", "slack")
        )
        for field in dataclasses.fields(Reference)
    )


@pytest.mark.parametrize("family", ["gpumode", "nan_isolated"])
@pytest.mark.parametrize("contract", CASES)
@pytest.mark.parametrize("visit", [0, 3, 40])
def test_a_patched_reference_is_that_of_the_inputs(contract: str, family: str, visit: int) -> None:
    asked = case(contract, family)
    base = _Expected.of(rotation.set_inputs(asked, 1))
    found = base.at(asked, index=1, visit=visit, key=7)
    inputs = rotation.inputs_at(asked, index=1, visit=visit, key=7)
    expected = contract_of(inputs.problem).references(inputs)
    assert all(same(one, other) for one, other in zip(found.references, expected, strict=True))
    # The control: a change of a row is seen.
    assert not all(same(one, other) for one, other in zip(base.references, expected, strict=True))


def test_few_changes_make_no_whole_reference_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = case("nvfp4_group_gemm", "gpumode")
    base = _Expected.of(rotation.set_inputs(asked, 0))
    rows = sum(output.rows for output in base.outputs)
    monkeypatch.setattr(_Expected, "of", lambda _: pytest.fail("a whole reference is made again"))
    base.at(asked, index=0, visit=0, key=7)
    with pytest.raises(pytest.fail.Exception):
        base.at(asked, index=0, visit=rows // _FEW_ROWS, key=7)


@pytest.mark.parametrize("family", ["gpumode", "all_scale", "nan_isolated"])
@pytest.mark.parametrize("contract", CASES)
def test_a_changed_call_has_the_reference_of_its_inputs(contract: str, family: str) -> None:
    asked = case(contract, family)
    base = _Expected.of(rotation.verified_inputs(asked, key=7))
    found = base.verified(asked, key=7)
    inputs = rotation.verified_inputs(asked, key=7, changed=True)
    assert found.inputs.digest() == inputs.digest()
    expected = contract_of(inputs.problem).references(inputs)
    assert all(same(one, other) for one, other in zip(found.references, expected, strict=True))
    # The control: a change of a row is seen.
    assert not all(same(one, other) for one, other in zip(base.references, expected, strict=True))
