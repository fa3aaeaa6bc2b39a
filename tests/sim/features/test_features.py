"""Every feature compiles to the opcodes it is about, and computes its reference in the simulator."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sim.features.run_worker import run_worker

from .catalogue import MODULES, NAMES, SLOW

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(package) for package in ("cutlass", "torch")), reason="needs the DSL and torch"
)

PLAIN = "mma_f16"
SAME_OPCODES = {
    # Types, extents and layouts that show in descriptors only.
    *(PLAIN, "mma_f16_ragged", "mma_bf16", "operand_swizzle_64b", "operand_swizzle_32b"),
    *("operand_mn_major", "operand_mn_major_narrow"),
    # What every pipelined kernel has.
    *("mbarrier_ping_pong", "async_pipeline", "collatz"),
}

every_feature = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in NAMES]
)


@pytest.fixture(scope="session")
def worker(request, tmp_path_factory) -> Callable[[str], dict[str, Any]]:
    """``worker(name)``: what one process said of all the features that this session selected."""
    results: dict[str, dict[str, Any]] = {}
    selected = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}

    def ask(name: str) -> dict[str, Any]:
        if not results:
            names = [known for known in NAMES if known in selected]
            results.update(run_worker(names, tmp_path_factory.mktemp("features")))
        said = results[name]
        if "absent" in said:
            pytest.skip(f"this DSL has no {', '.join(said['absent'])}")
        return said

    return ask


def test_every_module_of_features_is_in_the_catalogue():
    helpers = {"__init__", "blocks", "catalogue", "feature", "gemm", "perthread", "run_worker", "worker"}
    helpers |= {Path(__file__).stem, "test_primitives"}
    assert {path.stem for path in Path(__file__).parent.glob("*.py")} - helpers == set(MODULES)
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.slow
@every_feature
def test_the_kernel_compiles_to_its_opcodes(worker, name):
    said = worker(name)
    assert "opcodes" in said, said["error"]
    assert said["opcodes"]
    assert not said["lost"]
    assert len(said["launches"]) == said["expected_launches"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [PLAIN])
def test_a_kernel_without_a_feature_is_told_from_one_with_it(worker, name):
    """The plain kernel lacks an opcode of every feature that is more than data types and extents."""
    said = worker(name)
    assert "has" in said, said["error"]
    assert set(said["has"]) == SAME_OPCODES


def test_one_wrong_element_is_a_difference():
    """What the comparison of outputs lets through: nothing but equal values, not even of another type or shape."""
    import torch

    from .worker import differences

    want = torch.arange(12.0).reshape(3, 4)
    wrong = want.clone()
    wrong[2, 1] += 1
    assert differences(want.clone(), want, 0.0) is None
    found = differences(wrong, want, 0.0)
    assert found == {"wrong": 1, "of": 12, "first": [2, 1], "last": [2, 1], "got": 10.0, "want": 9.0}
    assert differences(wrong, want, 0.2) is None
    assert differences(want.flatten(), want, 0.0) is not None
    assert differences(want.half(), want, 0.0) is not None
    wrong[2, 1] = float("nan")
    assert differences(wrong, want, 0.2) is not None


@every_feature
def test_the_simulated_result_is_the_reference(worker, name):
    said = worker(name)
    assert "error" not in said, said["error"]
    assert said["compared"]
    assert not said["differences"]
    assert not said["findings"]
    for text in said["prints"]:
        assert text in said["stdout"]
