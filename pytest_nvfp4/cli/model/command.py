"""The command group ``nvfp4 model``, which imports a subcommand only when it is called."""

from __future__ import annotations

from typing import ClassVar

import click

from pytest_nvfp4.cli.default_group import DefaultGroup


class ModelGroup(DefaultGroup):
    """Subcommands of ``nvfp4 model``."""

    default = "time"
    table: ClassVar[dict[str, tuple[str, str]]] = {
        "time": ("cli.model.time", "Model the time of one call of a kernel, and say where it goes (the default)."),
        "calibrate": ("cli.model.calibrate", "Measure the constants of a GPU, and write its device table."),
        "devices": ("cli.model.devices", "List device tables, or the constants of one with their sources."),
    }


@click.group("model", cls=ModelGroup)
def model_command() -> None:
    """Model the time of a kernel on a device, without that device.

    A modelled time follows from what a kernel issues and waits for in the simulator, and from the constants of a
    device table. It is no measurement.
    """
