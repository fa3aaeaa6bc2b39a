"""``nvfp4 loop stop``: ask a running loop to end."""

from __future__ import annotations

import socket

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import Exit
from pytest_nvfp4.cli.loop.folder import state_option
from pytest_nvfp4.loop.machine.lock import is_running, read_owner
from pytest_nvfp4.loop.state import Control, StateFolder, write_model


@click.command("stop")
@click.option("--now", is_flag=True, help="End what runs now; the iteration goes on when the loop is run again.")
@click.option("--reason", default="", help="Why, for the log and the report.")
@state_option
@click.option("--json", "as_json", is_flag=True, help="Write the result as JSON.")
@click.pass_context
def stop_command(ctx: click.Context, *, now: bool, reason: str, state: StateFolder, as_json: bool) -> None:
    """Stop a loop after its current iteration, or now. The loop keeps everything and can be run again.

    The exit code is 1 if no process runs a loop in this directory of state.
    """
    owner = read_owner(state.lock)
    # A loop on another host, which shares the directory, cannot be seen from here, and reads the request all the same.
    running = owner is not None and (owner.host != socket.gethostname() or is_running(owner))
    stop = "now" if now else "after-iteration"
    if running:
        write_model(state.control, Control.model_validate({"stop": stop, "reason": reason[:10_000]}))
    if as_json:
        output.write_json(
            {
                "state": str(state.root),
                "running": running,
                "stop": stop if running else "",
                "pid": owner.pid if owner is not None and running else None,
                "host": owner.host if owner is not None and running else None,
            }
        )
    elif running and owner is not None:
        when = "now" if now else "after its current iteration"
        output.write(f"the loop of process {owner.pid} on {owner.host} will stop {when}")
    else:
        output.note(f"no loop runs in {state.root}; `nvfp4 loop run` starts one")
    if not running:
        ctx.exit(Exit.FAILED)
