"""Accepted findings: what they cover, what makes them red again, and where they are shown."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_nvfp4.device.verdict import CaseVerdict
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.plugin.accepted import Acceptance
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest
from pytest_nvfp4.plugin.places import Places
from pytest_nvfp4.settings import AcceptedFinding, Settings

from .conftest import Project
from .simulated import CONTRACT, OWN, TABLE, outcomes

SOURCE = "one()\ntwo()\nthree()\none()\n"
DAY = datetime.date(2026, 1, 1)
ENTRY = AcceptedFinding("races", "k.py", "race", "one()", "why", DAY, datetime.date(2999, 1, 1), others=("two()",))
RACE = Finding("race", "race: k.py:1 (st) writes while k.py:2 (ld) reads", file="k.py", line=1, text="one()")


@pytest.fixture
def accepting(tmp_path: Path):
    """Make the acceptance of an item from entries."""
    (tmp_path / "k.py").write_text(SOURCE)

    def make(*entries: AcceptedFinding, on: bool = True, check: str = "races") -> Acceptance:
        run: Any = SimpleNamespace(
            accepted=Settings(tmp_path, accepted=entries).accepted_of,
            options=SimpleNamespace(accepted=on, snapshots=Places(tmp_path, Path("snapshots"))),
            relative=lambda path: path.name,
        )
        case: Any = SimpleNamespace(path=tmp_path / "k.py")
        return Acceptance(case, check, run)

    return make


def test_the_same_finding_is_accepted_wherever_its_lines_are(accepting) -> None:
    acceptance = accepting(ENTRY)
    assert acceptance.rest([RACE]) == []
    (record,) = acceptance.records
    assert (record["check"], record["line"], record["reason"]) == ("races", 1, "why")
    assert "k.py:1: race: k.py:1 (st) writes" in record["shown"]
    assert "accepted until 2999-01-01: why" in record["shown"]
    moved = replace(RACE, line=4, message=RACE.message.replace("k.py:1", "k.py:4"))
    assert accepting(ENTRY).rest([moved]) == []
    fewer = replace(RACE, message="race: k.py:1 alone")
    assert accepting(ENTRY).rest([fewer]) == []


@pytest.mark.parametrize(
    ("finding", "reason"),
    [
        (replace(RACE, kind="proxy"), ""),
        (replace(RACE, text="two()"), ""),
        (replace(RACE, message=f"{RACE.message}\n  the same between k.py:3 and k.py:2"), "not with the line 'three()'"),
        (replace(RACE, kind="mismatch"), ""),
        (replace(RACE, kind="deadlock"), ""),
    ],
    ids=["another kind", "another line", "a further line", "a wrong result", "a deadlock"],
)
def test_a_finding_that_changed_is_red_and_says_why(accepting, finding: Finding, reason: str) -> None:
    entries = (ENTRY, replace(ENTRY, kind=finding.kind)) if finding.kind in ("mismatch", "deadlock") else (ENTRY,)
    acceptance = accepting(*entries)
    (left,) = acceptance.rest([finding])
    assert reason in left.message
    assert (left.message == finding.message) == (not reason)
    assert acceptance.records == []


def test_another_check_more_places_an_expiry_and_the_option_are_red(accepting) -> None:
    assert accepting(ENTRY, check="verify").rest([RACE]) == [RACE]
    again = replace(RACE, line=4)
    left = accepting(ENTRY).rest([RACE, again, RACE])
    assert len(left) == 3
    assert "accepted at 1 and found at 2 lines" in left[0].message
    assert accepting(replace(ENTRY, places=2)).rest([RACE, again, RACE]) == []
    (late,) = accepting(replace(ENTRY, expires=DAY)).rest([RACE])
    assert "it was accepted until 2026-01-01: why" in late.message
    (off,) = accepting(ENTRY, on=False).rest([RACE])
    assert "--nvfp4-accepted=off ignores that" in off.message


def test_a_finding_without_a_line_is_known_by_its_message_without_figures(accepting) -> None:
    twice = Finding("written-by-two", "C of group 0: 128 elements were written by two CTAs")
    entry = replace(ENTRY, kind="written-by-two", text="C of group #: # elements were written by two CTAs")
    assert accepting(entry).rest([twice]) == []
    described = accepting(entry).described(twice)
    assert described["acceptable"] == {"text": entry.text, "others": (), "kernel": "k.py"}
    assert accepting(entry).described(replace(twice, kind="mismatch"))["acceptable"] is None


def test_a_verdict_passes_without_its_accepted_errors_if_all_else_was_judged(accepting) -> None:
    read = Finding("uninitialised", "uninitialised: k.py:1", file="k.py", line=1, text="one()")
    wrong = Finding("mismatch", "1 of 8 outputs wrong")
    kernel: Any = SimpleNamespace(
        acceptance=accepting(replace(ENTRY, kind="uninitialised", check="verify"), check="verify")
    )

    def judged(*findings: Finding, complete: bool) -> CaseVerdict:
        verdict = CaseVerdict(None, "failed", list(findings), complete=complete)  # type: ignore[arg-type]
        return KernelUnderTest.without_accepted(kernel, verdict)

    assert judged(read, complete=True).status == "passed"
    assert judged(read, complete=False).status == "failed", "the read ended a call, whose outputs nobody judged"
    both = judged(read, wrong, complete=True)
    assert (both.status, both.findings) == ("failed", [wrong])
    assert judged(wrong, complete=True).findings == [wrong]


RACING = OWN.replace(
    "    y[thread] = shared[63 - thread]\n",
    "    y[thread] = shared[63 - thread]\n    y[63 - thread] = shared[thread]\n",
)
"""Two statements of two warps write each element, with equal values."""
WATCHED = ("k.py", "--nvfp4-check=races", "--nvfp4-check=verify", "--nvfp4-device=sim")


@pytest.mark.slow
def test_an_accepted_race_passes_and_is_shown_until_it_changes(project: Project) -> None:
    from click.testing import CliRunner

    from pytest_nvfp4.cli.app import app

    project.file("contract.py", CONTRACT)
    project.settings(TABLE)
    project.kernel(source=RACING, entry="compile_it")
    red = project.run(*WATCHED, "--nvfp4-json=r.json")
    outcomes(red, passed=1, failed=1)
    assert "race: k.py:" in red.failures()["races[one]"]
    accepted = CliRunner().invoke(app, ["accept", "k.py", "--report", "r.json", "--reason", "both values are equal"])
    assert accepted.exit_code == 0, accepted.output
    green = project.run(*WATCHED, "--nvfp4-json=r.json", "--nvfp4-html=r.html", "--nvfp4-md=r.md", "--junitxml=r.xml")
    outcomes(green, passed=2)
    assert "both values are equal)" in green.section("nvfp4: 1 accepted finding, which would fail otherwise")
    (races,) = [each for each in json.loads((project.path / "r.json").read_text())["checks"] if each["accepted"]]
    assert (races["check"], races["accepted"][0]["reason"]) == ("races[one]", "both values are equal")
    assert "no race but for 1 accepted finding" in races["established"][0]
    assert "both values are equal" in (project.path / "r.html").read_text()
    assert "both values are equal" in (project.path / "r.md").read_text()
    properties = ElementTree.parse(project.path / "r.xml").getroot().iter("property")
    assert any(each.get("name") == "nvfp4_accepted" for each in properties)
    spread = project.run(*WATCHED, "-n2")
    outcomes(spread, passed=2)
    assert "both values are equal" in spread.section("nvfp4: 1 accepted finding")
    off = project.run(*WATCHED, "--nvfp4-accepted=off")
    outcomes(off, passed=1, failed=1)
    assert "--nvfp4-accepted=off ignores that" in off.failures()["races[one]"]
    project.kernel(source=RACING.replace("shared[thread]\n", "shared[thread]  # changed\n"), entry="compile_it")
    changed = project.run(*WATCHED)
    outcomes(changed, passed=1, failed=1)
    assert "nvfp4: accepted, but not found any more: races of k.py: race at" in changed.text


@pytest.mark.slow
def test_an_entry_that_is_about_nothing_is_named_if_all_of_its_check_ran(
    project: Project, workers: tuple[str, ...]
) -> None:
    entry = '[[tool.pytest_nvfp4.accepted]]\ncheck = "compile"\nkernel = "k.py"\nkind = "autotune"\ntext = "gone()"\n'
    project.settings(f'{entry}reason = "r"\ndate = 2026-01-01\nexpires = 2999-01-01\n')
    project.kernel()
    said = "nvfp4: accepted, but not found any more: compile of k.py: autotune at 'gone()'"
    assert said in project.run("k.py", "--nvfp4-check=compile", *workers).text
    assert said not in project.run("k.py", "-k", "layouts", *workers).text
    project.settings(f'{entry}reason = "r"\ndate = 2026-01-01\nexpires = 2026-01-02\n')
    late = project.run("k.py", "--nvfp4-check=compile", *workers).text
    assert "nvfp4: accepted until 2026-01-02, which has passed: compile of k.py" in late
    assert "not found any more" not in late
