"""``nvfp4 bench-self``: speed of this tool on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import json_option
from pytest_nvfp4.cli.subject import check_kernel_file
from pytest_nvfp4.selfcheck.speed.figures import Figure, Machine
from pytest_nvfp4.settings import find_root

SHIPPED = Path("kernels") / "nvfp4_group_gemm" / "steps" / "map_updates.py"  # the subject of the published figures
PARTS = ("processes", "layouts", "simulator")


def _kernel(named: Path | None) -> Path:
    if named is not None:
        check_kernel_file(named, label=str(named), has_entry=False)
        return named.resolve()
    for root in (find_root(Path.cwd()), Path(__file__).resolve().parents[3]):
        if (root / SHIPPED).is_file():
            return root / SHIPPED
    raise InputError(f"{SHIPPED} not found; name a kernel under GPU MODE's contract: nvfp4 bench-self KERNEL")


def measure(kernel: Path | None, *, rounds: int, parts: tuple[str, ...]) -> Iterator[Figure]:
    """Yield the figures of the chosen parts; the simulator and whole processes need a kernel."""
    if "layouts" in parts:
        from pytest_nvfp4.selfcheck.speed import layouts

        with output.working("comparing layouts"):
            compared = list(layouts.figures(rounds))
        yield from compared
    if kernel is not None and "simulator" in parts:
        from pytest_nvfp4.selfcheck.speed import simulator

        yield from simulator.figures(kernel, rounds)
    if kernel is not None and "processes" in parts:
        from pytest_nvfp4.selfcheck.speed import processes

        yield from processes.figures(kernel, rounds)


@click.command("bench-self")
@click.argument("kernel", type=click.Path(path_type=Path), required=False)
@click.option("--rounds", type=click.IntRange(1, 100), default=5, show_default=True, help="Rounds of each measurement.")
@click.option(
    "--only", type=click.Choice(PARTS), help="Measure only whole runs of pytest, comparing layouts, or the simulator."
)
@json_option
def bench_self_command(*, kernel: Path | None, rounds: int, only: str | None, as_json: bool) -> None:
    """Measure the speed of this tool on this machine: medians of whole processes, less the time of pytest alone.

    The parts are the start-up of the plugin, the checks of a kernel (KERNEL, or `steps/map_updates.py` of the grouped
    GEMM) with and without cached traces, the collection of 200 kernel files, the comparison of 10,000 layouts, and the
    simulator on GPU MODE's shapes. No file is written beside the kernel.
    """
    parts = (only,) if only else PARTS
    chosen = _kernel(kernel) if {"processes", "simulator"} & set(parts) else None
    machine = Machine.this()
    if not as_json:
        output.write(str(machine))
    figures = []
    for figure in measure(chosen, rounds=rounds, parts=parts):
        figures.append(figure.to_json())
        if not as_json:
            output.write(figure.text())
    if as_json:
        output.write_json({"machine": machine.to_json(), "rounds": rounds, "figures": figures})
