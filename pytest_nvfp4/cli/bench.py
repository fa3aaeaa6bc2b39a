"""``nvfp4 bench``: time the cases of a suite on a GPU, as the check ``benchmark`` does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.opened_device import opened
from pytest_nvfp4.cli.options import document_options, remote_options, timeout_option
from pytest_nvfp4.report.document import Block, Column, Document, Facts, Items, Style, Styled, Table
from pytest_nvfp4.temporary import temporary_folder

if TYPE_CHECKING:
    from pytest_nvfp4.bench.suite_run import Bench, CaseResult
    from pytest_nvfp4.device.remote.base import ProgramRemote, PythonProgram
    from pytest_nvfp4.device.remote.options import RemoteOptions
    from pytest_nvfp4.isolation import OnOutput

_SLACK_S = 60.0
"""Time of a remote around a process that has its whole timeout."""
_STYLES: dict[str, Style] = {"passed": "good", "failed": "bad", "skipped": "muted", "unavailable": "warning"}


@click.command("bench")
@click.argument("kernels", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--suite", "name", default="smoke", show_default=True, metavar="NAME|FILE.toml", help="Suite to run.")
@click.option(
    "--device", default="auto", show_default=True, help="Device: local, a remote (modal, ssh:HOST, ...), or another."
)
@click.option(
    "--rounds", type=click.IntRange(3, 100_000), default=50, show_default=True, help="Timed calls of each case."
)
@click.option("--save", metavar="NAME", help="Store the rounds as pytest-benchmark does, for --benchmark-compare.")
@click.option(
    "--storage", metavar="URI", help="Storage of pytest-benchmark.  [default: file://./.benchmarks]", default=None
)
@timeout_option(600.0, help_text="Timeout of a process in seconds.")
@remote_options("gpu", "gpu_capability", "timeout_s", "max_cost", "gpu_price", "deployed_app")
@document_options(csv=True)
def bench_command(
    kernels: tuple[Path, ...],
    *,
    name: str,
    device: str,
    rounds: int,
    save: str | None,
    storage: str | None,
    timeout: float,
    remote: RemoteOptions,
) -> Document:
    """Time the cases of a suite on a GPU: smoke, gpumode, reduce_sum_short, reduce_sum_long, or a TOML file.

    KERNELS take the place of those under GPU MODE's contract that the settings name, in cases without a kernel. Each
    case is timed with a cold L2 and rotating inputs, and its answers are checked. The exit code is 1 if a case failed,
    or none was timed.
    """
    from pytest_nvfp4.bench.stored import DEFAULT_STORAGE, store
    from pytest_nvfp4.bench.suite import SuiteError, load_suite
    from pytest_nvfp4.bench.suite_run import contract_kernels, result_json
    from pytest_nvfp4.settings import find_root, load

    if save is not None and (not save or "/" in save or save.startswith(".")):
        raise InputError(f"--save {save!r} is not a name of a file; give one such as before-the-change")
    try:
        suite = load_suite(name)
        settings = load(find_root(Path.cwd()))
        chosen = list(kernels) or (contract_kernels(settings) if suite.takes_kernels else [])
        with temporary_folder("bench") as folder, _bench(device, remote, Path(folder), rounds, timeout) as bench:
            results = list(bench.cases(suite, chosen))
    except SuiteError as error:
        raise InputError(str(error)) from error
    stored = ""
    timed = [one.stored for one in results if one.stored is not None]
    where = next((one.device for one in results if one.device is not None), None)
    if save is not None and timed and where is not None:
        stored = store(timed, device=where, name=save, uri=storage or DEFAULT_STORAGE)
    ok = bool(timed) and not any(one.status == "failed" for one in results)
    data = {**result_json(suite, results), "stored": stored or None}
    return Document(f"Suite {suite.name}", list(_blocks(results, stored)), data, ok)


@contextmanager
def _bench(device: str, remote: RemoteOptions, folder: Path, rounds: int, timeout: float) -> Iterator[Bench]:
    """Open the device, and release it at the end. Raises InputError."""
    from pytest_nvfp4.bench.suite_run import Bench
    from pytest_nvfp4.device.remote.base import ProgramRemote
    from pytest_nvfp4.settings import find_root, load

    remote = replace(remote, longest_s=timeout + _SLACK_S)
    with opened(device, remote, folder, what="process") as found:
        run, why_not = None, f"operators are timed on a GPU, not on {device}"
        if isinstance(found.place, ProgramRemote):
            run = partial(_there, found.place)
        elif found.place is not None:
            why_not = f"{device} runs kernels under GPU MODE's contract, but no programs"
        elif found.device.name == "local":
            run = _locally
        yield Bench(
            found.device,
            run,
            folder / "jobs",
            load(find_root(Path.cwd())),
            rounds,
            timeout,
            why_not,
            working=lambda case: output.note(f"timing {case} ..."),
        )


def _there(place: ProgramRemote, program: PythonProgram, on_output: OnOutput) -> int:
    from pytest_nvfp4.device.remote.base import RemoteError

    try:
        return place.execute(program, on_output=on_output)
    except RemoteError as error:
        on_output("stderr", str(error).encode())
        return 1


def _locally(program: PythonProgram, on_output: OnOutput) -> int:
    from pytest_nvfp4.device.execute import execute
    from pytest_nvfp4.device.gpus import visible_gpus

    return execute(program, backend="cuda", visible=visible_gpus()[0], on_output=on_output).exit_status


def _blocks(results: Sequence[CaseResult], stored: str) -> Iterator[Block]:
    timed = [one for one in results if one.speed is not None]
    rows = [
        (
            one.kernel, one.on, one.dtype,
            f"{one.speed.p50_us:.2f}", f"{one.speed.p90_us:.2f}", f"{one.speed.gbps:.0f}", f"{one.speed.tflops:.2f}",
            None if one.speed.roofline_percent is None else f"{one.speed.roofline_percent:.1f}",
            one.speed.late,
        )
        for one in timed if one.speed is not None
    ]  # fmt: skip
    if rows:
        yield Table(
            [
                Column("kernel", code=True, key="kernel"),
                Column("on", key="on"),
                Column("type", key="dtype"),
                Column("p50", unit="us", key="p50_us", right=True),
                Column("p90", unit="us", key="p90_us", right=True),
                Column("bandwidth", unit="GB/s", key="gbps", right=True),
                Column("rate", unit="TFLOP/s", key="tflops", right=True),
                Column("roofline", unit="%", key="roofline_percent", right=True),
                Column("late", key="late", right=True),
            ],
            rows,
        )
        first = timed[0]
        assert first.speed is not None
        facts: list[tuple[str, str]] = [("measured on", str(first.device)), ("method", first.speed.method)]
        facts.append(("L2", f"{first.speed.l2} before each of {first.speed.rounds} rounds"))
        if first.device is not None and first.device.dsl:
            facts.append(("CuTe DSL", first.device.dsl))
        clocks = [one.speed.clock_mhz for one in timed if one.speed is not None and one.speed.clock_mhz]
        if clocks:
            facts.append(("SM clock", f"{min(clocks):.0f} to {max(clocks):.0f} MHz"))
        yield Facts(facts)
    for one in results:
        if one.speed is None:
            yield Styled(f"{one.status}: {one.nodeid}: {one.because}", _STYLES[one.status])
    if warnings := [f"{one.nodeid}: {one.because}" for one in timed if one.because]:
        yield Items(warnings)
    if stored:
        yield stored
