from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_nvfp4.device import verify as verify_module
from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.local import LocalDevice
from pytest_nvfp4.device.simulate import SimulationResult
from pytest_nvfp4.device.verdict import CaseVerdict
from pytest_nvfp4.device.verify import Verifier
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.problem import parse_shape

pytest.importorskip("torch")

KERNELS = Path(__file__).parent / "kernels"


@pytest.mark.slow
def test_a_crash_on_one_problem_spoils_no_other(tmp_path: Path) -> None:
    text = (
        (KERNELS / "honest.py")
        .read_text()
        .replace(
            "    abc, _, reordered, sizes = data\n",
            "    abc, _, reordered, sizes = data\n    if sizes[0][0] == 9:\n        import os; os.abort()\n",
        )
    )
    path = tmp_path / "kernel.py"
    path.write_text(text)
    kernel, base = KernelSpec.from_files(path, arch="sm_100a")
    cases = [JobCase(problem=ProblemSpec.of(parse_shape(f"{m}x128x256")), family="pow2_exact") for m in (8, 9, 10)]
    device = LocalDevice(probe_folder=tmp_path / "probe", backend="host")
    done = Verifier(device, folder=tmp_path / "jobs").verify(kernel, cases, base=base)
    assert [verdict.status for verdict in done.verdicts] == ["passed", "crashed", "passed"]
    assert [verdict.complete for verdict in done.verdicts] == [True, False, True]
    assert done.device is not None
    assert done.device.simulated
    assert not list((tmp_path / "jobs").iterdir())


@pytest.mark.parametrize(("kind", "shown"), [("internal", True), ("mismatch", False)])
def test_a_search_for_the_cause_that_fails_is_reported(
    kind: str, shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = JobCase(problem=ProblemSpec.of(parse_shape("8x128x256")), family="pow2_exact")
    wrong = CaseVerdict(case, "failed", [Finding("mismatch", "8 outputs wrong")])
    found = SimulationResult(case, "error", (Finding(kind, "the worker itself failed: ValueError: no rows"),), None)
    result = SimpleNamespace(status="failed", device=None, stdout="", stderr="")
    verifier = Verifier(SimpleNamespace(name="sim"), folder=tmp_path)  # type: ignore[arg-type]
    monkeypatch.setattr(verifier, "_run", lambda *_, **__: (result, [wrong], 7))

    def simulated(*_: Any, **__: Any) -> list[SimulationResult]:
        return [found]

    monkeypatch.setattr(verify_module, "simulate", simulated)
    (verdict,) = verifier.verify(SimpleNamespace(), [case]).verdicts  # type: ignore[arg-type]
    messages = [finding.message for finding in verdict.findings]
    said = "the search for the cause of wrong results failed: the worker itself failed: ValueError: no rows"
    assert messages == ["8 outputs wrong", *[said] * shown]
