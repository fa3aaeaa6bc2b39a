"""The ``races`` check: what it tells, under which schedule, and how to see it again."""

from __future__ import annotations

import pytest

from tests.plugin.test_simulated_checks import FILL, PROBLEM, written

from .conftest import Project

pytest.importorskip("torch")
RACY = FILL.replace("cutlass.Float16(1.0)", "c[tile * ROWS + row, lane ^ 32]")
"""Every warp reads what another one writes, and nothing lies between."""
WATCHED = ("k.py", f"--nvfp4-problem={PROBLEM}", "-k", "races", "--nvfp4-device=sim")


def test_a_race_names_both_lines_and_how_to_see_it_again(project: Project) -> None:
    ran = written(project, RACY).run(*WATCHED, "--nvfp4-schedule=7")
    said = ran.failures()[f"races[{PROBLEM}]"]
    assert "simulated under the schedule of seed 7" in said
    assert "race: k.py:15 (" in said
    assert "global memory at C of group 0, row" in said
    assert "--nvfp4-schedule=7" in said.splitlines()[-1] or "--nvfp4-schedule=7" in said


def test_what_no_order_explains_is_left_to_verify(project: Project) -> None:
    ran = written(project, FILL).run(*WATCHED, "-rs")
    ran.outcomes(skipped=1, deselected=7)
    assert "not by a race" in ran.text


def test_it_can_be_left_out(project: Project) -> None:
    ran = written(project, FILL).run("k.py", f"--nvfp4-problem={PROBLEM}", "--nvfp4-races=off", "--co", "-q")
    assert "races" not in ran.text


@pytest.mark.parametrize("name", ["soon", "-3", "late-x"])
def test_no_such_schedule(project: Project, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    ran = written(project, FILL).run("k.py", f"--nvfp4-schedule={name}", "--co", "-q")
    assert ran.code == 4
    assert "must be eager, lazy, late-WARP or a seed" in ran.text + capfd.readouterr().err
