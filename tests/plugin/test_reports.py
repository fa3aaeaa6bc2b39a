"""The HTML and Markdown reports, GitHub's step summary and annotations."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .conftest import Project
from .sources import LINE_OF_STAGES, LINE_OF_TILE, MILD, SEVERE


@pytest.fixture
def changed(project: Project) -> Project:
    """Two kernels with snapshots: one has since changed severely, the other mildly."""
    for name in ("severe.py", "mild.py"):
        project.kernel(name)
    project.record("severe.py", "mild.py")
    project.kernel("severe.py", SEVERE)
    project.kernel("mild.py", MILD)
    return project


@pytest.mark.slow
def test_html_and_markdown_hold_every_check(changed: Project, workers: tuple[str, ...]) -> None:
    ran = changed.run("severe.py", "mild.py", "--nvfp4-html=out/r.html", "--nvfp4-md=out/r.md", *workers)
    ran.outcomes(passed=7, failed=1)
    page, text = (changed.path / "out" / name for name in ("r.html", "r.md"))
    assert f"nvfp4: HTML report: {page}" in ran.text
    assert f"nvfp4: Markdown report: {text}" in ran.text
    ElementTree.fromstring(page.read_text().partition("?>")[2] or page.read_text())
    for content in (page.read_text(), text.read_text()):
        assert "1 failed, 7 passed" in content
        assert all(name in content for name in ("severe.py", "mild.py", "go.stages", "go.tile"))
        assert "launch[gpumode-0]" in content
    markdown = text.read_text()
    row, fold = (line for line in markdown.split("\n") if "go.stages" in line)
    assert row.startswith("<tr>")
    assert "severe.py" in row
    assert fold.startswith("<details>")
    assert "1 layout change of severe.py at or above the gate (permuted)" in markdown
    assert "if the change is meant: pytest severe.py --snapshot-update" in markdown
    assert f"At `severe.py:{LINE_OF_STAGES}`" in markdown
    assert str(changed.path) not in markdown + page.read_text(), "the folder of this machine is nothing elsewhere"


@pytest.mark.slow
def test_a_passed_check_says_what_it_established_and_a_failed_one_why_not(
    changed: Project, workers: tuple[str, ...]
) -> None:
    changed.run("severe.py", "mild.py", "--nvfp4-html=r.html", "--nvfp4-json=r.json", *workers).outcomes(
        passed=7, failed=1
    )
    checks = json.loads((changed.path / "r.json").read_text())["checks"]
    assert {bool(check["established"]) for check in checks if check["outcome"] == "passed"} == {True}
    assert [check["established"] for check in checks if check["outcome"] == "failed"] == [[]]
    assert all(check["seconds"] >= 0 for check in checks)
    page = (changed.path / "r.html").read_text()
    (row,) = re.findall(r'<tr class="is-failed">.*?</tr>', page, re.DOTALL)
    assert "1 layout change of severe.py at or above the gate" in row
    assert "compared with the snapshot" not in row
    passed = re.findall(r'<tr class="is-passed">.*?</tr>', page, re.DOTALL)
    assert sum("compared with the snapshot" in each for each in passed) == 5
    changed.run("mild.py", "--snapshot-update", "--nvfp4-json=r.json", *workers).outcomes(passed=4)
    (layouts,) = (each for each in json.loads((changed.path / "r.json").read_text())["checks"] if each["diff"])
    assert layouts["established"][0].endswith("recorded in the snapshot by --snapshot-update")


def test_a_kernel_that_did_not_compile_is_in_them(project: Project) -> None:
    project.file("k.py", "def custom_kernel(data):\n    return (\n")
    project.run("k.py", "--nvfp4-md=r.md").outcomes(failed=1, skipped=3)
    text = (project.path / "r.md").read_text()
    assert "never closed" in text
    assert "1 failed, 3 skipped" in text
    assert "it did not compile: see k.py::compile[gpumode-0]" in text


def test_tests_of_the_users_own_are_in_them(project: Project) -> None:
    project.kernel()
    project.file(
        "test_x.py", 'def test_it(layout_snapshot):\n    layout_snapshot("k.py")\n\ndef test_other():\n    pass\n'
    )
    project.run("test_x.py", "--nvfp4-md=r.md").outcomes(failed=1, passed=1)
    text = (project.path / "r.md").read_text()
    assert "there is no snapshot of the layouts yet" in text
    assert "test_other" not in text


def test_a_comparison_in_a_fixture_is_in_them(project: Project) -> None:
    project.kernel()
    fixture = '@pytest.fixture\ndef compared(layout_snapshot):\n    layout_snapshot("k.py")\n\n'
    project.file("test_x.py", f"import pytest\n\n{fixture}def test_it(compared):\n    pass\n")
    project.run("test_x.py", "--nvfp4-md=r.md").outcomes(errors=1)
    assert "there is no snapshot of the layouts yet" in (project.path / "r.md").read_text()


def test_a_run_without_kernels_says_so_in_them(project: Project) -> None:
    project.file("test_x.py", "def test_it():\n    pass\n")
    project.run("test_x.py", "--nvfp4-md=r.md", "--nvfp4-html=r.html").outcomes(passed=1)
    assert "no check ran" in (project.path / "r.md").read_text()
    assert "no check ran" in (project.path / "r.html").read_text()


@pytest.mark.parametrize("option", ["--nvfp4-html", "--nvfp4-md"])
def test_one_that_cannot_be_written_is_said_and_fails_the_run(
    project: Project, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    def refuse(_path: Path, _text: str) -> None:
        raise PermissionError(13, "Permission denied")

    project.kernel()
    project.record("k.py")
    monkeypatch.setattr("pytest_nvfp4.plugin.summary.write_whole", refuse)
    ran = project.run("k.py", f"{option}=r.out")
    ran.outcomes(passed=4)
    assert re.search(r"nvfp4: the (HTML|Markdown) report .*r\.out could not be written: .*Permission denied", ran.text)
    assert ran.code == 1


def test_one_that_cannot_be_made_is_said_and_no_internal_error(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(_report: object) -> str:
        raise RuntimeError("a defect of the renderer")

    project.kernel()
    project.record("k.py")
    monkeypatch.setattr("pytest_nvfp4.report.html.render_html", break_down)
    ran = project.run("k.py", "--nvfp4-html=r.html", "--nvfp4-md=r.md")
    ran.outcomes(passed=4)
    assert "r.html could not be written: RuntimeError: a defect of the renderer" in ran.text
    assert (project.path / "r.md").is_file()
    assert ran.code == 1


class TestGitHub:
    def test_annotations_name_the_line_in_the_workspace(
        self, changed: Project, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
    ) -> None:
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        monkeypatch.setenv("GITHUB_WORKSPACE", str(changed.path.parent))
        text = changed.run("severe.py", "mild.py", *workers).text
        commands = [line for line in text.splitlines() if line.startswith("::")]
        assert len(commands) == 2
        folder = changed.path.name
        assert commands[0].startswith(f"::error file={folder}/severe.py,line={LINE_OF_STAGES},")
        assert commands[1].startswith(f"::warning file={folder}/mild.py,line={LINE_OF_TILE},")

    def test_a_linked_workspace_is_the_same_place(self, changed: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        link = changed.path.parent / f"{changed.path.name}-link"
        link.symlink_to(changed.path)
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        monkeypatch.setenv("GITHUB_WORKSPACE", str(link))
        assert f"::error file=severe.py,line={LINE_OF_STAGES}," in changed.run("severe.py").text

    def test_a_root_outside_the_workspace_is_what_files_are_relative_to(
        self, changed: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        monkeypatch.setenv("GITHUB_WORKSPACE", "/somewhere/else")
        assert f"::error file=severe.py,line={LINE_OF_STAGES}," in changed.run("severe.py").text

    def test_a_missing_snapshot_points_at_the_kernel(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        project.kernel()
        text = project.run("k.py").text
        assert text.count("::error file=k.py,") == 1, "one for each cause"
        assert "this cause fails layouts (gpumode-0), launch (gpumode-0), codegen (gpumode-0)" in text

    def test_nothing_is_annotated_elsewhere(self, changed: Project) -> None:
        assert "::error" not in changed.run("severe.py").text

    def test_the_step_summary_is_added_to(self, changed: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        step = changed.file("step.md", "what another step wrote\n")
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
        changed.run("severe.py")
        text = step.read_text()
        assert text.startswith("what another step wrote\n")
        assert "1 failed, 3 passed" in text
        assert "go.stages" in text

    def test_a_run_without_kernels_adds_nothing(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        step = project.file("step.md", "")
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
        project.file("test_x.py", "def test_it():\n    pass\n")
        project.run("test_x.py").outcomes(passed=1)
        assert step.read_text() == ""

    def test_a_summary_that_cannot_be_written_is_said(self, changed: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(changed.path))
        ran = changed.run("mild.py")
        ran.outcomes(passed=4)
        assert "nvfp4: the step summary could not be written" in ran.text
        assert ran.code == 1


def test_names_of_a_kernel_cannot_write_into_a_report(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    project.settings("", ini='nvfp4_kernels = ["k*"]')
    project.file("k,line=9%0A`@me<img src=x>.py", "def custom_kernel(data):\n    return (\n")
    ran = project.run(".", "--nvfp4-html=r.html", "--nvfp4-md=r.md")
    assert ran.code == 1
    (command,) = (line for line in ran.text.splitlines() if line.startswith("::"))
    assert command.startswith("::error file=k%2Cline=9%250A`@me<img src=x>.py,line=2,")
    assert "<img" not in (project.path / "r.html").read_text()
    assert not re.search(r"^[^`]*(<img|@me)", (project.path / "r.md").read_text(), re.MULTILINE)
