"""``--nvfp4-html``: the section of a kernel, drawn from what the checks of that run have simulated."""

from __future__ import annotations

import re

import pytest

from .conftest import Project
from .simulated import FILL, PROBLEM, outcomes, written

pytest.importorskip("torch")

SIMULATED = ("k.py", f"--nvfp4-problem={PROBLEM}", "-k", "layouts or coverage or cost", "--nvfp4-device=sim")
STORE = "        c[tile * ROWS + row, lane] = cutlass.Float16(1.0)"
SECTORS = 5 * 8 * 4 * 2
"""Five CTAs store eight rows with four warps, 64 bytes each."""


@pytest.mark.slow
def test_the_section_of_a_kernel(project: Project, workers: tuple[str, ...]) -> None:
    written(project, FILL)
    ran = project.run(*SIMULATED, "--snapshot-update")
    outcomes(ran, passed=3)
    ran = project.run(*SIMULATED, "--nvfp4-html=r.html", *workers)
    outcomes(ran, passed=3)
    page = (project.path / "r.html").read_text()
    line = 1 + FILL.splitlines().index(STORE)
    (row,) = re.findall(rf'<tr><td class="right muted">{line}</td>.*?</tr>', page)
    assert "c[tile * ROWS + row, lane] = cutlass.Float16(1.0)" in row
    assert f">{SECTORS}</td>" in row
    assert row.count("--w:100%") >= 1
    assert page.count("<title>CTA 4, wave 0: rows 32 to 39, columns 0 to 127</title>") == 1
    assert "No time was modelled: --nvfp4-model" in page
    assert "Nothing was measured" in page
    assert "counters as in the snapshot" in page
    assert "known to pass" not in ran.text, "what was stored for no page is simulated again"
    again = project.run(*SIMULATED, "--nvfp4-html=again.html", *workers)
    outcomes(again, passed=3)
    drawn = [
        re.sub(r'<td class="right">[\d.]+</td>', "", text) for text in (page, (project.path / "again.html").read_text())
    ]
    assert drawn[0] == drawn[1], "a stored call draws the same page"


@pytest.mark.slow
def test_what_does_not_run_says_what_brings_it(project: Project) -> None:
    project.kernel()
    project.record("k.py")
    project.run("k.py", "--nvfp4-html=r.html").outcomes(passed=4)
    page = (project.path / "r.html").read_text()
    assert page.count("No call was simulated: the checks coverage, cost and tmem bring this") >= 3
    assert '<td class="code">' not in page
