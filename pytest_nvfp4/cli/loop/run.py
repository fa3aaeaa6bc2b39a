"""``nvfp4 loop run``: run a loop, or go on where an earlier run ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import Exit, InputError
from pytest_nvfp4.cli.loop.folder import state_option
from pytest_nvfp4.cli.mounts import repository

if TYPE_CHECKING:
    from pytest_nvfp4.loop.machine.machine import End
    from pytest_nvfp4.loop.state import StateFolder

_EXITS = {"stopped": Exit.FINE, "failed": Exit.FAILED, "interrupted": Exit.INTERRUPTED}


@click.command("run")
@click.argument("words", nargs=-1, metavar="[CONFIG] [KEY=VALUE]...")
@click.option("--until", metavar="HH:MM", help="Local time at which the loop ends; the next one, also tomorrow's.")
@click.option(
    "--max-cost",
    type=click.FloatRange(min=0),
    metavar="USD",
    help="Most dollars that the loop spends over all its runs; the same as budget.dollars=USD.",
)
@click.option(
    "--mode", type=click.Choice(["command", "manual", "dry-run"]), help="Mode, in place of the configuration's."
)
@click.option("--fresh-start", is_flag=True, help="Begin anew at HEAD; what the old loop left is renamed and kept.")
@state_option
@click.option("--json", "as_json", is_flag=True, help="Write nothing but the result, as JSON.")
@click.pass_context
def run_command(
    ctx: click.Context,
    *,
    words: tuple[str, ...],
    until: str | None,
    max_cost: float | None,
    mode: str | None,
    fresh_start: bool,
    state: StateFolder,
    as_json: bool,
) -> None:
    """Run a loop until a limit is reached, or go on where an earlier run ended, however it ended.

    CONFIG is a file that `nvfp4 loop init` writes (nvfp4-loop.toml at the repository's root by default), and KEY=VALUE
    a value in its place, such as budget.iterations=100. The log goes to standard error. The last line of standard
    output is a JSON object. The exit code is 0 if the loop stopped at a limit or as asked, 1 if it cannot go on, 130
    if it was interrupted.
    """
    from pytest_nvfp4.end_signals import clean_ends
    from pytest_nvfp4.loop.clock import Clock, seconds_until
    from pytest_nvfp4.loop.configuration.errors import ConfigError
    from pytest_nvfp4.loop.configuration.load import load_config
    from pytest_nvfp4.loop.machine.assemble import session_of
    from pytest_nvfp4.loop.machine.limits import how_to_go_on
    from pytest_nvfp4.loop.machine.lock import LockedError
    from pytest_nvfp4.loop.machine.resume import ChangedError
    from pytest_nvfp4.loop.machine.session import StateError
    from pytest_nvfp4.loop.protocols import InfrastructureError

    clock, root = Clock(), repository(Path.cwd())
    files = [word for word in words if "=" not in word or Path(word).is_file()]
    if len(files) > 1:
        raise InputError(f"{files[1]!r} is a second configuration; overrides are written as section.key=value")
    overrides = [word for word in words if word not in files]
    overrides += [f"mode={mode}"] * bool(mode) + [f"budget.dollars={max_cost!r}"] * (max_cost is not None)
    try:
        until_s = None if until is None else seconds_until(until, clock.now())
        config = load_config(root, file=Path(files[0]) if files else None, overrides=overrides)
        session = session_of(config, root=root, folder=state, until_s=until_s, clock=clock, show=_shown(as_json))
        with clean_ends(lambda: "Run the same command to go on; processes of a worker may still run."):
            end = session.run(fresh=fresh_start)
    except (ConfigError, ChangedError, LockedError, StateError, InfrastructureError, ValueError) as error:
        raise InputError(str(error)) from error
    if not as_json and end.status != "failed":
        output.note(f"{how_to_go_on(end.reason, config)}; `nvfp4 loop report` shows what was achieved")
    output.write(json.dumps(_result(end, session.folder)))  # one line, also with --json
    ctx.exit(_EXITS[end.status])


def _shown(as_json: bool) -> Callable[[str], None]:
    return (lambda _: None) if as_json else output.note


def _result(end: End, folder: StateFolder) -> dict[str, Any]:
    """Return the keys of the result. They are stable."""
    state = end.state
    return {
        "status": end.status,
        "reason": end.reason,
        "iteration": state.iteration,
        "phase": state.interrupted or state.phase,
        "incumbent": state.incumbent,
        "incumbent_candidate": state.incumbent_candidate,
        "promotions": len(state.promotions),
        "metric": state.metric,
        "baseline_value": state.baseline_value,
        "best_value": state.best_value,
        "spent": end.spent.model_dump(mode="json"),
        "state": str(folder.root),
    }
