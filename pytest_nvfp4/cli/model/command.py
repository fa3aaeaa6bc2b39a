"""The command group ``nvfp4 model``, which imports a subcommand only when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import click

from pytest_nvfp4.cli.app import LazyGroup

DEFAULT = "time"
"""Subcommand of ``nvfp4 model KERNEL``."""


class ModelGroup(LazyGroup):
    """Subcommands of ``nvfp4 model``; a kernel or an option in their place stands for the default one."""

    table: ClassVar[dict[str, tuple[str, str]]] = {
        "time": ("cli.model.time", "Model the time of one call of a kernel, and say where it goes (the default)."),
        "calibrate": ("cli.model.calibrate", "Measure the constants of a GPU, and write its device table."),
        "devices": ("cli.model.devices", "List device tables, or the constants of one with their sources."),
    }

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default subcommand before what is none: a path, or an option but ``--help``."""
        if args and DEFAULT in self.table and self._for_default(args[0]):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def _for_default(self, first: str) -> bool:
        if first in self.table or first in ("-h", "--help"):
            return False
        # A misspelled subcommand is none of the default's paths, and gets the hint of the group.
        return first.startswith("-") or "." in first or "/" in first or Path(first).exists()


@click.group("model", cls=ModelGroup)
def model_command() -> None:
    """Model the time of a kernel on a device, without that device.

    A modelled time follows from what a kernel issues and waits for in the simulator, and from the constants of a
    device table. It is no measurement.
    """
