"""``--state``: the directory of state of a loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pytest_nvfp4.cli.mounts import repository
from pytest_nvfp4.loop.state import StateFolder

DEFAULT = Path(".nvfp4") / "loop"
"""Directory of state below the repository's root."""


def _folder(ctx: click.Context, param: click.Parameter, value: Path | None) -> StateFolder:
    del ctx, param
    return StateFolder((value if value is not None else repository(Path.cwd()) / DEFAULT).absolute())


def state_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--state DIR``; the function receives a `StateFolder` as ``state``, which need not exist."""
    return click.option(
        "--state",
        type=click.Path(path_type=Path, file_okay=False),
        callback=_folder,
        metavar="DIR",
        help=f"Directory of state of the loop.  [default: {DEFAULT} below the root of the repository]",
    )(function)
