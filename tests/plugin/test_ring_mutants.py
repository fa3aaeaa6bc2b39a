"""Stages that are released too early are races with both lines on the fitted problem, and pass on a short one."""

from __future__ import annotations

import re

import pytest

from .conftest import Project, Ran
from .ring_mutants import KERNELS, RING_MUTANTS

pytestmark = [pytest.mark.slow]
SHORT = "128x128x512"
"""Two k-tiles for three stages."""


def races(project: Project, source: str, *arguments: str, arch: str = "sm_100a") -> Ran:
    """Run the check of races alone, without settings."""
    project.file("k.py", source)
    return project.run_apart("k.py", "-k", "races", "--nvfp4-device=sim", f"--nvfp4-arch={arch}", *arguments)


@pytest.mark.parametrize("name", RING_MUTANTS)
def test_an_early_release_is_a_race_on_the_fitted_problem(project: Project, name: str):
    mutant = RING_MUTANTS[name]
    ran = races(project, mutant.source, arch="sm_90a" if mutant.kernel == "sm90.py" else "sm_100a")
    first = ran.failures()["races[fitted]"].splitlines()[0]
    assert "simulated, race: " in first
    named = {int(number) for number in re.findall(r"k\.py:(\d+)", first)}
    assert named & set(mutant.lines(mutant.fills)), first
    assert named & set(mutant.lines(mutant.reads)), first


def test_a_short_problem_misses_it_and_the_summary_says_so(project: Project):
    mutant = RING_MUTANTS["a plain arrive instead of a commit"]
    ran = races(project, mutant.source, f"--nvfp4-problem={SHORT}")
    assert ran.code == 0, ran.text
    assert re.search(r"races\[128x128x512\]: not refilled twice: k\.py:\d+ \(3 stages, 2 phases\)", ran.text)


def test_the_kernel_itself_has_no_finding_and_every_stage_is_refilled(project: Project):
    ran = races(project, (KERNELS / "steps/map_updates.py").read_text(encoding="utf-8"))
    assert ran.code == 0, ran.text
    assert "races[fitted]: 128x128x2304, 0x128x256, 72x256x256: every stage is refilled at k.py:" in ran.text
