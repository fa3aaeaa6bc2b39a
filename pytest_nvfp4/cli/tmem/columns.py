"""``nvfp4 tmem``: the TMEM columns of a kernel or of a tile, by formula and by the layouts of the DSL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import KernelOptions, document_options, kernel_options
from pytest_nvfp4.cli.subject import resolve
from pytest_nvfp4.cli.tmem.options import tile_of, tile_options
from pytest_nvfp4.cli.tracing import trace
from pytest_nvfp4.report.document import Block, Cell, Column, Document, Styled, Table
from pytest_nvfp4.temporary import temporary_folder
from pytest_nvfp4.tmem.columns import COLUMNS, HALVED_SFA, Columns, MmaTile, columns, most_stages
from pytest_nvfp4.tmem.judge import Judgement

_COLUMNS = (
    Column("what", key="what"),
    *(
        Column(name, right=True, key=name.lower())
        for name in ("stages", "acc", "SFA", "SFB", "total", "allocate", "slack")
    ),
    Column("CTAs an SM", right=True, key="ctas_per_sm"),
    Column("known by", right=True, key="known_by"),
)


def _row(what: str, need: Columns, *, stages: int, known_by: str) -> tuple[Cell, ...]:
    parts = (need.acc, need.sfa, need.sfb, need.total, need.allocation, need.slack, need.ctas_per_sm)
    return (what, stages, *parts, known_by)


def _traced_columns(tiles: Sequence[MmaTile]) -> list[Columns]:
    """Return the columns of tiles as the installed DSL lays them out."""
    from pytest_nvfp4.tmem.probe import ENTRY, ProbeError, read_probe, write_probe

    with temporary_folder("tmem") as name:
        path = write_probe(Path(name), tiles)
        subject = resolve(path, KernelOptions(entry=ENTRY), label="layouts of the tile")
        try:
            return read_probe(trace(subject).trace, tiles)
        except ProbeError as error:
            raise InputError(f"the DSL has no layouts for {tiles[0]}: {error}") from error


def _kernel_rows(judged: Judgement) -> Iterator[tuple[Cell, ...]]:
    usage = judged.usage
    if not usage.tensors:  # their columns are unknown, not 0; the allocation is that of the machine code
        ctas = COLUMNS // judged.total if judged.total and judged.total <= COLUMNS else None
        yield (judged.kernel, *(None,) * 5, judged.total, None, ctas, "tcgen05.alloc")
        return
    stages = max((tensor.stages for tensor in usage.tensors if tensor.role == "acc"), default=1)
    # Accumulators that overlap cover fewer columns than their number times the columns of one.
    layouts = Columns(usage.of("acc"), 1, usage.of("SFA"), usage.of("SFB"))
    yield _row(judged.kernel, layouts, stages=stages, known_by="layouts")
    if usage.formula is not None:
        yield _row(str(usage.tile), usage.formula, stages=usage.formula.stages, known_by="formula")


def _kernel_lines(judged: Judgement) -> Iterator[Block]:
    allocated = ", ".join("?" if count is None else str(count) for count in judged.allocated) or "none"
    yield f"{judged.kernel} allocates {allocated}"
    if judged.usage.tile is None:
        yield f"  no formula: {judged.usage.why_no_tile}"
    yield from (Styled(f"  error: {error}", "bad") for error in judged.errors)
    yield from (f"  note: {note}" for note in judged.notes)


def _kernel_json(judged: Judgement) -> dict[str, Any]:
    usage = judged.usage
    return {
        "kernel": judged.kernel,
        "allocated": list(judged.allocated),
        "used": usage.total,
        "allocation": usage.allocation,
        "tensors": [asdict(tensor) for tensor in usage.tensors],
        "unknown": [{"name": name, "columns": count} for name, count in usage.unknown],
        "tile": None if usage.tile is None else asdict(usage.tile),
        "formula": None if usage.formula is None else asdict(usage.formula),
        "agree": None if usage.formula is None else not usage.disagreements(),
        "errors": list(judged.errors),
        "notes": list(judged.notes),
    }


def _of_kernel(kernel: Path, how: KernelOptions) -> Document:
    """Return the columns of a kernel, which are ok if its allocation is right."""
    from pytest_nvfp4.tmem.judge import judgements

    traced = trace(resolve(kernel, how))
    traced.report_findings()
    judged = judgements(traced.trace)
    blocks: list[Block] = []
    if judged:
        blocks.append(Table(_COLUMNS, [row for one in judged for row in _kernel_rows(one)]))
    blocks += [line for one in judged for line in _kernel_lines(one)]
    if not judged and traced.trace.ok:
        blocks.append(f"{kernel}: its kernels use no tensor memory")
    found = [_kernel_json(one) for one in judged]
    right = traced.trace.ok and not any(one["errors"] or one["agree"] is False for one in found)
    return Document(f"TMEM columns of {traced.subject.description}", blocks, {**traced.to_json(), "tmem": found}, right)


def _of_tile(text: str, stages: Sequence[int], *, ctas: int, sf_vector: int, with_trace: bool) -> Document:
    """Return the columns of a tile for each number of stages, which are ok if formula and layouts agree."""
    tile = tile_of(text, ctas=ctas, stages=1, sf_vector=sf_vector)
    counts = sorted(set(stages)) or range(1, max(2, most_stages(tile) + 2))
    tiles = [tile_of(text, ctas=ctas, stages=count, sf_vector=sf_vector) for count in counts]
    traced = _traced_columns(tiles) if with_trace else None
    name = f"{tile.m}x{tile.n}x{tile.k}" + (f" ({tile.ctas} CTAs)" if tile.ctas > 1 else "")
    rows, errors = [], []
    why = f": {HALVED_SFA}" if tile.halved else ""
    for at, each in enumerate(tiles):
        rows.append(_row(name, columns(each), stages=each.stages, known_by="formula"))
        if traced is not None:
            rows.append(_row(name, traced[at], stages=each.stages, known_by="layouts"))
            if traced[at] != columns(each):
                errors.append(Styled(f"error: formula and layouts differ for {each}{why}", "bad"))
    table = Table(_COLUMNS, rows)
    data = {"tile": asdict(tile), "rows": [*table.records()]}
    return Document(f"TMEM columns of {name}", [table, *errors], data, not errors)


@click.command("tmem")
@click.argument("kernel", type=click.Path(path_type=Path), required=False)
@kernel_options
@tile_options
@click.option("--trace", "with_trace", is_flag=True, help="With --tile: also compare with the layouts of the DSL.")
@document_options(csv=True)
def tmem_command(
    *,
    kernel: Path | None,
    how: KernelOptions,
    tile: str | None,
    stages: tuple[int, ...],
    ctas: int,
    sf_vector: int,
    with_trace: bool,
) -> Document:
    """Count the TMEM columns of KERNEL, or of a tile: accumulators, scale factors, and the allocation they need.

    For a kernel, the columns that its layouts cover are compared with those that its machine code allocates, and with
    the formula for the tile that its MMA and shared memory have. Columns are those of one CTA; with --ctas 2, each CTA
    of the pair has as many. Exit code 1 if a kernel allocates less than it uses or more than an SM has, or if formula
    and layouts differ.
    """
    if kernel is not None and tile is None:
        if stages or with_trace:
            raise click.UsageError("--stages and --trace need --tile: a kernel has its own stages and is always traced")
        return _of_kernel(kernel, how)
    if tile is not None and kernel is None:
        return _of_tile(tile, stages, ctas=ctas, sf_vector=sf_vector, with_trace=with_trace)
    raise click.UsageError("give either a KERNEL or --tile M,N,K")
