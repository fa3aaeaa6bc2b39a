"""``nvfp4 accept``, on reports of earlier runs; `tests/plugin/test_accepted.py` has a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.settings import load

RACE = {"kind": "race", "message": "k.py:3 writes it\n  more", "line": 3, "file": "k.py"}


def finding(text: str = "c[0] = 1", others: tuple[str, ...] = ("d()",), **changes: Any) -> dict[str, Any]:
    return {**RACE, "acceptable": {"text": text, "others": list(others)}, **changes}


@pytest.fixture
def reported(tmp_path: Path, cli):
    """Run the command on a kernel with a report of some findings, by the name of their item."""
    kernel = tmp_path / "kernels" / "k.py"
    kernel.parent.mkdir()
    kernel.write_text("")
    (tmp_path / "pyproject.toml").write_text("# mine\n[tool.pytest_nvfp4]\n")
    report = tmp_path / "r.json"

    def run(findings: dict[str, list[dict[str, Any]]], *arguments: str, warnings: Any = ()):
        checks = [
            {"kernel": "kernels/k.py", "check": name, "findings": found, "warnings": list(warnings)}
            for name, found in findings.items()
        ]
        checks.append({"kernel": "other.py", "check": "races", "findings": [finding("other")], "warnings": []})
        report.write_text(json.dumps({"checks": checks}))
        return cli("accept", kernel, "--report", report, *arguments)

    return run


def test_the_findings_are_listed_and_one_is_written(reported, tmp_path: Path) -> None:
    found = {
        "races[a]": [finding(), finding(line=9)],
        "races[b]": [finding(others=("e()",)), finding(kind="mismatch", acceptable=None)],
        "coverage[a]": [finding(kind="written-by-two", line=None)],
    }
    listed = reported(found)
    assert listed.code == 0
    assert "k.py:3: k.py:3 writes it" in listed.out
    assert "written-by-two" in listed.out
    assert "mismatch" not in listed.out
    assert load(tmp_path).accepted == ()
    several = reported(found, "--reason", "equal values")
    assert several.code == 2
    assert "choose one: --line 3 --kind race" in several.err
    done = reported(found, "--reason", "equal\n values", "--line", "9", "--expires", "2999-01-31", "--json")
    assert json.loads(done.out)["accepted"], done.err
    (entry,) = load(tmp_path).accepted
    assert (entry.check, entry.kernel, entry.kind, entry.text) == ("races", "kernels/k.py", "race", "c[0] = 1")
    assert (entry.others, entry.places, entry.reason) == (("d()", "e()"), 2, "equal values")
    assert str(entry.expires) == "2999-01-31"
    assert (tmp_path / "pyproject.toml").read_text().startswith("# mine\n")


def test_a_finding_of_several_checks_gets_an_entry_for_each(reported, tmp_path: Path) -> None:
    found = {"races[a]": [finding(kind="uninitialised")], "verify[a]": [finding(kind="uninitialised")]}
    assert reported(found, "--reason", "masked").code == 0
    assert [entry.check for entry in load(tmp_path).accepted] == ["races", "verify"]
    assert reported(found, "--reason", "again", "--check", "verify").code == 0
    assert [(entry.check, entry.reason) for entry in load(tmp_path).accepted] == [
        ("races", "masked"),
        ("verify", "again"),
    ]
    warned = reported({"coverage[a]": []}, "--reason", "same", warnings=[finding(kind="written-twice")])
    assert warned.code == 0
    assert load(tmp_path).accepted[-1].kind == "written-twice"


def test_the_entry_is_written_where_the_run_reads_it(reported, tmp_path: Path) -> None:
    """With a pytest.ini above, a nearer pyproject.toml is not the file of the run's settings."""
    (tmp_path / "kernels" / "pyproject.toml").write_text("[tool.pytest_nvfp4]\n")
    lines = {"text": "c[0] = 1", "others": []}
    for kernel, root in (("kernels/k.py", tmp_path), ("k.py", tmp_path / "kernels"), ("/k.py", tmp_path / "kernels")):
        found = {"races[a]": [finding(acceptable={**lines, "kernel": kernel})]}
        done = reported(found, "--reason", kernel, "--json")
        assert json.loads(done.out)["file"] == str(root / "pyproject.toml"), done.err
        (entry,) = load(root).accepted
        assert (entry.reason, entry.kernel) == (kernel, "kernels/k.py" if root == tmp_path else "k.py")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--line", "4"), "no finding that can be accepted was found; there are 1 others"),
        (("--reason", " "), "--reason is empty"),
        (("--expires", "soon"), "a date such as"),
        (("--expires", "2001-01-01"), "has passed"),
        (("--expires", "999999999999"), "a date such as"),
    ],
)
def test_what_cannot_be_used_is_refused(reported, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    before = (tmp_path / "pyproject.toml").read_text()
    shown = reported({"races[a]": [finding()]}, *arguments)
    assert shown.code == 2
    assert said in shown.err
    assert (tmp_path / "pyproject.toml").read_text() == before


def test_a_file_that_is_no_report_is_named(cli, tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text("")
    for text in ("[]", "{", '{"checks": [{}]}'):
        (tmp_path / "r.json").write_text(text)
        assert cli("accept", tmp_path / "k.py", "--report", tmp_path / "r.json").code == 2
