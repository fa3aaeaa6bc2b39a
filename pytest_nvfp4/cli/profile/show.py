"""``nvfp4 profile show``: read a saved report of anybody."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import RunOptions, document_options, timeout_option
from pytest_nvfp4.report.document import Document

if TYPE_CHECKING:
    from pytest_nvfp4.profile.result import Profile


@click.command("show")
@click.argument("report", type=click.Path(path_type=Path))
@click.option("--kernel", metavar="TEXT", help="Show only launches of kernels whose name contains TEXT.")
@click.option(
    "--counted",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Kernel of the report, to simulate the same call: counted beside measured, and modelled gains.",
)
@click.option("--problem", metavar="NAME", help="Problem or shape of the profiled call (with --counted).")
@timeout_option(600.0, help_text="Timeout of the simulation in seconds.")
@document_options()
def show_command(
    report: Path,
    *,
    kernel: str | None,
    counted: Path | None,
    problem: str | None,
    timeout: float,
) -> Document:
    """Show REPORT: a .ncu-rep, an nsys export (.sqlite), a compute-sanitizer XML, or a table of `ncu --csv`.

    A JSON of `nvfp4 profile` and a folder or ZIP archive of reports, as `popcorn submit --profile` downloads it, are
    read too. What limits each launch follows from its metrics; no conclusion rests on one that is unknown.
    """
    from pytest_nvfp4.cli.explanation import explained
    from pytest_nvfp4.cli.profile.tables import profile_section
    from pytest_nvfp4.cli.simulation import runnable

    if counted is None and problem is not None:
        raise click.UsageError("--problem names the problem of the kernel of --counted; give --counted")
    profile = load(report, kernel)
    how = RunOptions(() if problem is None else (problem,))
    subject = None if counted is None else runnable(counted, how, simulated=True)
    blocks, data = explained(profile, subject, timeout_s=timeout)
    whole = {**profile.model_dump(mode="json"), "explanation": data}
    return Document(str(report), [profile_section(profile, str(report)), *blocks], whole)


def load(report: Path, kernel: str | None) -> Profile:
    """Return the profile of a report, with the launches of some kernels only. Raises InputError."""
    from pytest_nvfp4.isolation.door import DoorError
    from pytest_nvfp4.profile.read import read_report

    try:
        profile = read_report(report)
    except DoorError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"{report}: cannot be read: {error.strerror or error}") from error
    if kernel is None:
        return profile
    chosen = profile.named(kernel)
    if not chosen.launches:
        names = ", ".join(dict.fromkeys(launch.name[:60] for launch in profile.launches[:10])) or "none"
        raise InputError(f"{report}: no kernel's name contains {kernel!r}; its kernels are {names}")
    return chosen
