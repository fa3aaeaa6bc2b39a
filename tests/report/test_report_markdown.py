import re

import pytest
import report_samples as reports

from pytest_nvfp4.layout.change import Severity
from pytest_nvfp4.report.markdown import COMMENT_LIMIT, MARKER, code, fenced, prose, render_markdown
from pytest_nvfp4.report.model import Report


def units(text):
    return len(text.encode("utf-16-le")) // 2


def outside_code(text):
    """The Markdown that is not in fenced blocks or code spans: what GitHub interprets."""
    text = re.sub(r"(?ms)^(`{3,})[a-z]*\n.*?^\1$", "", text)
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", text)


def test_the_first_line_finds_the_comment_again():
    assert render_markdown(reports.ordinary()).split("\n")[0] == MARKER
    assert MARKER not in render_markdown(reports.ordinary(), marker=None)


def test_details_are_balanced_and_failed_checks_open():
    text = render_markdown(reports.ordinary())
    assert text.count("<details") == text.count("</details>") == 4
    assert text.count("<details open>") == 1


def test_old_and_new_types_stand_in_a_diff_block():
    text = render_markdown(reports.ordinary())
    assert f"```diff\n- {reports.OLD}\n+ {reports.NEW}\n```" in text


def test_every_severity_is_shown_by_name():
    text = render_markdown(Report([reports.check(*reports.every_severity())]))
    for severity in Severity:
        assert severity.label in text
    assert text.count("<b>") == 2  # different and permuted gate
    assert text.count("<i>") == 3


@pytest.mark.parametrize("text", reports.HOSTILE)
def test_hostile_text_stays_code(text):
    shown = render_markdown(reports.hostile(text))
    live = outside_code(shown)
    assert not re.search(r"(?<!\\)<script", live)
    assert not re.search(r"(?<!\\)<(?!/?(details|summary|code|b|i)\b|!--)[a-z]", live)
    assert "@everyone" not in re.sub(r"<code>.*?</code>", "", live)
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    # Nothing closes a section early.
    assert live.count("<details") == live.count("</details>")


@pytest.mark.parametrize("count", [30, 200, 2000])
def test_a_large_report_fits_and_says_what_it_left_out(count):
    text = render_markdown(reports.large(count))
    assert units(text) <= COMMENT_LIMIT
    shown = text.count("<summary><b>different</b>")
    left = re.search(r"Left out to stay within 65,536 characters: (\d+) layout changes", text)
    assert (left is None) == (shown == count)
    if left:
        assert shown + int(left[1]) == count
        assert shown > 50
    assert text.count("<details") == text.count("</details>")


def test_many_checks_are_counted_when_they_do_not_fit():
    report = Report([reports.check(reports.full_change(), kernel=f"k{at}") for at in range(400)])
    text = render_markdown(report)
    assert units(text) <= COMMENT_LIMIT
    assert re.search(r"Left out .*\d+ checks", text)
    assert text.startswith(MARKER)


def test_astral_characters_count_twice():
    report = Report([reports.check(reports.change(name="\U0001f600" * 150 + str(at))) for at in range(300)])
    assert units(render_markdown(report)) <= COMMENT_LIMIT


def test_no_room_at_all_gives_nothing():
    assert render_markdown(reports.ordinary(), limit=200) == ""


@pytest.mark.parametrize(
    ("text", "span"),
    [("a", "`a`"), ("a`b", "``a`b``"), ("`", "`` ` ``"), ("a``b`", "``` a``b` ```"), ("", "`  `")],
)
def test_code_spans_hold_backticks(text, span):
    assert code(text) == span


def test_a_fence_is_longer_than_any_in_the_text():
    assert fenced("```\n````", "text")[0] == "`````text"


def test_prose_is_literal():
    assert prose("*a* <b> @me #1") == r"\*a\* \<b\> \@<!-- -->me \#<!-- -->1"
