"""The JSON report, and the choice of checks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Project
from .sources import KERNEL, LINE_OF_STAGES, OTHER_LAUNCH, SEVERE


def report(project: Project, *arguments: str) -> dict[str, Any]:
    project.run("k.py", "--nvfp4-json=out/r.json", *arguments)
    loaded = json.loads((project.path / "out" / "r.json").read_text())
    assert isinstance(loaded, dict)
    return loaded


@pytest.mark.slow
def test_it_holds_every_check_with_the_layouts_that_changed(project: Project, workers: tuple[str, ...]) -> None:
    project.kernel()
    project.record("k.py")
    project.kernel("k.py", SEVERE)
    data = report(project, *workers)
    assert (data["ok"], data["outcomes"]["failed"], data["remote"]) == (False, 1, None)
    by_name = {check["check"].partition("[")[0]: check for check in data["checks"]}
    layouts = by_name["layouts"]
    assert (layouts["outcome"], layouts["file"], layouts["line"]) == ("failed", "k.py", LINE_OF_STAGES)
    assert layouts["diff"]["changes"][0]["name"] == "go.stages"
    assert len(by_name["compile"]["values"]["code_sha256"]) == 64


@pytest.mark.slow
def test_a_failure_has_its_findings_with_line_and_text(project: Project, workers: tuple[str, ...]) -> None:
    project.file("k.py", "def custom_kernel(data):\n    return (\n")
    (failed,) = [check for check in report(project, *workers)["checks"] if check["outcome"] == "failed"]
    (finding,) = failed["findings"]
    assert (finding["line"], finding["severity"]) == (2, "error")
    assert "never closed" in finding["message"]
    assert finding["text"].strip() == "return ("


@pytest.mark.slow
def test_comments_change_no_hash_and_another_grid_does(project: Project) -> None:
    def hashed(source: str) -> str:
        project.kernel("k.py", source)
        (check,) = report(project, "--nvfp4-check=compile")["checks"]
        return str(check["values"]["code_sha256"])

    plain = hashed(KERNEL)
    assert hashed(f"# a comment, which moves every line\n{KERNEL}") == plain
    assert hashed(OTHER_LAUNCH) != plain


def test_only_the_chosen_checks_run_in_the_order_given(project: Project, workers: tuple[str, ...]) -> None:
    project.kernel()
    project.file("test_x.py", "def test_it():\n    assert False\n")
    project.record("k.py")
    arguments = ("--nvfp4-check=launch", "--nvfp4-check=compile", "--nvfp4-json=out/r.json", *workers)
    ran = project.run("k.py", "test_x.py", *arguments)
    assert ran.code == 0, ran.text
    assert "unused" not in ran.text
    data = json.loads((project.path / "out" / "r.json").read_text())
    names = [check["check"].partition("[")[0] for check in data["checks"]]
    assert (sorted(names) if workers else names) == sorted(names, reverse=not workers)
    assert set(names) == {"launch", "compile"}


def test_an_unknown_check_is_refused(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert project.run(".", "--nvfp4-check=compiles").code == pytest.ExitCode.USAGE_ERROR
    assert "--nvfp4-check 'compiles': known are compile, " in capsys.readouterr().err
