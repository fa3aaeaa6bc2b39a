"""``nvfp4 tmem-pack``: every packing of accumulators and scale factors, and the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import Exit, InputError
from pytest_nvfp4.cli.options import json_option
from pytest_nvfp4.cli.tmem.columns import table
from pytest_nvfp4.cli.tmem.options import tile_of, tile_options
from pytest_nvfp4.tmem.columns import COLUMNS, MmaTile, TmemError
from pytest_nvfp4.tmem.packing import SCALES_ALIGN, Packing, PackingRequest, PackingSearch, Segment, best_of, pack

_TITLES = ("overlap", "stages", "used", "slack", "allocate", "lead", "fits")


def segment_of(text: str, *, option: str) -> Segment:
    """``NAME:COLUMNS`` or ``NAME:COLUMNS:ALIGN``, as ``option`` has it.

    Raises:
        InputError: it is something else.
    """
    name, *numbers = text.split(":")
    if not name or not 1 <= len(numbers) <= 2 or not all(part.isascii() and part.isdigit() for part in numbers):
        raise InputError(f"{option} {text!r} is not NAME:COLUMNS or NAME:COLUMNS:ALIGN, such as SFA:16:4")
    return Segment(name, *(int(part) for part in numbers))


def _requests(
    tile: MmaTile | None,
    counts: Sequence[int],
    *,
    accumulator: Segment | None,
    others: Sequence[Segment],
    subtile: int,
    capacity: int,
    align: int,
) -> list[PackingRequest]:
    made = []
    for count in counts:
        if tile is not None:
            one = PackingRequest.of(
                MmaTile(tile.m, tile.n, tile.k, tile.ctas, count, tile.sf_vector),
                subtile=subtile,
                capacity=capacity,
                align=align,
            )
            made.append(PackingRequest(one.accumulator, count, (*one.others, *others), subtile, capacity))
        else:
            assert accumulator is not None
            made.append(PackingRequest(accumulator, count, tuple(others), subtile, capacity))
    return made


def _row(packing: Packing) -> tuple[str, ...]:
    overlaps = ",".join(map(str, packing.overlaps)) or "-"
    needed = packing.allocation
    return (
        overlaps,
        str(packing.request.stages),
        str(packing.used),
        str(packing.slack),
        "-" if needed is None else str(needed),
        f"{packing.lead}/{(packing.request.stages - 1) * packing.placement.subtiles}",
        "yes" if packing.fits else "no",
    )


def packing_json(packing: Packing, *, proof: bool) -> dict[str, object]:
    """A packing as JSON-ready values."""
    found: dict[str, object] = {
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
        found["disjoint"] = {
            "proved": result.proved,
            "method": "exhaustive",
            "phases": result.phases,
            "clash": None if result.clash is None else str(result.clash),
        }
    return found


def _best_lines(packing: Packing) -> Iterator[str]:
    request, placement = packing.request, packing.placement
    yield (
        f"best: {request.stages} accumulator{'s' * (request.stages > 1)}, the most overlap {packing.overlap} columns; "
        f"{packing.used} columns used, {packing.slack} of {request.capacity} free; allocate {packing.allocation}"
    )
    for name, start, size in packing.starts:
        yield f"  {start:>3}..{start + size - 1:<3}  {name}"
    for at, (start, order, lead) in enumerate(zip(placement.stages, placement.order, packing.leads, strict=True)):
        yield (
            f"  tile {at} mod {len(placement.stages)}: accumulator at column {start}; its MMA starts with {lead} "
            f"subtiles of earlier tiles unread at most; the epilogue reads its subtiles {', '.join(map(str, order))}"
        )
    result = packing.prove()
    if result.clash is None:
        yield f"  proved (exhaustive, {result.phases} phases): no two live segments overlap in any phase"
    else:
        yield f"  refuted: {result.clash}"


@click.command("tmem-pack")
@tile_options
@click.option(
    "--accumulator",
    "accumulators",
    multiple=True,
    metavar="NAME:COLUMNS[:ALIGN]",
    help="One accumulator, instead of --tile; --stages says how many there are.",
)
@click.option(
    "--segment", "segments", multiple=True, metavar="NAME:COLUMNS[:ALIGN]", help="More that is live at all times."
)
@click.option(
    "--subtile",
    type=click.IntRange(1, COLUMNS),
    default=32,
    show_default=True,
    help="Columns the epilogue reads at once.",
)
@click.option(
    "--capacity", type=click.IntRange(32, COLUMNS), default=COLUMNS, show_default=True, help="Columns there are."
)
@click.option(
    "--align",
    type=click.IntRange(1, COLUMNS),
    default=SCALES_ALIGN,
    show_default=True,
    help="Where the scale factors of --tile may begin.",
)
@json_option
@click.pass_context
def tmem_pack_command(
    ctx: click.Context,
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
    as_json: bool,
) -> None:
    """Pack accumulators, scale factors and other segments into TMEM: exhaustive.

    Every order of the segments is tried, every overlap of neighbouring accumulators, and every order in which tiles use
    them. Accumulators may share columns if the MMA of a tile waits until those were read; the lead says how many
    subtiles the epilogue may still have to read when an MMA starts, and the best packing that fits has the largest.
    For it, proved: no two live segments overlap in any phase of the pipeline. Exit code 1 if nothing fits.
    """
    if (tile is None) == (not accumulators):
        raise click.UsageError("give --tile M,N,K or --accumulator NAME:COLUMNS, one of them")
    if len(accumulators) > 1:
        raise click.UsageError("accumulators are alike: give --accumulator once, and their number by --stages")
    one = None if tile is None else tile_of(tile, ctas=ctas, stages=1, sf_vector=sf_vector)
    counts = sorted(set(stages)) or [1, 2, 3, 4]
    try:
        requests = _requests(
            one,
            counts,
            accumulator=segment_of(accumulators[0], option="--accumulator") if accumulators else None,
            others=[segment_of(text, option="--segment") for text in segments],
            subtile=subtile,
            capacity=capacity,
            align=align,
        )
        searches: list[PackingSearch] = []
        for request in requests:
            found = pack(request)
            if not stages and searches and found.best is None:
                break
            searches.append(found)
    except TmemError as error:
        raise InputError(str(error)) from error
    best = best_of(searches)
    if as_json:
        output.write_json(
            {
                "tile": None if one is None else asdict(one),
                "capacity": capacity,
                "subtile": subtile,
                "method": "exhaustive",
                "tried": sum(search.tried for search in searches),
                "packings": [packing_json(each, proof=False) for search in searches for each in search.packings],
                "best": None if best is None else packing_json(best, proof=True),
            }
        )
    else:
        rows = [_row(each) for search in searches for each in search.packings]
        lines = [*table(_TITLES, rows), ""]
        if best is not None:
            lines += _best_lines(best)
        else:
            lines.append(f"nothing fits {capacity} columns: use fewer accumulators, a smaller tile or fewer segments")
        output.write("\n".join(lines))
    ctx.exit(Exit.FINE if best is not None else Exit.FAILED)
