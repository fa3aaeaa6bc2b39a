"""``nvfp4 loop progress``: report a live time from a worker."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import click
from filelock import Timeout
from pydantic import ValidationError

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import json_option
from pytest_nvfp4.cli.output import write_json
from pytest_nvfp4.isolation.door.models import fault
from pytest_nvfp4.loop.schemas import ProgressStatus
from pytest_nvfp4.loop.work.progress import PROGRESS_VARIABLE, Update, report


@click.command("progress")
@click.option("--time-us", type=float, metavar="T", help="A time in us; the best and the last one are kept.")
@click.option("--status", type=click.Choice(get_args(ProgressStatus)), help="What the worker does.")
@click.option("--note", metavar="TEXT", help="A line for people.")
@click.option("--artifact", metavar="FILE", help="File that the time is from.")
@click.option(
    "--error", "errors", multiple=True, metavar="TEXT", help="An error; may be repeated, and the last 20 are kept."
)
@click.option("--metric-name", metavar="NAME", help="Name of the metric; another one begins anew.  [default: gmean_us]")
@click.option("--iteration", type=click.IntRange(min=1), help="Iteration.")
@click.option("--source", metavar="NAME", help="Who reports.  [default: worker]")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar=PROGRESS_VARIABLE,
    help=f"File of the reports.  [default: that which {PROGRESS_VARIABLE} names; the loop sets it for its workers]",
)
@json_option
def progress_command(
    *,
    time_us: float | None,
    status: ProgressStatus | None,
    note: str | None,
    artifact: str | None,
    errors: tuple[str, ...],
    metric_name: str | None,
    iteration: int | None,
    source: str | None,
    file: Path | None,
    as_json: bool,
) -> None:
    """Report a time or a state of a worker for the view of the loop, and write all reports so far as JSON.

    A report is a claim: it is shown, and decides nothing.
    """
    del as_json  # the result is JSON in any case
    if file is None:
        raise InputError(f"no loop has started this process, which {PROGRESS_VARIABLE} would name; give --file FILE")
    update = Update(
        time_us=time_us,
        status=status,
        note=note,
        artifact=artifact,
        errors=errors,
        metric_name=metric_name,
        iteration=iteration,
        source=source,
    )
    try:
        progress = report(file, update, now=datetime.now(UTC).isoformat(timespec="seconds"))
    except ValidationError as error:
        raise InputError(f"the report {fault(error)}") from None
    except Timeout:
        raise InputError(f"{file}: another process holds its lock ({file}.lock); try again") from None
    write_json(progress.model_dump(mode="json"))
