"""Documents: the same content as text, JSON, CSV, Markdown and HTML."""

import json
import re
import xml.etree.ElementTree as ET

import pytest
import report_samples as reports

from pytest_nvfp4.report.console import Terminal
from pytest_nvfp4.report.document import Code, Column, Document, Facts, Items, Prose, Section, Styled, Table
from pytest_nvfp4.report.render import OutputFormat, render, render_text

ANSI = re.compile(r"\x1b\[[0-9;]*m")
NUMBERS = Table(
    (Column("name", key="name"), Column("size", "B", right=True, key="bytes"), Column("note")),
    [("a", 7, Styled("bad", "bad")), ("long name", 1024, None)],
)
DOCUMENT = Document(
    "A result",
    [
        "first\nsecond",
        NUMBERS,
        Section("part", [Facts([("key", 1), ("longer key", "two\nlines")]), Items(["an item"])]),
        Code("add.u32 %r1;", "ptx"),
    ],
    {"value": 1},
)
TEXT = """\
first
second

name       size [B]  note
a                 7  bad
long name      1024  -

part
  key         1
  longer key  two
              lines
  - an item

add.u32 %r1;
"""


def test_text_is_aligned_and_indented() -> None:
    assert render_text(DOCUMENT) == TEXT
    coloured = render_text(DOCUMENT, Terminal(120, color=True))
    assert "\x1b[" in coloured
    assert ANSI.sub("", coloured) == TEXT


def test_json_and_csv_hold_the_data() -> None:
    assert json.loads(render(DOCUMENT, OutputFormat.JSON)) == {"value": 1}
    assert render(DOCUMENT, OutputFormat.CSV) == "name,bytes\na,7\nlong name,1024\n"


def test_markdown_has_headings_tables_and_code() -> None:
    text = render(DOCUMENT, OutputFormat.MARKDOWN)
    assert text.startswith("## A result\n")
    assert "| name | size \\[B\\] | note |\n| --- | ---: | --- |\n| a | 7 | bad |" in text
    assert "### part\n" in text
    assert "```ptx\nadd.u32 %r1;\n```" in text


def test_html_is_well_formed() -> None:
    page = render(DOCUMENT, OutputFormat.HTML)
    root = ET.fromstring(page.removeprefix("<!DOCTYPE html>"))
    shown = " ".join("".join(root.itertext()).split())
    assert all(part in shown for part in ("A result", "long name", "1024", "longer key", "add.u32 %r1;"))


@pytest.mark.parametrize("text", reports.HOSTILE)
@pytest.mark.parametrize("output_format", [OutputFormat.TEXT, OutputFormat.MARKDOWN, OutputFormat.HTML])
def test_hostile_text_is_only_text(text: str, output_format: OutputFormat) -> None:
    table = Table((Column("name", code=True), Column("other")), [(text, text)])
    document = Document(text, [text, Items([text]), Facts([(text, text)]), table, Section(text)])
    shown = render(document, output_format)
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    if output_format is OutputFormat.HTML:
        root = ET.fromstring(shown.removeprefix("<!DOCTYPE html>"))
        assert not [item for item in root.iter() if item.tag.rpartition("}")[2] in {"script", "img", "a"}]


def test_a_folding_table_keeps_every_character() -> None:
    cell = "x" * 500
    table = Table((Column("name", share=1), Column("value", share=3), Column("n")), [("a\x1b[31m", cell, 7)])
    shown = render_text(Document("", [table]), Terminal(100, color=True))
    assert shown.count("x") == 500 + shown.count("\\x1b")
    assert "\x1b[31m" not in shown
    assert cell in render_text(Document("", [table]), Terminal(99, color=True))


def test_prose_is_rendered_in_every_format() -> None:
    document = Document("", [Prose("# Title\n\nSome *text*.\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n")])
    assert "Some text." in render_text(document)
    assert "\x1b[" in render_text(document, Terminal(80, color=True))
    assert render(document, OutputFormat.MARKDOWN).startswith("# Title\n")
    page = render(document, OutputFormat.HTML)
    assert "<em>text</em>" in page
    ET.fromstring(page.removeprefix("<!DOCTYPE html>"))
