"""The command group ``nvfp4 loop``, which imports a subcommand only when it is called."""

from __future__ import annotations

from typing import ClassVar

import click

from pytest_nvfp4.cli.app import LazyGroup


class LoopGroup(LazyGroup):
    """Subcommands of ``nvfp4 loop``."""

    table: ClassVar[dict[str, tuple[str, str]]] = {}


@click.group("loop", cls=LoopGroup)
def loop_command() -> None:
    """Optimise a kernel unattended: a worker proposes candidates, and each is judged before git keeps it.

    What a worker says about its candidate is shown and never believed.
    """
