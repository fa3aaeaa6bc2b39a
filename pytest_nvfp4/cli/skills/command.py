"""The command group ``nvfp4 skills``, which imports a subcommand only when it is called."""

from __future__ import annotations

from typing import ClassVar

import click

from pytest_nvfp4.cli.app import LazyGroup


class SkillsGroup(LazyGroup):
    """Subcommands of ``nvfp4 skills``."""

    table: ClassVar[dict[str, tuple[str, str]]] = {
        "list": ("cli.skills.list", "List the skills, or show one."),
        "install": ("cli.skills.install", "Write or link the skills into a repository, or check them."),
    }


@click.group("skills", cls=SkillsGroup)
def skills_command() -> None:
    """Install skills for agents: short instructions that an agent reads when it needs them."""
