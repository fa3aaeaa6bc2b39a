"""The command group ``nvfp4 profile``, which imports a subcommand only when it is called."""

from __future__ import annotations

from typing import ClassVar

import click

from pytest_nvfp4.cli.default_group import DefaultGroup


class ProfileGroup(DefaultGroup):
    """Subcommands of ``nvfp4 profile``."""

    default = "run"
    table: ClassVar[dict[str, tuple[str, str]]] = {
        "run": ("cli.profile.run", "Profile a kernel on a GPU (the default)."),
        "show": ("cli.profile.show", "Show a saved report of a profiler."),
        "diff": ("cli.profile.diff", "Compare two saved reports, kernel by kernel."),
    }


@click.group("profile", cls=ProfileGroup)
def profile_command() -> None:
    """Profile a kernel with ncu, nsys, compute-sanitizer or torch's profiler, and read saved reports.

    A metric that a report does not contain is unknown, and a tool that cannot run is named with the reason.
    """
