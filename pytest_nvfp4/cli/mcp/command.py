"""``nvfp4 mcp``: a server of the Model Context Protocol on standard input and output."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import Exit, InputError
from pytest_nvfp4.cli.options import json_option


@click.command("mcp")
@click.option(
    "--root",
    "folders",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder whose files tools may name; may be repeated.  [default: the working folder]",
)
@click.option(
    "--timeout", type=click.FloatRange(1, 86_400), default=600.0, show_default=True, help="Seconds of a call."
)
@click.option(
    "--max-output",
    type=click.IntRange(1_000, 100_000_000),
    default=200_000,
    show_default=True,
    metavar="CHARACTERS",
    help="Length of a result; the middle of a longer text is dropped.",
)
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Calls at once; others wait.")
@click.option(
    "--sandbox",
    type=click.Choice(["auto", "require"]),
    default="auto",
    show_default=True,
    help="Use the sandbox as far as this machine has it, or refuse to run a kernel without all of it.",
)
@click.option(
    "--revisions", is_flag=True, help="Let `diff` read git revisions; git then obeys the repository's configuration."
)
@json_option
def mcp_command(
    *,
    folders: tuple[Path, ...],
    timeout: float,
    max_output: int,
    jobs: int,
    sandbox: str,
    revisions: bool,
    as_json: bool,
) -> None:
    """Serve check, races, layouts, diff, cost, model, profile show and exec to agents (Model Context Protocol).

    Everything runs on this machine's simulator, behind the sandbox, in processes that end with the call. No argument of
    a tool changes that, reaches a file outside of --root, or rents anything. --json writes the tools with the schemas
    of their arguments, and serves nothing. The server needs the extra `agents`.
    """
    try:
        from pytest_nvfp4.cli.mcp.server import ToolServer, described, tools_text
    except ImportError as error:  # it is missing, or has another major version
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "anyio"):
            raise
        raise InputError("the server needs the package mcp, version 2: pip install 'pytest-nvfp4[agents]'") from error
    from pytest_nvfp4.cli.mcp.calls import Limits
    from pytest_nvfp4.cli.mcp.roots import Roots
    from pytest_nvfp4.cli.mcp.tools import TOOLS

    if as_json:
        tools = [described(tool).model_dump(mode="json", by_alias=True, exclude_none=True) for tool in TOOLS]
        output.write_json({"tools": tools})
        return
    roots = Roots(folders or (Path.cwd(),), revisions=revisions)
    if sys.stdin.isatty():
        output.note(tools_text())
    try:
        ToolServer(roots, Limits(timeout, max_output, sandbox), jobs=jobs).serve()
    except (KeyboardInterrupt, click.Abort):
        # The thread that reads standard input cannot be ended, and Python would wait for it.
        output.note("interrupted")
        os._exit(Exit.INTERRUPTED)
