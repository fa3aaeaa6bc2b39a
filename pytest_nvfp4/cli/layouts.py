"""``nvfp4 layouts``: every named layout of a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import Exit, InputError
from pytest_nvfp4.cli.options import KernelOptions, json_option, kernel_options
from pytest_nvfp4.cli.subject import matching, resolve
from pytest_nvfp4.cli.tracing import Traced, trace
from pytest_nvfp4.report.markdown import code
from pytest_nvfp4.text import visible


@dataclass(frozen=True, slots=True)
class Row:
    """One layout as it is shown; ``canonical`` is None where ``error`` says why the type cannot be read."""

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
    def place(self) -> str:
        """``file:line``, or ``-``."""
        return f"{self.file}:{self.line}" if self.file else "-"


def rows_of(traced: Traced, patterns: tuple[str, ...]) -> list[Row]:
    """The layouts whose names one of the patterns fits (all where there is none), sorted by name."""
    records = traced.listing.records
    chosen = matching([record.name for record in records], patterns) if patterns else None
    rows = []
    for record in records:
        if chosen is not None and record.name not in chosen:
            continue
        value = traced.places.get(record.name)
        wrong = record.unreadable
        rows.append(
            Row(
                name=record.name,
                canonical=None if wrong else record.canonical,
                raw=record.raw,
                space=None if wrong else record.space,
                align=None if wrong else record.align,
                dtype=None if wrong else record.dtype,
                file=traced.subject.relative(value.file) if value else None,
                line=value.line if value else None,
                error=wrong,
            )
        )
    return rows


def _cells(row: Row) -> tuple[str, ...]:
    align = "-" if row.align is None else str(row.align)
    raw = "=" if row.raw == row.canonical else row.raw
    return (row.name, row.canonical or f"error: {row.error}", raw, row.space or "-", align, row.place)


def _markdown(rows: list[Row]) -> Iterator[str]:
    yield "| layout | canonical | type | space | align | at |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in rows:
        # In a table a bar ends the cell even within code.
        cells = (code(cell).replace("|", "\\|") if cell not in {"-", "="} else cell for cell in _cells(row))
        yield f"| {' | '.join(cells)} |"


@click.command("layouts")
@click.argument("kernel", type=click.Path(path_type=Path))
@kernel_options
@click.option("--filter", "patterns", multiple=True, metavar="GLOB", help="Only names that fit; may be repeated.")
@json_option
@click.option("--md", "as_markdown", is_flag=True, help="Write a Markdown table.")
@click.pass_context
def layouts_command(
    ctx: click.Context,
    *,
    kernel: Path,
    how: KernelOptions,
    patterns: tuple[str, ...],
    as_json: bool,
    as_markdown: bool,
) -> None:
    """Every named layout of KERNEL: name, canonical form, type, space, alignment in bytes, file and line.

    A type equal to its canonical form is written '='. Exit code 1 if the kernel does not compile; the layouts seen
    until then are shown all the same.
    """
    if as_json and as_markdown:
        raise click.UsageError("--json and --md cannot be had together")
    traced = trace(resolve(kernel, how))
    rows = rows_of(traced, patterns)
    traced.report_findings()
    if as_json:
        output.write_json({**traced.to_json(), "layouts": [asdict(row) for row in rows]})
    elif as_markdown:
        output.write("\n".join(_markdown(rows)))
    elif rows and output.wants_table():
        columns = (("layout", 3), ("canonical", 4), ("type", 6), ("space", None), ("align", None), ("at", 2))
        output.write_table(columns, [_cells(row) for row in rows])
    else:
        for row in rows:
            output.write("  ".join(visible(cell) for cell in _cells(row)))
    if patterns and not rows and traced.trace.ok:
        raise InputError(f"{kernel}: none of its {len(traced.listing.records)} layouts fits {', '.join(patterns)}")
    ctx.exit(Exit.FINE if traced.trace.ok and not any(row.error for row in rows) else Exit.FAILED)
