"""How often the cause of wrong results is searched for: until one is found, and a few times at most."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.device import verdict
from pytest_nvfp4.device.cause_search import PROVENANCE, explained
from pytest_nvfp4.device.job import JobCase, ProblemSpec
from pytest_nvfp4.device.result import Status
from pytest_nvfp4.device.simulate import SimulationResult
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.problem import parse_shape
from tests.contracts.verified import small, verified

CAUSE = Finding(PROVENANCE, "the B operand reads A")


@dataclass
class Judged:
    case: JobCase
    status: Status = "failed"
    findings: list[Finding] = field(default_factory=lambda: [Finding("mismatch", "1 of 1 outputs wrong")])


def cases(*ks: int) -> list[Judged]:
    """Return wrong cases with two input families for each k."""
    problems = [ProblemSpec.of(parse_shape(f"128x128x{k}")) for k in ks]
    return [Judged(JobCase(problem=each, family=family)) for each in problems for family in ("gpumode", "nan_pad")]


@pytest.mark.parametrize(("found_at", "searched"), [(256, [256]), (512, [256, 512]), (0, [256, 512, 768])])
def test_problems_are_searched_until_one_has_a_cause(found_at: int, searched: list[int]) -> None:
    called: list[int] = []

    def again(asked: Any, **_: Any) -> list[SimulationResult]:
        (case,) = asked
        called.append(case.problem.sizes[0][2])
        return [SimulationResult(case, "failed", (CAUSE,) if called[-1] == found_at else (), None)]

    judged = cases(256, 512, 768, 1024)
    found = explained(judged, again)
    assert called == searched
    assert [each.case.problem.sizes[0][2] for each, now in zip(judged, found, strict=True) if now[0] == CAUSE] == (
        [found_at] * 2 if found_at else []
    )


def test_a_case_that_is_right_is_not_searched() -> None:
    right = cases(256)
    for each in right:
        each.status = "passed"
    assert explained(right, lambda *_, **__: pytest.fail("a search")) == [each.findings for each in right]


@pytest.mark.parametrize(("explanation", "searches"), [("", 3), ("\n  it equals C", 1)])
def test_outputs_are_compared_with_known_faults_until_one_fits(
    explanation: str, searches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[object] = []
    monkeypatch.setattr(verdict, "_explained", lambda *given: compared.append(given) or explanation)
    kernel = tmp_path / "zeros.py"
    kernel.write_text("def custom_kernel(data):\n    return data[-1].zero_()\n")
    families = ("gpumode", "pow2_exact", "nan_pad", "nan_isolated", "edge")
    wrong = verified(kernel, small("gemm"), tmp_path, *families, torch_operators=True)
    assert [any(finding.kind == "mismatch" for finding in each.findings) for each in wrong] == [True] * 5
    assert len(compared) == searches
