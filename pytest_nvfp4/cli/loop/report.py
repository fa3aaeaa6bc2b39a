"""``nvfp4 loop report``: what a loop has achieved, at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.loop.folder import state_option
from pytest_nvfp4.cli.options import document_options
from pytest_nvfp4.report.document import Document

if TYPE_CHECKING:
    from pytest_nvfp4.loop.state import StateFolder

_MOST_LINES = 400


@click.command("report")
@state_option
@click.option("--summary", is_flag=True, help="Leave out the diffs: one page.")
@document_options()
def report_command(*, state: StateFolder, summary: bool) -> Document:
    """Report a loop: best time, curve, accepted steps with their diffs, what was rejected and why, spending.

    It reads the directory of state only, while the loop runs, after its end, or after its death. Times are modelled
    unless they are called measured.
    """
    from pytest_nvfp4.loop.view.standing import standing_of
    from pytest_nvfp4.loop.view.view import LoopReader, diff_of
    from pytest_nvfp4.report.loops import loop_document

    view = LoopReader(state).read()
    if view.life == "absent" and not view.problems:
        raise InputError(f"{state.root} holds no loop; name its directory with --state, or begin with `nvfp4 loop run`")
    standing = standing_of(view)
    numbers = () if summary else (step.promotion.candidate for step in standing.steps)
    return loop_document(view, standing, {number: _shown(diff_of(state, number), state, number) for number in numbers})


def _shown(diff: str, state: StateFolder, number: int) -> str:
    """Return a diff, or its first lines and where the others are."""
    lines = diff.splitlines()
    if len(lines) <= _MOST_LINES:
        return diff
    rest = f"... {len(lines) - _MOST_LINES} more lines: {state.candidate(number) / 'diff.patch'}"
    return "\n".join([*lines[:_MOST_LINES], rest])
