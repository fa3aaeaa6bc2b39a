import re
from html.parser import HTMLParser

import pytest
import report_samples as reports
from markdown_it import MarkdownIt  # comes with rich

from pytest_nvfp4.layout.change import Severity
from pytest_nvfp4.report.markdown import COMMENT_LIMIT, MARKER, code, fenced, prose, render_markdown
from pytest_nvfp4.report.model import Report
from pytest_nvfp4.text import clip, visible


def units(text):
    return len(text.encode("utf-16-le")) // 2


class Page(HTMLParser):
    """What GitHub's renderer shows: the elements, and the text that stands outside code."""

    def __init__(self, markdown):
        super().__init__(convert_charrefs=True)
        self.open, self.seen, self.attributes, self.prose, self.code = [], set(), [], [], []
        self.feed(MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.attributes += attrs
        if tag not in {"br", "hr", "img"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.code if {"code", "pre"} & set(self.open) else self.prose).append(data)


def test_the_first_line_finds_the_comment_again():
    assert render_markdown(reports.ordinary()).split("\n")[0] == MARKER
    assert MARKER not in render_markdown(reports.ordinary(), marker=None)


def test_a_table_has_a_row_for_each_check_and_a_fold_follows_for_each_failure():
    text = render_markdown(reports.ordinary())
    table, _, folds = text.partition("</table>")
    rows = [line for line in table.split("\n") if line.startswith("<tr><td>")]
    assert [re.search("failed|passed|skipped", row)[0] for row in rows] == ["failed", "passed", "skipped"]
    assert "registers 128 -&gt; 168 (+40, +31.2 %)" in rows[0]
    assert "no device" in rows[2]
    assert "<details" not in table
    assert folds.count("<details") == folds.count("</details>") == 3
    assert folds.count(": failed, worst layout change: different</summary>") == 1


def test_old_and_new_types_stand_in_a_diff_block():
    text = render_markdown(reports.ordinary())
    assert f"```diff\n- {reports.OLD}\n+ {reports.NEW}\n```" in text


def test_every_severity_is_shown_by_name():
    text = render_markdown(Report([reports.check(*reports.every_severity())]))
    for severity in Severity:
        assert severity.label in text
    assert text.count("<b>") == 2  # different and permuted gate
    assert text.count("<i>") == 3


TABLE = {"table", "tr", "th", "td"}
ELEMENTS = {"h2", "p", "em", "strong", "code", "pre", "details", "summary", "ul", "li", "b", "i"} | TABLE


@pytest.mark.parametrize("text", reports.HOSTILE)
def test_hostile_text_is_shown_and_does_nothing(text):
    markdown = render_markdown(reports.hostile(text))
    page = Page(markdown)
    assert page.seen <= ELEMENTS
    assert {name for name, _ in page.attributes} <= {"open", "class"}
    assert "\x1b" not in markdown
    assert "\u202e" not in markdown
    # Names and types are in code, where no mention or reference works; the prose has them only broken up.
    assert not re.search(r"[@#]\w", "\0".join(page.prose))
    shown = clip(visible(text), 200)
    assert any(shown in piece for piece in page.code)


def test_the_renderer_of_these_tests_would_see_an_attack():
    page = Page("<details><summary>@me</summary>\n\n<script>1</script>\n\n</details>")
    assert "script" in page.seen
    assert re.search(r"[@#]\w", "\0".join(page.prose))


def test_the_ordinary_report_shows_as_meant():
    page = Page(render_markdown(reports.ordinary()))
    assert page.seen == ELEMENTS
    code = "".join(page.code)
    assert f"- {reports.OLD}\n+ {reports.NEW}\n" in code
    assert "registers 128 -> 168 (+40, +31.2 %)" in code
    prose_text = "".join(page.prose)
    assert "S<3,4,3> repeats every 1024 bytes" in prose_text
    assert "\\" not in prose_text


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
    assert re.search(r"Left out .*\d+ rows, .*\d+ checks", text)
    assert text.count("<tr><td>") > 50
    assert text.count("<details><summary>❌") > 20
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
