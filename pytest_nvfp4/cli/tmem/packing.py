"""``nvfp4 tmem-pack``: all packings of accumulators and scale factors, and the best of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import document_options
from pytest_nvfp4.cli.tmem.options import tile_of, tile_options
from pytest_nvfp4.report.document import Block, Cell, Column, Document, Section, Table
from pytest_nvfp4.text import plural
from pytest_nvfp4.tmem.columns import COLUMNS, TmemError
from pytest_nvfp4.tmem.packing import SCALES_ALIGN, Packing, PackingRequest, PackingSearch, Segment, best_of, pack

_COLUMNS = (
    Column("overlap"),
    *(Column(name, right=True) for name in ("stages", "used", "slack", "allocate", "lead", "fits")),
)


def segment_of(text: str, *, option: str) -> Segment:
    """Parse ``NAME:COLUMNS`` or ``NAME:COLUMNS:ALIGN`` of an option.

    Raises:
        InputError: The text is something else.
    """
    name, *numbers = text.split(":")
    if not name or not 1 <= len(numbers) <= 2 or not all(part.isascii() and part.isdigit() for part in numbers):
        raise InputError(f"{option} {text!r} is not NAME:COLUMNS or NAME:COLUMNS:ALIGN, such as SFA:16:4")
    return Segment(name, *(int(part) for part in numbers))


def _row(packing: Packing) -> tuple[Cell, ...]:
    overlaps = ",".join(map(str, packing.overlaps)) or None
    lead = f"{packing.lead}/{(packing.request.stages - 1) * packing.placement.subtiles}"
    fits = "yes" if packing.fits else "no"
    return (overlaps, packing.request.stages, packing.used, packing.slack, packing.allocation, lead, fits)


def _packing_json(packing: Packing, *, proof: bool) -> dict[str, object]:
    """Return a packing as JSON-ready values."""
    values: dict[str, object] = {
        "stages": packing.request.stages,
        "overlaps": list(packing.overlaps),
        "used": packing.used,
        "slack": packing.slack,
        "allocation": packing.allocation,
        "fits": packing.fits,
        "leads": list(packing.leads),
        "subtiles": packing.placement.subtiles,
        "segments": [{"name": name, "column": start, "columns": size} for name, start, size in packing.starts],
        "tile_order": list(packing.placement.stages),
        "read_order": [list(order) for order in packing.placement.order],
    }
    if proof:
        result = packing.prove()
        values["disjoint"] = {
            "proved": result.proved,
            "method": "exhaustive",
            "phases": result.phases,
            "clash": None if result.clash is None else str(result.clash),
        }
    return values


def _best(packing: Packing) -> Iterator[Block]:
    request, placement = packing.request, packing.placement
    lines = [f"{start:>3}..{start + size - 1:<3}  {name}" for name, start, size in packing.starts]
    for at, (start, order, lead) in enumerate(zip(placement.stages, placement.order, packing.leads, strict=True)):
        lines.append(
            f"tile {at} mod {len(placement.stages)}: accumulator at column {start}; its MMA starts with at most {lead} "
            f"unread subtiles of earlier tiles; the epilogue reads its subtiles {', '.join(map(str, order))}"
        )
    proof = packing.prove()
    lines.append(
        f"proved (exhaustive, {proof.phases} phases): no two live segments overlap in any phase"
        if proof.clash is None
        else f"refuted: {proof.clash}"
    )
    yield Section(
        f"best: {plural(request.stages, 'accumulator')}, the most overlap {packing.overlap} columns; "
        f"{packing.used} columns used, {packing.slack} of {request.capacity} free; allocate {packing.allocation}",
        lines,
    )


@click.command("tmem-pack")
@tile_options
@click.option(
    "--accumulator",
    "accumulators",
    multiple=True,
    metavar="NAME:COLUMNS[:ALIGN]",
    help="One accumulator, in place of --tile; --stages sets their number.",
)
@click.option(
    "--segment",
    "segments",
    multiple=True,
    metavar="NAME:COLUMNS[:ALIGN]",
    help="Segment that is always live; may be repeated.",
)
@click.option(
    "--subtile",
    type=click.IntRange(1, COLUMNS),
    default=32,
    show_default=True,
    help="Columns that the epilogue reads at once.",
)
@click.option(
    "--capacity", type=click.IntRange(32, COLUMNS), default=COLUMNS, show_default=True, help="TMEM capacity in columns."
)
@click.option(
    "--align",
    type=click.IntRange(1, COLUMNS),
    default=SCALES_ALIGN,
    show_default=True,
    help="Alignment of the scale factors of --tile in columns.",
)
@document_options()
def tmem_pack_command(
    *,
    tile: str | None,
    stages: tuple[int, ...],
    ctas: int,
    sf_vector: int,
    accumulators: tuple[str, ...],
    segments: tuple[str, ...],
    subtile: int,
    capacity: int,
    align: int,
) -> Document:
    """Pack accumulators, scale factors and other segments into TMEM: exhaustive.

    The search covers every order of the segments, every overlap of neighbouring accumulators, and every order in which
    tiles use them. Accumulators may share columns if the MMA of a tile waits until those columns were read. The lead is
    the number of subtiles that the epilogue may still have to read when an MMA starts; the best packing that fits has
    the largest lead. For it, proved: no two live segments overlap in any phase of the pipeline. Exit code 1 if nothing
    fits.
    """
    if (tile is None) == (not accumulators):
        raise click.UsageError("give either --tile M,N,K or --accumulator NAME:COLUMNS")
    if len(accumulators) > 1:
        raise click.UsageError("all accumulators are alike: give --accumulator once, and their number by --stages")
    one = None if tile is None else tile_of(tile, ctas=ctas, stages=1, sf_vector=sf_vector)
    others = tuple(segment_of(text, option="--segment") for text in segments)
    try:
        if one is not None:
            of_tile = PackingRequest.of(one, align=align)
            accumulator, others = of_tile.accumulator, (*of_tile.others, *others)
        else:
            accumulator = segment_of(accumulators[0], option="--accumulator")
        searches: list[PackingSearch] = []
        for count in sorted(set(stages)) or (1, 2, 3, 4):
            search = pack(PackingRequest(accumulator, count, others, subtile, capacity))
            if not stages and searches and search.best is None:
                break
            searches.append(search)
    except TmemError as error:
        raise InputError(str(error)) from error
    packings = [packing for search in searches for packing in search.packings]
    best = best_of(searches)
    advice = f"nothing fits {capacity} columns: use fewer accumulators, a smaller tile or fewer segments"
    data = {
        "tile": None if one is None else asdict(one),
        "capacity": capacity,
        "subtile": subtile,
        "method": "exhaustive",
        "tried": sum(search.tried for search in searches),
        "packings": [_packing_json(packing, proof=False) for packing in packings],
        "best": None if best is None else _packing_json(best, proof=True),
    }
    table = Table(_COLUMNS, [_row(packing) for packing in packings])
    return Document("TMEM packings", [table, *([advice] if best is None else _best(best))], data, best is not None)
