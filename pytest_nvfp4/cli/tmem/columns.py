"""``nvfp4 tmem``: the TMEM columns of a kernel or of a tile, by formula and by what the DSL lays out."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import Exit, InputError
from pytest_nvfp4.cli.options import KernelOptions, json_option, kernel_options
from pytest_nvfp4.cli.subject import resolve
from pytest_nvfp4.cli.tmem.options import tile_of, tile_options
from pytest_nvfp4.cli.tracing import Traced, trace
from pytest_nvfp4.text import visible
from pytest_nvfp4.tmem.columns import COLUMNS, HALVED_SFA, Columns, MmaTile, allocation, columns, most_stages

_TITLES = ("what", "stages", "acc", "SFA", "SFB", "total", "allocate", "slack", "CTAs an SM", "known by")


@dataclass(frozen=True, slots=True)
class Row:
    """TMEM columns of one CTA.

    Attributes:
        what: The tile, or the kernel.
        stages: Accumulators.
        acc, sfa, sfb: Columns.
        total: Their sum.
        allocate: What to ask ``tcgen05.alloc`` for; None where an SM has not so many.
        slack: Columns of the allocation that stay free; negative: how many an SM lacks.
        ctas_per_sm: CTAs whose allocations fit an SM.
        known_by: ``formula`` or ``layouts``.
    """

    what: str
    stages: int
    acc: int
    sfa: int
    sfb: int
    total: int
    allocate: int | None
    slack: int
    ctas_per_sm: int
    known_by: str

    @property
    def cells(self) -> tuple[str, ...]:
        """As text, ``-`` for an allocation that there is not."""
        return tuple("-" if cell is None else str(cell) for cell in asdict(self).values())


def row(what: str, need: Columns, *, acc: int | None = None, known_by: str) -> Row:
    """A row; ``acc`` of accumulators that are not side by side."""
    total = need.total if acc is None else acc + need.sfa + need.sfb
    needed = allocation(total)
    return Row(
        what,
        need.stages,
        need.acc if acc is None else acc,
        need.sfa,
        need.sfb,
        total,
        needed,
        (needed or COLUMNS) - total,
        COLUMNS // needed if needed else 0,
        known_by,
    )


def tile_rows(tiles: Sequence[MmaTile], *, traced: Sequence[Columns] | None) -> list[Row]:
    """By formula, and by the layouts that the DSL gave where it was asked."""
    rows = []
    for at, tile in enumerate(tiles):
        name = f"{tile.m}x{tile.n}x{tile.k}" + f" ({tile.ctas} CTAs)" * (tile.ctas > 1)
        rows.append(row(name, columns(tile), known_by="formula"))
        if traced is not None:
            rows.append(row(name, traced[at], known_by="layouts"))
    return rows


def _probe(tiles: Sequence[MmaTile]) -> list[Columns]:
    from pytest_nvfp4.tmem.probe import ENTRY, ProbeError, read_probe, write_probe

    with tempfile.TemporaryDirectory(prefix="nvfp4-tmem-") as name:
        path = write_probe(Path(name), tiles)
        subject = resolve(path, KernelOptions(entry=ENTRY), label="layouts of the tile")
        try:
            return read_probe(trace(subject).trace, tiles)
        except ProbeError as error:
            raise InputError(f"the DSL has no layouts for {tiles[0]}: {error}") from error


def _kernel_rows(traced: Traced) -> tuple[list[Row], list[dict[str, object]], list[str]]:
    from pytest_nvfp4.tmem.judge import judgements

    rows: list[Row] = []
    found: list[dict[str, object]] = []
    lines: list[str] = []
    for one in judgements(traced.trace):
        usage = one.usage
        stages = max((tensor.stages for tensor in usage.tensors if tensor.role == "acc"), default=1)
        layouts = Columns(0, stages, usage.of("SFA"), usage.of("SFB"))
        rows.append(row(one.kernel, layouts, acc=usage.of("acc"), known_by="layouts"))
        if usage.formula is not None:
            rows.append(row(str(usage.tile), usage.formula, known_by="formula"))
        asked = ", ".join("?" if count is None else str(count) for count in one.allocated) or "none"
        lines.append(f"{one.kernel} allocates {asked}")
        if usage.tile is None:
            lines.append(f"  no formula: {usage.why_no_tile}")
        lines += [f"  error: {error}" for error in one.errors] + [f"  note: {note}" for note in one.notes]
        found.append(
            {
                "kernel": one.kernel,
                "allocated": list(one.allocated),
                "used": usage.total,
                "allocation": usage.allocation,
                "tensors": [asdict(tensor) for tensor in usage.tensors],
                "unknown": [{"name": name, "columns": count} for name, count in usage.unknown],
                "tile": None if usage.tile is None else asdict(usage.tile),
                "formula": None if usage.formula is None else asdict(usage.formula),
                "agree": None if usage.formula is None else not usage.disagreements(),
                "errors": list(one.errors),
                "notes": list(one.notes),
            }
        )
    return rows, found, lines


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines with columns as wide as they need to be, numbers to the right."""
    cells = [list(titles), *[[visible(cell) for cell in each] for each in rows]]
    widths = [max(len(line[at]) for line in cells) for at in range(len(titles))]
    for line in cells:
        first, *rest = (
            text.ljust(width) if at == 0 else text.rjust(width)
            for at, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        yield "  ".join([first, *rest]).rstrip()


def _write_csv(rows: Sequence[Row]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(list(Row.__dataclass_fields__))
    writer.writerows(["" if cell is None else cell for cell in asdict(each).values()] for each in rows)
    output.write(text.getvalue())


@click.command("tmem")
@click.argument("kernel", type=click.Path(path_type=Path), required=False)
@kernel_options
@tile_options
@click.option("--trace", "with_trace", is_flag=True, help="With --tile: lay it out with the installed DSL as well.")
@click.option("--csv", "as_csv", is_flag=True, help="Write CSV.")
@json_option
@click.pass_context
def tmem_command(
    ctx: click.Context,
    *,
    kernel: Path | None,
    how: KernelOptions,
    tile: str | None,
    stages: tuple[int, ...],
    ctas: int,
    sf_vector: int,
    with_trace: bool,
    as_csv: bool,
    as_json: bool,
) -> None:
    """TMEM columns of KERNEL, or of a tile: accumulators, scale factors, and what to allocate for them.

    Of a kernel, what its layouts cover is compared with what its machine code allocates, and with the formula for the
    tile that its MMA and shared memory have. Columns are of one CTA; of a pair each CTA has so many. Exit code 1 if a
    kernel allocates less than it uses or more than an SM has, or if formula and layouts differ.
    """
    if (kernel is None) == (tile is None):
        raise click.UsageError("give a KERNEL or --tile M,N,K, one of them")
    if as_csv and as_json:
        raise click.UsageError("--json and --csv cannot be had together")
    if kernel is not None:
        if stages or with_trace:
            raise click.UsageError(
                "--stages and --trace go with --tile: a kernel has its own stages and is traced anyway"
            )
        traced = trace(resolve(kernel, how))
        traced.report_findings()
        rows, found, lines = _kernel_rows(traced)
        document: dict[str, object] = {**traced.to_json(), "tmem": found}
        bad = not traced.trace.ok or any(one["errors"] or one["agree"] is False for one in found)
        if not found and traced.trace.ok:
            lines.append(f"{kernel}: its kernels use no tensor memory")
    else:
        assert tile is not None
        one = tile_of(tile, ctas=ctas, stages=1, sf_vector=sf_vector)
        counts = sorted(set(stages)) or range(1, max(2, most_stages(one) + 2))
        tiles = [tile_of(tile, ctas=ctas, stages=count, sf_vector=sf_vector) for count in counts]
        seen = _probe(tiles) if with_trace else None
        rows = tile_rows(tiles, traced=seen)
        differ = [] if seen is None else [each for each, need in zip(tiles, seen, strict=True) if need != columns(each)]
        why = f": {HALVED_SFA}" if one.halved else ""
        lines = [f"error: formula and layouts differ for {each}{why}" for each in differ]
        bad = bool(differ)
        document = {"tile": asdict(one), "rows": [asdict(each) for each in rows]}
    if as_json:
        output.write_json(document)
    elif as_csv:
        _write_csv(rows)
    else:
        output.write(
            "\n".join([*(table(_TITLES, [each.cells for each in rows]) if rows else ()), *map(visible, lines)])
        )
    ctx.exit(Exit.FAILED if bad else Exit.FINE)
