"""``nvfp4 loop check``: check a file of a loop."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from pytest_nvfp4.cli.errors import Exit
from pytest_nvfp4.cli.mounts import repository
from pytest_nvfp4.cli.options import json_option
from pytest_nvfp4.cli.output import write, write_json
from pytest_nvfp4.loop.configuration.check import Kind, check_file
from pytest_nvfp4.text import visible


@click.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--kind", type=click.Choice(get_args(Kind)), required=True, help="What the file should be.")
@json_option
@click.pass_context
def check_command(ctx: click.Context, *, file: Path, kind: Kind, as_json: bool) -> None:
    """Check FILE, and write each problem on a line: a worker's result, a reviewer's verdict, a configuration, ...

    Exit codes: 0 the file is valid; 1 it is not; 2 it cannot be read, or is no JSON.
    """
    problems = check_file(file, kind, root=repository(Path.cwd()))
    if as_json:
        write_json({"file": str(file), "kind": kind, "valid": not problems, "problems": problems})
    else:
        write("\n".join(visible(problem) for problem in problems) or f"{visible(str(file))}: valid")
    ctx.exit(Exit.FAILED if problems else Exit.FINE)
