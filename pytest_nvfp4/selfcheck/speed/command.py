"""``nvfp4 bench-self``: speed of this tool on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import KernelOptions, arch_of, json_option
from pytest_nvfp4.cli.subject import resolve
from pytest_nvfp4.problem import GROUP_GEMM
from pytest_nvfp4.selfcheck.speed.figures import Figure, Kernel, Machine
from pytest_nvfp4.settings import find_root

SHIPPED = Path("kernels") / "nvfp4_group_gemm" / "steps" / "map_updates.py"  # the subject of the published figures
PARTS = ("processes", "layouts", "simulator")


def _kernel(named: Path | None, arch: str | None) -> Kernel:
    """Return the kernel to measure, by default a shipped one.

    Raises:
        InputError: The file is not a kernel under the contract of the grouped GEMM, or the shipped one is not found.
    """
    roots = (find_root(Path.cwd()), Path(__file__).resolve().parents[3])
    path = named or next((root / SHIPPED for root in roots if (root / SHIPPED).is_file()), None)
    if path is None:
        raise InputError(f"{SHIPPED} not found; name a kernel under GPU MODE's contract: nvfp4 bench-self KERNEL")
    subject = resolve(path, KernelOptions(arch=arch))
    contract = subject.settings.kernel_contract.name
    if contract != GROUP_GEMM:
        raise InputError(f"{path}: is under the contract {contract}; the figures are of shapes of {GROUP_GEMM}")
    return Kernel(subject.request.kernel, subject.request.arch)


def measure(kernel: Kernel | None, *, rounds: int, parts: tuple[str, ...]) -> Iterator[Figure]:
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
@click.option(
    "--arch", metavar="ARCH", callback=arch_of, help="Architecture to compile for.  [default: that of the settings]"
)
@json_option
def bench_self_command(*, kernel: Path | None, rounds: int, only: str | None, arch: str | None, as_json: bool) -> None:
    """Measure the speed of this tool on this machine: medians of whole processes, less the time of pytest alone.

    The parts are the start-up of the plugin, the checks of a kernel (KERNEL, or `steps/map_updates.py` of the grouped
    GEMM) with and without cached traces, the collection of 200 kernel files, the comparison of 10,000 layouts, and the
    simulator on GPU MODE's shapes. No file is written beside the kernel.
    """
    parts = (only,) if only else PARTS
    chosen = _kernel(kernel, arch) if {"processes", "simulator"} & set(parts) else None
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
