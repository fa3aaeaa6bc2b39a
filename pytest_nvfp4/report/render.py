"""A document as text, JSON, CSV, Markdown or HTML.

All text may hold names that a kernel chose: each renderer escapes what could act in its format.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from itertools import zip_longest

from pytest_nvfp4.report import markdown
from pytest_nvfp4.report.console import PLAIN, Terminal, markdown_text
from pytest_nvfp4.report.document import (
    Block,
    Cell,
    Code,
    Column,
    Document,
    Facts,
    Items,
    Prose,
    Section,
    Style,
    Styled,
    Table,
    cell_style,
    cell_text,
)
from pytest_nvfp4.report.model import Report
from pytest_nvfp4.text import json_text, visible

_ANSI: dict[Style, str] = {
    "": "",
    "good": "green",
    "bad": "bold red",
    "warning": "yellow",
    "muted": "dim",
    "strong": "bold",
}


class OutputFormat(StrEnum):
    """Formats that a document can be written in."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"
    CSV = "csv"


def render(document: Document, output_format: OutputFormat, terminal: Terminal = PLAIN) -> str:
    """Return a document in a format, with a line end at its end.

    Args:
        document: The document.
        output_format: The format.
        terminal: What text is written to; the other formats ignore it.
    """
    match output_format:
        case OutputFormat.TEXT:
            return render_text(document, terminal)
        case OutputFormat.JSON:
            return json_text(document.data) + "\n"
        case OutputFormat.MARKDOWN:
            return render_markdown(document)
        case OutputFormat.HTML:
            return render_html(document)
        case OutputFormat.CSV:
            return render_csv(document)


def render_csv(document: Document) -> str:
    """Return the top-level tables of a document as CSV, each with a line of its columns' keys."""
    text = io.StringIO()
    for table in (block for block in document.blocks if isinstance(block, Table)):
        writer = csv.DictWriter(text, [column.key for column in table.columns if column.key], lineterminator="\n")
        writer.writeheader()
        writer.writerows(table.records())
    return text.getvalue()


# Text


def render_text(document: Document, terminal: Terminal = PLAIN) -> str:
    """Return a document as lines of text; they are never wrapped or cut, except for cells of a wide terminal's table.

    A blank line separates top-level sections and tables from what is beside them.
    """
    lines: list[str] = []
    before: Block | None = None
    for block in document.blocks:
        if before is not None and (isinstance(before, Section | Table) or isinstance(block, Section | Table)):
            lines.append("")
        lines += _text(block, terminal)
        before = block
    return "".join(f"{line}\n" for line in lines)


def _text(block: Block, terminal: Terminal) -> Iterator[str]:
    """Yield the lines of a block."""
    match block:
        case Report():
            from pytest_nvfp4.report.terminal import render_terminal

            yield from _split(render_terminal(block, terminal))
        case str() | Styled():
            for line in visible(cell_text(block), multiline=True).split("\n"):
                yield _coloured(line, cell_style(block), terminal).rstrip()
        case Items():
            for item in block.texts:
                yield from ("- " + visible(item, multiline=True).replace("\n", "\n  ")).split("\n")
        case Facts():
            rows = [(visible(name), value) for name, value in block.items]
            yield from _text(Table((Column("name"), Column("value")), rows, heading=False), terminal)
        case Code():
            yield from _split(block.text)
        case Prose():
            yield from _split(markdown_text(block.source, terminal))
        case Table():
            folding = block.folds and terminal.wide
            yield from _split(_folding_table(block, terminal)) if folding else _plain_table(block, terminal)
        case Section():
            style = block.title.style if isinstance(block.title, Styled) else "strong"
            yield _coloured(visible(cell_text(block.title)), style, terminal).rstrip()
            inner = replace(terminal, width=terminal.width - 2)
            yield from (line and f"  {line}" for child in block.blocks for line in _text(child, inner))


def _split(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")


def _coloured(text: str, style: Style, terminal: Terminal) -> str:
    if not style or not terminal.color:
        return text
    from rich.text import Text

    return terminal.render(lambda console: console.print(Text(text, style=_ANSI[style]), end="", soft_wrap=True))


def _plain_table(table: Table, terminal: Terminal) -> Iterator[str]:
    """Yield lines whose cells are two spaces apart; columns are padded unless one holds long text."""
    rows = list(table.rows)
    if table.heading and not table.folds:
        rows.insert(0, [Styled(column.heading, "strong") for column in table.columns])
    grid = [[visible(cell_text(cell), multiline=True).split("\n") for cell in row] for row in rows]
    widths = [
        0 if table.folds else max(len(line) for lines in column for line in lines) for column in zip(*grid, strict=True)
    ]
    for row, texts in zip(rows, grid, strict=True):
        for parts in zip_longest(*texts, fillvalue=""):
            cells = []
            for part, cell, width, column in zip(parts, row, widths, table.columns, strict=True):
                space = " " * (width - len(part))
                text = _coloured(part, cell_style(cell), terminal)
                cells.append(space + text if column.right else text + space)
            yield "  ".join(cells).rstrip()


def _folding_table(table: Table, terminal: Terminal) -> str:
    from rich.text import Text

    drawn = terminal.table()
    for column in table.columns:
        drawn.add_column(
            column.heading,
            ratio=column.share,
            overflow="fold",
            no_wrap=column.share is None,
            justify="right" if column.right else "left",
        )
    for row in table.rows:
        drawn.add_row(*(Text(visible(cell_text(cell), multiline=True), style=_ANSI[cell_style(cell)]) for cell in row))
    return terminal.render(lambda console: console.print(drawn))


# Markdown


def render_markdown(document: Document) -> str:
    """Return a document as GitHub-flavoured Markdown; names that a kernel chose expand to nothing."""
    has_heading = bool(document.blocks) and isinstance(document.blocks[0], Report | Prose)
    lines = [] if has_heading else [f"## {markdown.prose(document.title)}", ""]
    for block in document.blocks:
        lines += _markdown(block, level=3)
    return "\n".join(lines).rstrip() + "\n"


def _markdown(block: Block, *, level: int) -> Iterator[str]:
    match block:
        case Report():
            yield markdown.render_markdown(block, marker=None)
        case str() | Styled():
            # Two spaces at the end of a line are Markdown's line break.
            yield "  \n".join(markdown.prose(line.strip()) for line in cell_text(block).strip().split("\n"))
        case Items():
            yield from (f"- {markdown.prose(' '.join(text.split()))}" for text in block.texts)
        case Facts():
            yield from (f"- {markdown.prose(name)}: {_markdown_cell(value)}" for name, value in block.items)
        case Code():
            yield from markdown.fenced(visible(block.text.rstrip("\n"), multiline=True), block.language)
        case Prose():
            yield block.source.strip()
        case Table():
            yield f"| {' | '.join(markdown.prose(column.heading) for column in block.columns)} |"
            yield f"| {' | '.join('---:' if column.right else '---' for column in block.columns)} |"
            for row in block.rows:
                cells = map(_markdown_cell, row, (column.code for column in block.columns))
                yield f"| {' | '.join(cells)} |"
        case Section():
            yield f"{'#' * min(level, 6)} {markdown.prose(cell_text(block.title))}"
            yield ""
            for child in block.blocks:
                yield from _markdown(child, level=level + 1)
            return
    yield ""


def _markdown_cell(cell: Cell, code: bool = False) -> str:
    """A cell on one line; a bar would end it even within code."""
    text = cell_text(cell)
    if cell is None:
        return text
    if code:
        return markdown.code(text).replace("|", "\\|")
    return "<br>".join(markdown.prose(line) for line in text.split("\n"))


# HTML


def render_html(document: Document) -> str:
    """Return a document as one self-contained page: no scripts, no external resources, every text escaped."""
    from pytest_nvfp4.report import html

    body = html.render_blocks([block for block in document.blocks if not isinstance(block, Report)])
    for block in document.blocks:
        if isinstance(block, Report):
            return html.render_html(block, title=document.title, more=body)
    return html.render_page(title=document.title, body=body)
