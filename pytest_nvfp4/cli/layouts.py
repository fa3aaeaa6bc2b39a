"""``nvfp4 layouts``: every named layout of a kernel."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import click

from pytest_nvfp4.cli.errors import Exit
from pytest_nvfp4.cli.options import result_options
from pytest_nvfp4.cli.output import ResultWriter
from pytest_nvfp4.cli.subject import matching, unmatched
from pytest_nvfp4.cli.tracing import Traced, traced_kernel
from pytest_nvfp4.report.document import Cell, Column, Document, Table

_COLUMNS = (
    Column("layout", share=3, code=True),
    Column("canonical", share=4, code=True),
    Column("type", share=6, code=True),
    Column("space", code=True),
    Column("align", code=True),
    Column("at", share=2, code=True),
)


@dataclass(frozen=True, slots=True)
class LayoutRow:
    """One named layout.

    Attributes:
        name: Its name, with the scope.
        canonical: Its canonical form; None if the type cannot be read.
        raw: Its type as the DSL prints it.
        space, align, dtype: Memory space, alignment in bytes, and element type, where the type has them.
        file, line: Where the name was bound.
        error: Why the type cannot be read.
    """

    name: str
    canonical: str | None
    raw: str
    space: str | None
    align: int | None
    dtype: str | None
    file: str | None
    line: int | None
    error: str | None = None

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of the table; ``=`` for a type equal to its canonical form."""
        canonical = self.canonical or f"error: {self.error}"
        place = f"{self.file}:{self.line}" if self.file else None
        return (self.name, canonical, "=" if self.raw == self.canonical else self.raw, self.space, self.align, place)


def rows_of(traced: Traced, patterns: tuple[str, ...]) -> list[LayoutRow]:
    """Return the layouts whose names match one of the patterns, or all if there is no pattern, sorted by name."""
    records = traced.listing.records
    chosen = matching([record.name for record in records], patterns) if patterns else None
    rows = []
    for record in records:
        if chosen is not None and record.name not in chosen:
            continue
        value = traced.places.get(record.name)
        error = record.unreadable
        rows.append(
            LayoutRow(
                name=record.name,
                canonical=None if error else record.canonical,
                raw=record.raw,
                space=None if error else record.space,
                align=None if error else record.align,
                dtype=None if error else record.dtype,
                file=traced.subject.relative(value.file) if value else None,
                line=value.line if value else None,
                error=error,
            )
        )
    return rows


@click.command("layouts")
@traced_kernel
@click.option("--filter", "patterns", multiple=True, metavar="GLOB", help="Show only matching names; may be repeated.")
@result_options()
@click.pass_context
def layouts_command(ctx: click.Context, *, traced: Traced, patterns: tuple[str, ...], result: ResultWriter) -> None:
    """List every named layout of KERNEL: name, canonical form, type, space, alignment in bytes, file and line.

    A type equal to its canonical form is written '='. Exit code 1 if the kernel does not compile; the layouts captured
    before the error are listed all the same.
    """
    rows = rows_of(traced, patterns)
    result.write(
        Document(
            f"Layouts of {traced.subject.description}",
            [Table(_COLUMNS, [row.cells for row in rows])],
            {**traced.to_json(), "layouts": [asdict(row) for row in rows]},
        )
    )
    if patterns and not rows and traced.trace.ok:
        names = [record.name for record in traced.listing.records]
        raise unmatched(names, patterns, label=traced.subject.label)
    ctx.exit(Exit.FINE if traced.trace.ok and not any(row.error for row in rows) else Exit.FAILED)
