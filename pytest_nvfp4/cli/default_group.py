"""A command group one of whose subcommands is the default: ``nvfp4 model KERNEL`` is ``nvfp4 model time KERNEL``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import click

from pytest_nvfp4.cli.app import LazyGroup


class DefaultGroup(LazyGroup):
    """Subcommands; a kernel or an option in their place stands for the default one."""

    default: ClassVar[str]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default subcommand before what is none: a path, or an option but ``--help``."""
        if args and self._for_default(args[0]):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def _for_default(self, first: str) -> bool:
        if first in self.table or first in ("-h", "--help"):
            return False
        # A misspelled subcommand is none of the default's paths, and gets the hint of the group.
        return first.startswith("-") or "." in first or "/" in first or Path(first).exists()
