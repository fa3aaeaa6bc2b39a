from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.contracts.verified import KERNELS, SMALL, small, verified

pytest.importorskip("cutlass")

WRONG = {
    "swaps its gates": ("dual_gemm", "[b1, b2], [sfa, sfb1, sfb2]", "[b2, b1], [sfa, sfb2, sfb1]", "|error|"),
    "takes the scale factors of the other B": ("dual_gemm", "sfb1, sfb2], c", "sfb2, sfb1], c", "|error|"),
    "computes the first batch only": ("gemm", "a, [b]", "a[:, :, :1], [b[:, :, :1]]", "poison"),
    "reads the second row of B": ("gemv", "zip(KINDS, (a, b,", "zip(KINDS, (a, b[1:],", "exact in every order"),
    "returns another shape": ("gemv", "half, batches)\n    return c", "half, batches)\n    return c[:, 0]", "shape"),
    "returns a list": (
        "gemm",
        "return compute(a, [b], [sfa, sfb], c)",
        "return [compute(a, [b], [sfa, sfb], c)]",
        "list",
    ),
    "returns nothing": ("gemm", "return compute", "compute", "returned NoneType, not the tensor C"),
    "changes A": (
        "gemv",
        "m, half, b",
        "a.view(__import__('torch').uint8).zero_()\n    m, half, b",
        "changed its inputs",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("task", SMALL)
def test_right_kernels_pass(task: str, tmp_path: Path) -> None:
    verdicts = verified(KERNELS / f"{task}.py", small(task), tmp_path, "gpumode", "nan_pad", "nan_isolated")
    assert [verdict.status for verdict in verdicts] == ["passed"] * 3, [verdict.findings for verdict in verdicts]
    assert all(verdict.groups for verdict in verdicts)
    assert all("nothing" not in verdict.written_by for verdict in verdicts)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_fail(name: str, tmp_path: Path) -> None:
    task, right, wrong, says = WRONG[name]
    text = (KERNELS / f"{task}.py").read_text(encoding="utf-8")
    assert right in text
    path = tmp_path / f"{task}.py"
    path.write_text(text.replace(right, wrong), encoding="utf-8")
    (verdict,) = verified(path, small(task), tmp_path, "pow2_exact")
    said = "\n".join(map(str, verdict.findings))
    assert verdict.status == "failed", said
    assert re.search(says.replace("|", r"\|"), said), said
