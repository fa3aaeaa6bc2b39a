import re

import pytest
import report_samples as reports

from pytest_nvfp4.layout.change import ListingDiff, Severity
from pytest_nvfp4.report.console import Terminal
from pytest_nvfp4.report.model import CheckReport, Report
from pytest_nvfp4.report.terminal import MAX_CHANGES, render_terminal

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def test_plain_output_says_everything_about_a_change():
    text = render_terminal(reports.ordinary())
    for part in (
        "FAILED kernels/gemm/sm100.py layouts  (kernels/gemm/sm100.py:12)",
        "dsl 4.4.0 -> 4.8.1",
        "1 different, 1 cosmetic; 40 identical",
        "[gates]  [protected]",
        "MMA.M (mode 0.0): 128:256 -> 128:512",
        "at ((1,0),0,0,0) [index 1]: offset 256 -> 512",
        "align 1024 -> 128 B",
        f"- {reports.OLD}",
        f"+ {reports.NEW}",
        "registers 128 -> 168 (+40, +31.2 %)  costs more",
        "1 failed, 1 passed, 1 skipped",
    ):
        assert part in text
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [20, 79, 99])
def test_narrow_terminals_get_whole_lines(width):
    narrow = render_terminal(reports.ordinary(), Terminal(width, True))
    assert narrow == render_terminal(reports.ordinary())


@pytest.mark.parametrize("width", [100, 120, 200])
def test_the_table_folds_and_loses_nothing(width):
    text = ANSI.sub("", render_terminal(reports.ordinary(), Terminal(width, True)))
    assert "…" not in text
    squeezed = "".join(text.split())
    for part in (reports.OLD, reports.NEW, "MMA.M (mode 0.0): 128:256", "align 1024 -> 128 B", "offset 256 -> 512"):
        assert "".join(part.split()) in squeezed or all(word in text for word in part.split())
    assert reports.OLD in text


def test_a_very_long_layout_is_never_cut():
    long = "!cute.layout<" + '"(' + ",".join(["2"] * 500) + '"'
    report = Report([reports.check(reports.change(new=long))])
    for text in (render_terminal(report), ANSI.sub("", render_terminal(report, Terminal(120, True)))):
        assert long in text


def test_every_severity_is_shown_by_name():
    report = Report([reports.check(*reports.every_severity())])
    for color in (False, True):
        text = render_terminal(report, Terminal(140, color)).lower()
        for severity in Severity:
            assert severity.label in text


def test_what_is_below_the_gate_is_counted_in_the_table():
    text = ANSI.sub("", render_terminal(Report([reports.check(*reports.every_severity())]), Terminal(140, True)))
    assert "types of 3 changes below the gate not shown" in text


def test_a_flood_of_changes_is_counted():
    text = render_terminal(reports.large(MAX_CHANGES + 7))
    assert "7 further changes not shown here (all at most different)" in text
    assert "not shown" not in render_terminal(reports.large(MAX_CHANGES))


@pytest.mark.parametrize("text", reports.HOSTILE)
@pytest.mark.parametrize("color", [False, True])
def test_hostile_text_cannot_act_on_the_terminal(text, color):
    shown = ANSI.sub("", render_terminal(reports.hostile(text), Terminal(120, color)))
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\nbreak\r" not in shown


def test_no_change_is_said_in_one_line():
    report = Report([CheckReport("k", "layouts", "passed", diff=ListingDiff((), 12))])
    assert render_terminal(report) == "PASSED k layouts\n  layouts: 12 identical\nnvfp4: 1 passed\n"


def test_ascii_only_draws_no_other_character():
    report = Report([reports.check(*reports.every_severity())])
    assert render_terminal(report, Terminal(120, True, True)).isascii()
    assert not render_terminal(report, Terminal(120, True)).isascii()
