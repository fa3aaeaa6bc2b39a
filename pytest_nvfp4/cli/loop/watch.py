"""``nvfp4 loop watch``: a loop live in the terminal, or as one line an event."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from pytest_nvfp4.cli.errors import Exit, InputError
from pytest_nvfp4.cli.loop.folder import state_option
from pytest_nvfp4.cli.options import json_option

if TYPE_CHECKING:
    from pytest_nvfp4.loop.state import StateFolder


@click.command("watch")
@state_option
@click.option(
    "--refresh",
    "refresh_s",
    type=click.FloatRange(min=0.2, max=3600),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds from one reading of the directory of state to the next.",
)
@click.option("--plain", is_flag=True, help="Write one line an event, as where the output is no terminal.")
@json_option
def watch_command(*, state: StateFolder, refresh_s: float, plain: bool, as_json: bool) -> None:
    """Watch a loop: phase, gates, worker output, curve of times, spending, findings, log.

    Keys stop the loop after its iteration or now, and open diffs. Nothing else is written, and the loop goes on when
    the view ends. Without a terminal, one line is written for each event until the loop stops; the exit code is 1 if
    its process ends without stopping it. --json writes the present state once.
    """
    from pytest_nvfp4.cli.output import write, write_json
    from pytest_nvfp4.loop.view.view import LoopReader

    reader = LoopReader(state)
    if as_json:
        from pytest_nvfp4.loop.view.standing import standing_of
        from pytest_nvfp4.report.loop_values import loop_values

        view = reader.read()
        write_json(loop_values(view, standing_of(view)))
        return
    if plain or not _is_terminal():
        from pytest_nvfp4.cli.loop.follow import follow

        click.get_current_context().exit(follow(reader, write, refresh_s=refresh_s))
    if find_spec("textual") is None:
        raise InputError(
            "the terminal view needs textual; install it with `pip install 'pytest-nvfp4[watch]'`, or give --plain"
        )
    from pytest_nvfp4.cli.loop.screen import LoopApp

    code = LoopApp(reader, refresh_s=refresh_s).run()
    click.get_current_context().exit(Exit.FINE if code is None else code)


def _is_terminal() -> bool:
    """Return whether there is a terminal for keys and pictures; textual draws on standard error."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return os.environ.get("TERM") != "dumb" and all(stream is not None and stream.isatty() for stream in streams)
