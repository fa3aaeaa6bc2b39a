"""What a kernel's author is told of a mistake in the Python: the line, the CTA and warp, and the thing by its name."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sim.mutants.edits import EDITS, Edit

ROOT = Path(__file__).parents[2]
LIMIT_S = 1800

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(package) for package in ("cutlass", "torch")), reason="needs the DSL and torch"
    ),
]


@pytest.fixture(scope="session")
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is said of each edit, by its name."""
    chosen = [
        edit.name
        for item in request.session.items
        if isinstance(edit := getattr(getattr(item, "callspec", None), "params", {}).get("edit"), Edit)
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.sim.mutants.edits", str(tmp_path_factory.mktemp("edits")), *chosen],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = (line.removeprefix("EDIT ") for line in ran.stdout.splitlines() if line.startswith("EDIT "))
    return {one["name"]: one for one in map(json.loads, lines)}


@pytest.mark.parametrize(
    "edit", [pytest.param(edit, id=edit.name, marks=[pytest.mark.slow] * edit.slow) for edit in EDITS]
)
def test_a_mistake_is_told_in_the_authors_words(edit: Edit, told: dict[str, Any]) -> None:
    said = told[edit.name]
    assert "error" not in said, said["error"]
    if not edit.kind:
        assert said["findings"] == []
        assert all(word in said["wrong"][0] for word in edit.says)
        return
    finding = next((one for one in said["findings"] if one["kind"] == edit.kind), None)
    assert finding is not None, said["findings"] or said["wrong"] or "nothing was found, and C is right"
    assert edit.line in (finding["text"] or "") if edit.line else finding["text"] is None
    for word in edit.says:
        assert word in finding["message"]


def test_no_report_drowns_in_registers(told: dict[str, Any]) -> None:
    """A load of 128 registers names them all."""
    for said in told.values():
        for finding in said["findings"]:
            assert all(len(line) < 1200 for line in finding["message"].splitlines())


def test_an_edit_that_no_longer_fits_the_kernel_says_so() -> None:
    with pytest.raises(ValueError, match="stands 0 times"):
        EDITS[0].applied("another kernel")
