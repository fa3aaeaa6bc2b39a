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
    """A cell or title with a style; without colour it is shown as its text.

    Attributes:
        text: The text. Untrusted.
        style: How it is emphasised.
    """

    text: str
    style: Style = ""


Cell: TypeAlias = str | int | Styled | None
"""A value of a table or a fact; None is shown as ``-``."""


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
    """Rows of cells.

    Attributes:
        columns: The columns.
        rows: One sequence of cells for each row, one cell for each column.
        heading: Whether plain text has a line with the columns' names.
    """

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
    """Names with one value each.

    Attributes:
        items: Pairs of name and value, in the order they are shown.
    """

    items: Sequence[tuple[str, Cell]]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Prose, whose line ends are kept.

    Attributes:
        text: The text. Untrusted.
        style: How it is emphasised.
    """

    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Items:
    """A list of short texts.

    Attributes:
        texts: The texts. Untrusted.
    """

    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Code:
    """Text that is shown exactly as it is.

    Attributes:
        text: The code; in plain text it is written without any escape.
        language: Name of its language for Markdown.
    """

    text: str
    language: str = "text"


@dataclass(frozen=True, slots=True)
class Prose:
    """A text in Markdown, of this package itself.

    Attributes:
        source: Its source, which is trusted.
    """

    source: str


@dataclass(frozen=True, slots=True)
class Section:
    """A title with blocks below it.

    Attributes:
        title: The title. Untrusted.
        blocks: What belongs to it, indented in plain text.
    """

    title: str | Styled
    blocks: Sequence[Block] = ()


Block: TypeAlias = Paragraph | Items | Facts | Table | Code | Prose | Section | Report


@dataclass(frozen=True, slots=True)
class Document:
    """The result of a command.

    Attributes:
        title: Heading of Markdown and HTML; plain text has none.
        blocks: The result for readers.
        data: The result for programs: JSON-ready values.
    """

    title: str
    blocks: Sequence[Block]
    data: Mapping[str, Any] = field(default_factory=dict)

    def tables(self) -> Iterator[Table]:
        """Yield the tables that are not part of a section."""
        yield from (block for block in self.blocks if isinstance(block, Table))
