"""The result of a command, described once: blocks for readers, plain data for programs.

``report.render`` turns a document into text, JSON, Markdown or HTML.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from pytest_nvfp4.report.model import Report

Style = Literal["", "good", "bad", "warning", "muted", "strong"]


@dataclass(frozen=True, slots=True)
class Styled:
    """An untrusted text with a style; without colour it is shown as its text."""

    text: str
    style: Style = ""


Cell: TypeAlias = str | int | Styled | None
"""A value of a table or a fact; None is shown as ``-``. Text is untrusted."""


def cell_text(cell: Cell) -> str:
    """Return a cell as text."""
    if cell is None:
        return "-"
    return cell.text if isinstance(cell, Styled) else str(cell)


def cell_style(cell: Cell) -> Style:
    """Return the style of a cell."""
    return cell.style if isinstance(cell, Styled) else ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: Heading.
        unit: Unit of the values; empty for none.
        right: Whether values are aligned to the right, as numbers are.
        share: Share of a wide terminal's width, for long values that fold; None for the width of the widest value.
        code: Whether values are code: names, types, layouts.
        key: Key of the column in JSON and CSV; empty to leave it out there.
    """

    name: str
    unit: str = ""
    right: bool = False
    share: int | None = None
    code: bool = False
    key: str = ""

    @property
    def heading(self) -> str:
        """Name and unit."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with one cell for each column; ``heading`` is whether plain text has a line with the columns' names."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    heading: bool = True

    @property
    def folds(self) -> bool:
        """Whether a column is too long to be padded in plain text."""
        return any(column.share is not None for column in self.columns)

    def records(self) -> Iterator[dict[str, str | int | None]]:
        """Yield each row as a mapping from the columns' keys to plain values."""
        for row in self.rows:
            yield {
                column.key: cell.text if isinstance(cell, Styled) else cell
                for column, cell in zip(self.columns, row, strict=True)
                if column.key
            }


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with one value each, in the order they are shown."""

    items: Sequence[tuple[str, Cell]]


@dataclass(frozen=True, slots=True)
class Items:
    """A list of short untrusted texts."""

    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Code:
    """Text that is shown exactly as it is, in plain text without any escape; Markdown names its language."""

    text: str
    language: str = "text"


@dataclass(frozen=True, slots=True)
class Prose:
    """A text in Markdown, of this package itself: its source is trusted."""

    source: str


@dataclass(frozen=True, slots=True)
class Section:
    """An untrusted title with blocks below it, which plain text indents."""

    title: str | Styled
    blocks: Sequence[Block] = ()


Block: TypeAlias = str | Styled | Items | Facts | Table | Code | Prose | Section | Report
"""Part of a document; a text is a paragraph, whose line ends are kept."""


@dataclass(frozen=True, slots=True)
class Document:
    """The result of a command.

    Attributes:
        title: Heading of Markdown and HTML; plain text has none.
        blocks: The result for readers.
        data: The result for programs: JSON-ready values.
        ok: Whether no check failed; else the command's exit code is 1.
    """

    title: str
    blocks: Sequence[Block]
    data: Mapping[str, Any] = field(default_factory=dict)
    ok: bool = True
