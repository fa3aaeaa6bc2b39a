"""``nvfp4 regions``: run a kernel with its regions switched on, or read what one has recorded."""

from __future__ import annotations

from pathlib import Path

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import RunOptions, document_options, run_options, timeout_option
from pytest_nvfp4.profiler.dag import Edge
from pytest_nvfp4.profiler.spans import Timeline
from pytest_nvfp4.report.document import Document

_FILE = click.Path(path_type=Path, dir_okay=False)
_COUNT = click.IntRange(1, 1 << 20)


@click.command("regions")
@click.argument("source", type=click.Path(path_type=Path), metavar="KERNEL|FILE.json")
@run_options
@click.option(
    "--device",
    type=click.Choice(["auto", "local", "sim"]),
    default="auto",
    show_default=True,
    help="A GPU of this machine or the simulator, where steps stand for times.",
)
@click.option("--iket", "with_iket", is_flag=True, help="Time its marks of IKET with run-iket, on a GPU.")
@click.option("--model/--no-model", "asked", default=True, show_default=True, help="Show modelled times beside.")
@click.option("--table", metavar="NAME", help="Device table of the model.  [default: that of the architecture]")
@click.option("--beside", type=_FILE, metavar="FILE.json", help="Show the regions of a saved file beside.")
@click.option("--warmup", type=click.IntRange(0, 1000), default=2, show_default=True, help="Calls before the recorded.")
@click.option("--slices", type=_COUNT, default=2048, show_default=True, help="Warps that are recorded: the first ones.")
@click.option("--events", type=_COUNT, default=256, show_default=True, help="Begins and ends that are kept of a warp.")
@click.option("--save", type=_FILE, metavar="FILE.json", help="Save the records.")
@click.option("--timeline", type=_FILE, metavar="FILE", help="Write a timeline for ui.perfetto.dev (.pftrace).")
@click.option(
    "--timeline-ctas", "ctas", type=click.IntRange(1, 9999), default=16, show_default=True, help="CTAs of the timeline."
)
@click.option(
    "--dag", type=_FILE, metavar="FILE.json", help="Arrows of the timeline, as iket.dag(...).save wrote them."
)
@timeout_option(600.0)
@document_options(csv=True)
def regions_command(
    source: Path,
    *,
    how: RunOptions,
    device: str,
    with_iket: bool,
    asked: bool,
    table: str | None,
    beside: Path | None,
    warmup: int,
    slices: int,
    events: int,
    save: Path | None,
    timeline: Path | None,
    ctas: int,
    dag: Path | None,
    timeout: float,
) -> Document:
    """Show how long the regions take that a kernel names.

    KERNEL uses `pytest_nvfp4.profiler` (see `nvfp4 guide regions`). It runs on exact inputs with its regions switched
    on; the last of its calls is recorded. FILE.json holds what --save wrote, or IKET's trace (run-iket profile
    --postprocess json). Times of a GPU are measured, those of the model are modelled, and steps of the simulator are no
    time.
    """
    from pytest_nvfp4.cli.regions import page, sources

    if dag is not None and timeline is None:
        raise InputError("--dag gives the arrows of a timeline: name its file with --timeline")
    edges = sources.edges(dag) if dag is not None else []
    wrong: tuple[str, ...] = ()
    if source.suffix == ".json":
        if save is not None:
            raise InputError("--save is for a kernel: the records of a file are saved already")
        timelines = [sources.saved(source)]
    else:
        from pytest_nvfp4.cli.simulation import runnable

        subject = runnable(source, how, simulated=True)
        if len(subject.problems) > 1:
            raise InputError("--problem: the regions of one call are shown; name one problem")
        (case,) = subject.cases()
        _check_room(slices, events)
        with output.working(f"running {subject.label} with its regions"):
            room = sources.Room(warmup=warmup, slices=slices, events=events)
            ran = sources.run(subject, case, room, device=device, timeout_s=timeout, with_iket=with_iket)
        timelines = []
        if ran is not None:
            timelines, wrong = [ran.timeline], ran.wrong
        elif not asked:
            raise InputError("--iket measures on a GPU only: without one, leave out --no-model")
        if save is not None and ran is not None:
            sources.save(save, ran)
            output.note(f"wrote {save}")
        if asked:
            timelines += _modelled(subject, case, table, timeout)
    if beside is not None:
        timelines.append(sources.saved(beside))
    if not timelines:
        raise InputError(
            f"{source}: is not measured without a GPU, and has no modelled times: name a device with --table"
        )
    if timeline is not None:
        _write(timeline, timelines, str(source), ctas, edges)
    return page.document(str(source), timelines, wrong)


def _check_room(slices: int, events: int) -> None:
    from pytest_nvfp4.profiler import Session

    try:
        Session(slices=slices, events=events)
    except ValueError as error:
        raise InputError(f"--slices and --events: {error}") from error


def _modelled(subject: object, case: object, table: str | None, timeout_s: float) -> list[Timeline]:
    from pytest_nvfp4.cli.regions import sources
    from pytest_nvfp4.cli.simulation import Runnable
    from pytest_nvfp4.device.job import JobCase
    from pytest_nvfp4.device.modelled import device_for
    from pytest_nvfp4.model.constants import ConstantsError

    assert isinstance(subject, Runnable)
    assert isinstance(case, JobCase)
    try:
        constants = device_for(subject.spec.arch, table)
    except ConstantsError as error:
        if table is not None:
            raise InputError(str(error)) from error
        output.note(f"no modelled times: {error}")
        return []
    with output.working(f"modelling {subject.label} on {constants.title}"):
        return [sources.modelled(subject, case, constants, timeout_s=timeout_s)]


def _write(file: Path, timelines: list[Timeline], title: str, ctas: int, edges: list[Edge]) -> None:
    from pytest_nvfp4.profiler.dag import with_arrows
    from pytest_nvfp4.profiler.perfetto_trace import TimelineUnavailableError, perfetto_trace
    from pytest_nvfp4.profiler.slices import slices_of

    slices = with_arrows(list(slices_of(timelines, ctas=ctas)), edges)
    sources = "; ".join(timeline.source for timeline in timelines)
    try:
        output.write_file(file, perfetto_trace(slices, title=f"{title}: {sources}"))
    except TimelineUnavailableError as error:
        raise InputError(str(error)) from error
    output.note(f"{file}: open it at https://ui.perfetto.dev")
