"""``nvfp4 guide``: the documentation in the terminal."""

from __future__ import annotations

import difflib
import shutil

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.guide import TOPICS, page


@click.command("guide")
@click.argument("topic", required=False)
@click.option("--raw", is_flag=True, help="Write the Markdown source.")
def guide_command(*, topic: str | None, raw: bool) -> None:
    """Show a page of the guide; without TOPIC, list the topics."""
    if topic is None:
        rows = [(name, page(name).title) for name in TOPICS]
        output.write("\n".join(f"{name:13} {title}" for name, title in rows) + "\n")
        return
    if topic not in TOPICS:
        near = difflib.get_close_matches(topic, TOPICS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"topics are {', '.join(TOPICS)}"
        raise InputError(f"the guide has no topic {topic!r}; {hint}")
    text = page(topic).text
    if raw:
        output.write(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(width=shutil.get_terminal_size().columns, color_system="auto" if output.coloured() else None)
    with console.capture() as captured:
        console.print(Markdown(text, hyperlinks=False))
    output.write(captured.get())
