"""The command group ``nvfp4 loop``, which imports a subcommand only when it is called."""

from __future__ import annotations

from typing import ClassVar

import click

from pytest_nvfp4.cli.app import LazyGroup


class LoopGroup(LazyGroup):
    """Subcommands of ``nvfp4 loop``."""

    table: ClassVar[dict[str, tuple[str, str]]] = {
        "init": ("cli.loop.init", "Write a commented configuration file."),
        "run": ("cli.loop.run", "Run a loop to its end, or go on where an earlier run ended."),
        "watch": ("cli.loop.watch", "Watch a loop live in the terminal; stop it, open diffs."),
        "stop": ("cli.loop.stop", "Stop a loop after its iteration, or now."),
        "revert": ("cli.loop.revert", "Take back promotions of a loop that has stopped."),
        "report": ("cli.loop.report", "Report a loop: best time, curve, accepted steps, what was rejected, spending."),
        "candidates": ("cli.loop.candidates", "List and search what was tried."),
        "check": ("cli.loop.check", "Check a file that a worker or a reviewer writes."),
        "progress": ("cli.loop.progress", "Report a live time from a worker; it is only shown."),
    }


@click.group("loop", cls=LoopGroup)
def loop_command() -> None:
    """Optimise a kernel unattended: a worker proposes candidates, and each is judged before git keeps it.

    What a worker says about its candidate is shown and never believed.
    """
