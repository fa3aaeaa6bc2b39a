"""``nvfp4 epilogue``: ranking of ways from TMEM to global memory, including a kernel's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import KernelOptions, document_options, kernel_options
from pytest_nvfp4.cli.subject import resolve
from pytest_nvfp4.cli.tmem.options import numbers
from pytest_nvfp4.cli.tracing import Traced, trace
from pytest_nvfp4.insights.accesses import accesses_in
from pytest_nvfp4.report.document import Cell, Column, Document, Table
from pytest_nvfp4.search.epilogue_own import Own, own
from pytest_nvfp4.search.epilogue_store import EpilogueError, EpilogueTile, Way, rank, ways
from pytest_nvfp4.tmem.usage import usage

_COLUMNS = (
    Column("way"),
    *(
        Column(name, right=True)
        for name in ("rank", "sectors/request", "sectors", "lines", "B a lane", "conflicts", "registers", "smem B")
    ),
)


def _cells(way: Way, place: int) -> tuple[Cell, ...]:
    return (
        f"{'> ' if way.own else '  '}{way.name}",
        place,
        f"{way.sectors_a_request:.4g}" if way.path != "TMA" else "box",
        f"{way.store.efficiency:.0%}",
        f"{way.line_efficiency:.0%}",
        way.width,
        None if way.shared is None else way.conflicts,
        way.registers,
        way.smem_bytes,
    )


def way_json(way: Way, place: int) -> dict[str, object]:
    """Return a way as JSON-ready values."""
    return {
        "rank": place,
        "own": way.own,
        "way": way.name,
        "path": way.path,
        "load": way.load,
        "thread_value": None if way.thread_value is None else str(way.thread_value),
        "columns": way.columns,
        "bytes_a_lane": way.width,
        "requests": way.store.requests,
        "sectors": way.store.units,
        "ideal_sectors": way.store.ideal,
        "sector_efficiency": way.store.efficiency,
        "line_efficiency": way.line_efficiency,
        "bank_conflicts": way.conflicts,
        "registers": way.registers,
        "smem_bytes": way.smem_bytes,
        "swizzle": None if way.swizzle is None else str(way.swizzle),
        "method": "enumerated",
    }


def chosen(ranked: Sequence[Way], top: int) -> list[tuple[int, Way]]:
    """Return the best ways with their ranks, and the kernel's own at any rank."""
    placed = list(enumerate(ranked, start=1))
    return [(place, way) for place, way in placed if place <= top or way.own]


def _columns_of(traced: Traced) -> int | None:
    """Return the columns of one accumulator of a kernel; None if there is none."""
    found = usage([(value.name, value.type) for value in traced.trace.values])
    if found.formula is not None:
        return found.formula.stage
    return next((tensor.columns // tensor.stages for tensor in found.tensors if tensor.role == "acc"), None)


def _columns_named(tile: str) -> int:
    """Return the columns of the tile in ``--tile``. Raises InputError."""
    given = tile.replace("x", ",").count(",") + 1
    rows, columns, *_ = numbers(tile, count=3 if given == 3 else 2, option="--tile", form="M,N or M,N,K")
    if rows != 128:
        raise InputError(f"--tile {tile}: M = {rows}; M must be 128, one row for each lane of TMEM")
    return columns


@click.command("epilogue")
@click.argument("kernel", type=click.Path(path_type=Path), required=False)
@kernel_options
@click.option("--tile", metavar="M,N[,K]", help="Tile of one CTA in place of a kernel; M must be 128.")
@click.option(
    "--threads", type=click.Choice(["128", "256", "512"]), help="Threads of the epilogue (128 without a kernel)."
)
@click.option("--bits", type=click.Choice(["8", "16", "32"]), help="Bits of an element of C (16 without a kernel).")
@click.option("--top-k", "top", type=click.IntRange(min=1), default=10, show_default=True, help="Number of ways shown.")
@document_options()
def epilogue_command(
    *,
    kernel: Path | None,
    how: KernelOptions,
    tile: str | None,
    threads: str | None,
    bits: str | None,
    top: int,
) -> Document:
    """Rank the ways of an accumulator from TMEM through registers to C, with KERNEL's own among them.

    The ways combine every tcgen05.ld shape that divides the columns with direct stores of the widest kind, and with
    shared memory in each swizzle, read by TMA or by coalesced stores. The ranking is by sectors of global memory, cache
    lines, bytes a lane moves at once, bank conflicts, registers and shared memory: all enumerated from addresses, none
    measured. Exit code 1 if the kernel does not compile or its own way is unknown.
    """
    if (kernel is None) == (tile is None):
        raise click.UsageError("give either a KERNEL or --tile M,N")
    kernel_way: Own | None = None
    why, compiled = "", True
    values: dict[str, object] = {}
    if kernel is not None:
        traced = trace(resolve(kernel, how))
        traced.report_findings()
        compiled = traced.trace.ok
        kernel_way, why = own(traced.listing.records, accesses_in(traced.trace), traced.trace.values)
        columns = _columns_of(traced)
        if columns is None:
            raise InputError(f"{kernel}: its values contain no accumulator in TMEM; name the tile with --tile M,N")
        values = traced.to_json()
    else:
        assert tile is not None
        columns = _columns_named(tile)
    try:
        shape = EpilogueTile(
            columns,
            int(threads) if threads else kernel_way.threads if kernel_way else 128,
            int(bits) if bits else kernel_way.bits if kernel_way else 16,
        )
        ranked = rank([*ways(shape), *([kernel_way.way] if kernel_way else [])])
    except EpilogueError as error:
        raise InputError(str(error)) from error
    shown = chosen(ranked, top)
    lines = [f"{len(ranked)} ways of 128 x {shape.n} elements of {shape.bits} bits by {shape.threads} threads"]
    if kernel_way is not None:
        lines.append(f"> the kernel's own, from {kernel_way.source}: {_verdict(kernel_way.way, ranked)}")
    elif kernel is not None:
        lines.append(f"the kernel's own way is unknown: {why}")
    if (best := next((way for way in ranked if way.thread_value is not None), None)) is not None:
        lines.append(f"layout of the best, (thread, value) -> row + 128 * column: {best.thread_value}")
    lines.append("enumerated from addresses; nothing was measured")
    values |= {
        "tile": {"columns": shape.n, "threads": shape.threads, "bits": shape.bits},
        "own": None if kernel_way is None else {"source": kernel_way.source, "rank": ranked.index(kernel_way.way) + 1},
        "why_no_own": why or None,
        "ways": len(ranked),
        "ranked": [way_json(way, place) for place, way in shown],
    }
    table = Table(_COLUMNS, [_cells(way, place) for place, way in shown])
    ok = compiled and (kernel is None or kernel_way is not None)
    return Document("Ways from TMEM to global memory", [table, *lines], values, ok)


def _verdict(way: Way, ranked: Sequence[Way]) -> str:
    place = ranked.index(way) + 1
    best = ranked[0]
    if place == 1:
        return "none is better"
    factor = best.store.efficiency / way.store.efficiency
    if factor > 1.001:
        return f"rank {place}; it moves {factor:.3g} times the sectors of the best"
    lines = best.line_efficiency / way.line_efficiency
    if lines > 1.001:
        return f"rank {place}; it moves the sectors of the best, and touches {lines:.3g} times its cache lines"
    return f"rank {place}; sectors and lines are those of the best"
