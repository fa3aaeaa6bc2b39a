"""``nvfp4 loop revert``: take back promotions of a loop that has stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.loop.folder import state_option
from pytest_nvfp4.cli.mounts import repository

if TYPE_CHECKING:
    from pytest_nvfp4.loop.state import StateFolder


@click.command("revert")
@click.argument("candidate", type=click.IntRange(min=1), required=False)
@click.option("--reason", default="", help="Why; part of the commit and of the next prompt.")
@state_option
@click.option("--json", "as_json", is_flag=True, help="Write the result as JSON.")
def revert_command(*, candidate: int | None, reason: str, state: StateFolder, as_json: bool) -> None:
    """Take back the promotion of CANDIDATE and all later ones; by default the last one.

    One commit on the loop's branch restores the files of the incumbent before. The loop must have stopped after an
    iteration; `nvfp4 loop run` goes on from there. CANDIDATE counts as tried, and is not judged again.
    """
    from pytest_nvfp4.isolation.door.error import DoorError
    from pytest_nvfp4.loop.clock import Clock
    from pytest_nvfp4.loop.machine.lock import LockedError
    from pytest_nvfp4.loop.machine.resume import read_config
    from pytest_nvfp4.loop.machine.revert import revert
    from pytest_nvfp4.loop.machine.session import StateError
    from pytest_nvfp4.loop.protocols import InfrastructureError
    from pytest_nvfp4.loop.repository.repository import GitRepository

    try:
        config = read_config(state.config)
        if config is None:
            raise InputError(f"{state.root} holds no loop; name its directory of state with --state")
        kept = GitRepository(repository(Path.cwd()), name=config.name, kernel=config.kernel.file, state=state)
        after = revert(config, state, kept, candidate=candidate, reason=reason[:10_000], clock=Clock())
    except (DoorError, InfrastructureError, LockedError, StateError) as error:
        raise InputError(str(error)) from error
    reverted = [each.candidate for each in after.promotions if each.reverted]
    if as_json:
        output.write_json(
            {
                "incumbent": after.incumbent,
                "incumbent_candidate": after.incumbent_candidate,
                "best_value": after.best_value,
                "reverted": reverted,
                "state": str(state.root),
            }
        )
        return
    name = f"candidate {after.incumbent_candidate}" if after.incumbent_candidate else "the kernel where the loop began"
    output.write(f"the incumbent is {name} again, as {after.incumbent}; `nvfp4 loop run` goes on from there")
