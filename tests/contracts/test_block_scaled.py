from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from pytest_nvfp4.contracts.block_scaled import BlockScaled
from pytest_nvfp4.contracts.recognise import VALUES
from pytest_nvfp4.contracts.registry import contract_named, contracts
from pytest_nvfp4.numerics.arrays import Float64
from pytest_nvfp4.numerics.families import FAMILIES
from pytest_nvfp4.numerics.inputs import ProblemInput
from pytest_nvfp4.numerics.silu import sigmoid
from pytest_nvfp4.problem import Group, Problem, ProblemError
from pytest_nvfp4.strategies.problems import problems
from tests.numerics.oracles import dequantise

SIZES = {"nvfp4_gemm": (128, 128, 256), "nvfp4_dual_gemm": (128, 256, 256), "nvfp4_gemv": (128, 1, 320)}
TASKS = sorted(SIZES)


def task(name: str) -> BlockScaled:
    contract = contract_named(name)
    assert isinstance(contract, BlockScaled)
    return contract


def made(name: str, *, batches: int = 2, family: str = "sparse75") -> tuple[BlockScaled, ProblemInput]:
    contract = task(name)
    problem = Problem("small", (Group(*SIZES[name], batches),), contract=name)
    return contract, contract.generate(problem, family)


def tensors_of(contract: BlockScaled, inputs: ProblemInput) -> list[np.ndarray]:
    """Return the argument of a kernel as it sees it: logical shapes, bytes."""
    call = contract.call(inputs)
    (data,) = call.arguments
    found = []
    for at in data:
        tensor = call.tensors[at.index]
        content = np.zeros(tensor.size, np.uint8) if tensor.data is None else tensor.data
        item = tensor.size // max(1, int(np.prod(tensor.shape)))
        strides = tuple(stride * item for stride in tensor.strides)
        found.append(np.lib.stride_tricks.as_strided(content.view(f"u{item}"), tensor.shape, strides))
    return found


def computed(name: str, data: list[np.ndarray]) -> Float64:
    """Compute a task in float64 from its argument with the plain scale factors."""
    weights = (len(data) - 1) // 3 - 1
    a, *bs = data[: 1 + weights]
    sfa, *sfbs = data[1 + weights : 2 * (1 + weights)]
    batches = []
    for at in range(a.shape[2]):
        left = dequantise(np.ascontiguousarray(a[:, :, at]), np.ascontiguousarray(sfa[:, :, at]))
        products = [
            left @ dequantise(np.ascontiguousarray(b[:, :, at]), np.ascontiguousarray(sfb[:, :, at])).T
            for b, sfb in zip(bs, sfbs, strict=True)
        ]
        result = products[0] if weights == 1 else products[0] * sigmoid(products[0]) * products[1]
        batches.append(result[:, :1] if name == "nvfp4_gemv" else result)
    return np.concatenate(batches)


@pytest.mark.parametrize("name", TASKS)
def test_references_are_those_of_the_argument(name: str) -> None:
    contract, inputs = made(name)
    (reference,) = contract.references(inputs)
    assert np.allclose(reference.values, computed(name, tensors_of(contract, inputs)), rtol=1e-12, atol=1e-12)
    m, n, _ = SIZES[name]
    assert reference.want.shape == (2 * m, n)


@pytest.mark.parametrize("name", TASKS)
def test_both_layouts_hold_the_same_scale_factors(name: str) -> None:
    data = tensors_of(*made(name))
    sides = (len(data) - 1) // 3
    for plain, reordered in zip(data[sides : 2 * sides], data[2 * sides : 3 * sides], strict=True):
        rows, blocks, _ = plain.shape
        row, block = np.arange(rows)[:, None], np.arange(blocks)[None, :]
        found = reordered[row % 32, row % 128 // 32, row // 128, block % 4, block // 4]
        assert (found == plain).all()


@pytest.mark.parametrize("name", TASKS)
def test_batches_and_operands_differ(name: str) -> None:
    data = tensors_of(*made(name))
    sides = (len(data) - 1) // 3
    for tensor in data[: 2 * sides]:
        assert (tensor[..., 0] != tensor[..., 1]).any()
    if sides == 3:
        assert (data[1] != data[2]).any()
        assert (data[4] != data[5]).any()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", TASKS)
def test_a_change_changes_one_row(name: str, family: str) -> None:
    contract, inputs = made(name, family=family)
    (change,) = contract.changes(inputs, index=0, visit=1, key=5)
    after = contract.changed(inputs, [change])
    (before,), (reference,) = contract.references(inputs), contract.references(after)
    other = np.arange(len(before.want)) != change.row
    assert (before.want[other] == reference.want[other]).all()
    columns = slice(0, min(8, reference.want.shape[1]))
    part = contract.changed_part(inputs, change, columns)
    assert (part.want[0] == reference.want[change.row, columns]).all()
    memory = [tensor.data for tensor in contract.call(inputs).tensors]
    assert memory[change.tensor] is not None
    expected = memory[change.tensor].copy()
    expected[change.offset : change.offset + len(change.data)] = np.frombuffer(change.data, np.uint8)
    assert (contract.call(after).tensors[change.tensor].data == expected).all()


def test_changes_reach_every_batch() -> None:
    contract, inputs = made("nvfp4_gemv")
    rows = [contract.changes(inputs, index=0, visit=visit, key=1)[0].row for visit in range(40)]
    assert min(rows) < 128 <= max(rows)


@pytest.mark.parametrize("name", TASKS)
def test_the_signature_is_that_of_a_call(name: str) -> None:
    contract, inputs = made(name)
    call, signature = contract.call(inputs), contract.signature(inputs.problem)
    assert signature.arguments == call.arguments
    assert signature.returns == call.returns == "tensor"
    assert len(signature.arguments[0]) == VALUES[name]
    for one, other in zip(call.tensors, signature.tensors, strict=True):
        assert (one.name, one.shape, one.strides, one.size) == (other.name, other.shape, other.strides, other.size)
        assert one.is_output == (one.data is None)
        assert one.data is None or one.data.size == one.size
        assert other.data is None
    (output,) = call.outputs
    assert output.before % 512 == 0


def test_every_task_can_be_recognised() -> None:
    assert VALUES.keys() == {name for name, contract in contracts().items() if contract.tests}
    problem = contract_named("nvfp4_group_gemm").tests[0]
    assert len(contract_named("nvfp4_group_gemm").signature(problem).arguments[0]) == VALUES["nvfp4_group_gemm"]


@pytest.mark.parametrize("name", TASKS)
def test_official_problems_keep_the_contract(name: str) -> None:
    contract = task(name)
    assert len(contract.tests) == 10
    for problem in (*contract.tests, *contract.benchmarks):
        assert problem.contract == name
        assert contract.violation(problem) is None


@pytest.mark.parametrize(
    ("name", "groups", "says"),
    [
        ("nvfp4_gemm", ((128, 128, 256), (128, 128, 256)), "2 groups"),
        ("nvfp4_gemm", ((100, 128, 256),), "m must be a multiple of 128"),
        ("nvfp4_gemm", ((0, 128, 256),), "m must be a multiple of 128"),
        ("nvfp4_dual_gemm", ((128, 96, 256),), "n must be a multiple of 128"),
        ("nvfp4_dual_gemm", ((128, 128, 64),), "k must be a multiple of 256"),
        ("nvfp4_gemv", ((128, 2, 256),), "n must be 1"),
        ("nvfp4_gemv", ((128, 1, 96),), "k must be a multiple of 64"),
    ],
)
def test_other_problems_violate_it(name: str, groups: tuple[tuple[int, ...], ...], says: str) -> None:
    problem = Problem("own", tuple(Group(*sizes) for sizes in groups), contract=name)
    with pytest.raises(ProblemError, match=says):
        task(name).require(problem)


@pytest.mark.parametrize("name", TASKS)
def test_other_sizes_keep_the_contract(name: str) -> None:
    contract = task(name)
    taken = {tuple(problem.sizes) for problem in contract.tests}
    for problem in contract.tests:
        other = contract.other_sizes(tuple(problem.sizes), groups=1, taken=taken)
        assert other is not None
        assert other not in taken
        assert contract.violation(Problem("other", tuple(Group(*size) for size in other), contract=name)) is None
    assert contract.other_sizes(tuple(contract.tests[0].sizes), groups=2, taken=()) is None


def test_what_explains_a_wrong_product_is_found_in_its_batch() -> None:
    contract, inputs = made("nvfp4_gemm", family="pow2_exact")
    (reference,) = contract.references(inputs)
    got = reference.want.copy()
    got[128:] = got[128:][np.r_[1:128, 0]]
    said = "\n".join(map(str, contract.explain(inputs, 0, got, got != reference.want)))
    assert "row" in said


def test_work_is_that_of_the_product() -> None:
    sizes, b_rows = Group(128, 256, 512, 2), {"nvfp4_gemm": 256, "nvfp4_dual_gemm": 512}
    for name, rows in b_rows.items():
        problem = Problem("p", (sizes,), contract=name)
        assert task(name).multiply_adds(problem) == 128 * rows * 512 * 2
        assert task(name).traffic(problem) == (2 * (128 + rows) * (256 + 32), 2 * 128 * 256 * 2)
        assert task(name).spec(problem) == {"m": 128, "n": 256, "k": 512, "l": 2}
    vector = Problem("p", (Group(128, 1, 512, 2),), contract="nvfp4_gemv")
    assert task("nvfp4_gemv").multiply_adds(vector) == 128 * 512 * 2
    assert task("nvfp4_gemv").traffic(vector) == (2 * 129 * 288, 2 * 128 * 2)
    assert task("nvfp4_gemv").spec(vector) == {"m": 128, "k": 512, "l": 2}


def test_tests_that_take_seconds_are_verified_by_default() -> None:
    checked = {name: [problem.name.removeprefix("gpumode-") for problem in task(name).checked] for name in TASKS}
    assert checked == {
        "nvfp4_gemm": ["0", "1", "2", "3", "4", "7", "8"],
        "nvfp4_dual_gemm": ["1", "4", "9"],
        "nvfp4_gemv": ["0", "1", "2", "7"],
    }
    for name in TASKS:
        contract = task(name)
        assert len({tuple(problem.sizes) for problem in contract.checked}) == len(contract.checked)
        for family in contract.families():
            (reference,) = contract.references(made(name, batches=1, family=family)[1])
            found = reference.values[np.isfinite(reference.values)]
            assert (np.abs(found) < 65504).mean() > 0.2, family
            assert (reference.want != 0).mean() > 0.2, family


@pytest.mark.parametrize("name", TASKS)
@given(problems(least_m=0, most_groups=6))
@settings(max_examples=30, deadline=None)
def test_drawn_problems_keep_the_contract(name: str, problem: Problem) -> None:
    drawn = task(name).drawn(problem)
    assert drawn.contract == name
    assert task(name).violation(drawn) is None
    (sizes,) = drawn.groups
    assert sizes.l == min(4, len(problem.groups))
    assert sizes.m >= problem.groups[0].m > sizes.m - 128 or sizes.m == 128
