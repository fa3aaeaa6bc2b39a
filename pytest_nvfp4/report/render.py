"""A document as text, JSON, CSV, Markdown or HTML.

All text may hold names that a kernel chose: each renderer escapes what could act in its format.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from enum import StrEnum
from itertools import zip_longest

from pytest_nvfp4.report.console import PLAIN, Terminal, markdown_text
from pytest_nvfp4.report.document import (
    Block,
    Cell,
    Code,
    Document,
    Facts,
    Items,
    Paragraph,
    Prose,
    Section,
    Style,
    Styled,
    Table,
    cell_style,
    cell_text,
)
from pytest_nvfp4.report.model import Report
from pytest_nvfp4.text import visible

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
            return json.dumps(document.data, indent=2, ensure_ascii=False) + "\n"
        case OutputFormat.MARKDOWN:
            return render_markdown(document)
        case OutputFormat.HTML:
            return render_html(document)
        case OutputFormat.CSV:
            return render_csv(document)


def render_csv(document: Document) -> str:
    """Return the tables of a document as CSV, each with a line of its columns' keys."""
    text = io.StringIO()
    for table in document.tables():
        writer = csv.DictWriter(text, [column.key for column in table.columns if column.key], lineterminator="\n")
        writer.writeheader()
        writer.writerows(table.records())
    return text.getvalue()


# Text


def render_text(document: Document, terminal: Terminal = PLAIN) -> str:
    """Return a document as lines of text; they are never wrapped or cut, except for cells of a wide terminal's table.

    A blank line separates top-level sections and tables from what is beside them.
    """
    parts: list[str] = []
    before: Block | None = None
    for block in document.blocks:
        if before is not None and any(isinstance(one, Section | Table) for one in (before, block)):
            parts.append("\n")
        parts += _text(block, terminal, indent="")
        before = block
    return "".join(parts)


def _text(block: Block, terminal: Terminal, *, indent: str) -> Iterator[str]:
    match block:
        case Report():
            from pytest_nvfp4.report.terminal import render_terminal

            yield render_terminal(block, terminal)
        case Paragraph():
            yield from _lines(visible(block.text, multiline=True), terminal, indent=indent, style=block.style)
        case Items():
            for item in block.texts:
                first, *rest = visible(item, multiline=True).split("\n")
                yield from _lines("\n".join([f"- {first}", *(f"  {line}" for line in rest)]), terminal, indent=indent)
        case Facts():
            width = max((len(visible(name)) for name, _ in block.items), default=0)
            for name, value in block.items:
                lines = visible(cell_text(value), multiline=True).split("\n")
                text = "\n".join(
                    [f"{visible(name):<{width}}  {lines[0]}", *(f"{'':<{width}}  {line}" for line in lines[1:])]
                )
                yield from _lines(text, terminal, indent=indent, style=cell_style(value))
        case Code():
            text = block.text if block.text.endswith("\n") else block.text + "\n"
            yield "".join(f"{indent}{line}" for line in text.splitlines(keepends=True))
        case Prose():
            yield markdown_text(block.source, terminal)
        case Table():
            if block.folds and terminal.wide:
                yield _folding_table(block, terminal)
            else:
                yield from _plain_table(block, terminal, indent=indent)
        case Section():
            style = block.title.style if isinstance(block.title, Styled) else "strong"
            yield from _lines(visible(cell_text(block.title)), terminal, indent=indent, style=style)
            for child in block.blocks:
                yield from _text(child, terminal, indent=indent + "  ")


def _coloured(text: str, style: Style, terminal: Terminal) -> str:
    if not style or not terminal.color:
        return text
    from rich.text import Text

    return terminal.render(lambda console: console.print(Text(text, style=_ANSI[style]), end="", soft_wrap=True))


def _lines(text: str, terminal: Terminal, *, indent: str, style: Style = "") -> Iterator[str]:
    for line in text.split("\n"):
        yield f"{indent}{_coloured(line, style, terminal)}".rstrip() + "\n"


def _plain_table(table: Table, terminal: Terminal, *, indent: str) -> Iterator[str]:
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
            yield f"{indent}{'  '.join(cells)}".rstrip() + "\n"


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
    from pytest_nvfp4.report.markdown import prose

    has_heading = bool(document.blocks) and isinstance(document.blocks[0], Report | Prose)
    lines = [] if has_heading else [f"## {prose(document.title)}", ""]
    for block in document.blocks:
        lines += _markdown(block, level=3)
    return "\n".join(lines).rstrip() + "\n"


def _markdown(block: Block, *, level: int) -> Iterator[str]:
    from pytest_nvfp4.report import markdown

    match block:
        case Report():
            yield markdown.render_markdown(block, marker=None)
        case Paragraph():
            # Two spaces at the end of a line are Markdown's line break.
            yield "  \n".join(markdown.prose(line.strip()) for line in block.text.strip().split("\n"))
        case Items():
            yield from (f"- {markdown.prose(' '.join(text.split()))}" for text in block.texts)
        case Facts():
            yield from (f"- {markdown.prose(name)}: {_markdown_cell(value, code=False)}" for name, value in block.items)
        case Code():
            yield from markdown.fenced(visible(block.text.rstrip("\n"), multiline=True), block.language)
        case Prose():
            yield block.source.strip()
        case Table():
            yield f"| {' | '.join(markdown.prose(column.heading) for column in block.columns)} |"
            yield f"| {' | '.join('---:' if column.right else '---' for column in block.columns)} |"
            for row in block.rows:
                cells = (
                    _markdown_cell(cell, code=column.code) for cell, column in zip(row, block.columns, strict=True)
                )
                yield f"| {' | '.join(cells)} |"
        case Section():
            yield f"{'#' * min(level, 6)} {markdown.prose(cell_text(block.title))}"
            yield ""
            for child in block.blocks:
                yield from _markdown(child, level=level + 1)
            return
    yield ""


def _markdown_cell(cell: Cell, *, code: bool) -> str:
    """A cell on one line; a bar would end it even within code."""
    from pytest_nvfp4.report import markdown

    if cell is None:
        return "-"
    text = cell_text(cell)
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
