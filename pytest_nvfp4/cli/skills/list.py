"""``nvfp4 skills list``: the skills of this package."""

from __future__ import annotations

import click

from pytest_nvfp4.cli.options import document_options
from pytest_nvfp4.report.document import Column, Document, Prose, Table
from pytest_nvfp4.skills import NAMES, skill


@click.command("list")
@click.argument("name", required=False, type=click.Choice(NAMES))
@document_options()
def list_command(*, name: str | None) -> Document:
    """List the skills with what each is for; with NAME, show its text."""
    if name is not None:
        one = skill(name)
        data = {"name": one.name, "description": one.description, "text": one.text}
        return Document(one.name, [Prose(one.text)], data)
    columns = (Column("skill", key="name"), Column("description", share=1, key="description"))
    table = Table(columns, [(one.name, one.description) for one in map(skill, NAMES)])
    return Document("Skills", [table], {"skills": [*table.records()]})
