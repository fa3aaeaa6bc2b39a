"""``nvfp4 guide``: the documentation in the terminal."""

from __future__ import annotations

import difflib

import click

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import document_options
from pytest_nvfp4.guide import TOPICS, page
from pytest_nvfp4.report.document import Code, Column, Document, Prose, Table

_COLUMNS = (Column("topic", key="topic"), Column("title", key="title"))


@click.command("guide")
@click.argument("topic", required=False)
@click.option("--raw", is_flag=True, help="Write the Markdown source.")
@document_options()
def guide_command(*, topic: str | None, raw: bool) -> Document:
    """Show a page of the guide; without TOPIC, list the topics."""
    if topic is None:
        table = Table(_COLUMNS, [(name, page(name).title) for name in TOPICS], heading=False)
        return Document("Guide", [table], {"topics": [*table.records()]})
    if topic not in TOPICS:
        near = difflib.get_close_matches(topic, TOPICS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"topics are {', '.join(TOPICS)}"
        raise InputError(f"the guide has no topic {topic!r}; {hint}")
    title, text = page(topic).title, page(topic).text
    data = {"topic": topic, "title": title, "text": text}
    return Document(title, [Code(text, "markdown") if raw else Prose(text)], data)
