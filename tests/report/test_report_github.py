import re
from pathlib import Path

import pytest
import report_samples as reports

from pytest_nvfp4.layout.change import Severity
from pytest_nvfp4.layout.launch_facts import diff_facts
from pytest_nvfp4.report.github import (
    ANNOTATIONS_PER_LEVEL,
    SUMMARY_LIMIT,
    annotate,
    annotation,
    fit_bytes,
    write_step_summary,
)
from pytest_nvfp4.report.markdown import MARKER
from pytest_nvfp4.report.model import CheckReport, Report

COMMAND = re.compile(r"::(error|warning|notice)(?: ([^:]*))?::(.*)")


def decode(line):
    """What the runner makes of a command: its level, properties and message."""
    level, properties, message = COMMAND.fullmatch(line).groups()

    def plain(text):
        for code, char in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
            text = text.replace(code, char)
        return text

    pairs = dict(part.split("=", 1) for part in properties.split(",")) if properties else {}
    return level, {key: plain(value) for key, value in pairs.items()}, plain(message)


def test_an_annotation_says_where_and_what():
    line = annotation("error", "100% wrong\nsee: a,b", file="a/b.py", line=3, title="k: sA, sB")
    assert line == "::error file=a/b.py,line=3,title=k%3A sA%2C sB::100%25 wrong%0Asee: a,b"
    assert decode(line) == ("error", {"file": "a/b.py", "line": "3", "title": "k: sA, sB"}, "100% wrong\nsee: a,b")


def test_without_properties_there_is_no_blank():
    assert annotation("notice", "m") == "::notice::m"


@pytest.mark.parametrize("text", [text for text in reports.HOSTILE if text.isprintable()])
def test_hostile_text_is_one_command_that_decodes_to_itself(text):
    line = annotation("error", text, file=text, title=text)
    assert "\n" not in line
    assert decode(line) == ("error", {"file": text, "title": text}, text)


@pytest.mark.parametrize("text", reports.HOSTILE)
def test_hostile_reports_give_one_line_a_command(text):
    lines = annotate(reports.hostile(text))
    assert len(lines) == 1
    assert "\n" not in lines[0]
    assert "\r" not in lines[0]
    assert COMMAND.fullmatch(lines[0])


def test_bad_checks_are_errors_and_changes_below_the_gate_warnings():
    passed = reports.check(reports.change(Severity.RENESTED), outcome="passed", kernel="p")
    quiet = CheckReport("q", "c", "passed")
    levels = [decode(line)[0] for line in annotate(Report([passed, quiet, reports.check(reports.full_change())]))]
    assert levels == ["error", "warning"]


def test_the_annotation_of_a_failed_check_names_the_facts_that_changed():
    old = {f"cost.{at:02}": "1" for at in range(22)} | {"grid": "(148,1,1)", "registers": "128"}
    new = {f"cost.{at:02}": "2" for at in range(22)} | {"grid": "(148,1,1)", "registers": "168"}
    facts = diff_facts(old, new)
    check = CheckReport(
        "k", "launch", "failed", "23 launch facts of k changed\nto accept: --snapshot-update", facts=facts
    )
    verdict, first, *others, last = decode(annotate(Report([check]))[0])[2].split("\n")
    assert verdict == "23 launch facts of k changed"
    assert first == "registers 128 -> 168 (+40, +31.2 %)"  # it costs more
    assert others[-2:] == ["cost.18 1 -> 2 (+1, +100.0 %)", "and 3 facts more"]
    assert last == "to accept: --snapshot-update"
    assert not any("grid" in line for line in others)


def test_files_are_named_relative_to_the_repository(tmp_path):
    inside = reports.check(reports.change(), file=str(tmp_path / "kernels" / "k.py"))
    outside = reports.check(reports.change(), file="/elsewhere/k.py")
    files = [decode(line)[1]["file"] for line in annotate(Report([inside, outside]), root=tmp_path)]
    assert files == ["kernels/k.py", "/elsewhere/k.py"]


def test_more_annotations_than_github_shows_are_counted():
    lines = annotate(Report([reports.check(reports.change(), kernel=f"k{at}") for at in range(25)]))
    assert len(lines) == ANNOTATIONS_PER_LEVEL
    assert "16 failed checks more" in decode(lines[-1])[2]


def test_the_summary_is_appended(tmp_path):
    target = tmp_path / "summary.md"
    target.write_text("# another tool\n")
    written = write_step_summary(reports.ordinary(), environ={"GITHUB_STEP_SUMMARY": str(target)})
    text = target.read_text(encoding="utf-8")
    assert text.startswith("# another tool\n\n## ")
    assert written == len(text.encode()) - len("# another tool\n")
    assert MARKER not in text


def test_outside_actions_nothing_is_written():
    assert write_step_summary(reports.ordinary(), environ={}) == 0


@pytest.mark.parametrize("used", [0, 500_000, SUMMARY_LIMIT - 2_000, SUMMARY_LIMIT - 10, SUMMARY_LIMIT + 5])
def test_the_summary_never_passes_the_limit(tmp_path, used):
    target = tmp_path / "summary.md"
    target.write_bytes(b"x" * used)
    before = Path(target).stat().st_size
    written = write_step_summary(reports.large(3000), environ={"GITHUB_STEP_SUMMARY": str(target)})
    assert target.stat().st_size == before + written
    assert target.stat().st_size <= max(SUMMARY_LIMIT, before)
    if used < SUMMARY_LIMIT - 1_000:
        assert "Left out to stay within" in target.read_text(encoding="utf-8")


def test_bytes_are_fitted_not_characters():
    report = Report([reports.check(reports.change(name="é" * 150 + str(at))) for at in range(200)])
    body = fit_bytes(report, 20_000)
    assert 0 < len(body) <= 20_000
    assert fit_bytes(report, 10) == b""
